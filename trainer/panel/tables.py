"""Tables of solvers as charts, for the tab Solvers and for `inspect --page`. No gradio here."""

from html import escape

from s4s_core.app.description import describe, describe_table

from .charts import heat_map, line_chart

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px system-ui, sans-serif; max-width: 1240px; margin: 2rem auto; color: #1e293b; }}
.s4s-charts {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
.s4s-chart {{ width: 560px; }} .s4s-chart text {{ font-size: 12px; fill: currentColor; }}
.s4s-chart text.s4s-title {{ font-weight: 600; }}
.s4s-chart .s4s-rule {{ stroke: currentColor; stroke-opacity: .15; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #0b0f19; color: #e2e8f0; }} }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


def table_charts(pack, nfe):
    """One table as a list of SVG charts: its noise levels, and its coefficients step by step."""
    facts = describe_table(pack, nfe)
    nodes, calls = list(enumerate(facts["sigmas"])), list(enumerate(facts["call_sigmas"]))
    lines = {"nodes": nodes}
    if len(calls) == len(nodes) - 1 and facts["call_sigmas"] != facts["sigmas"][:-1]:
        lines["told to the model"] = calls
    charts = [line_chart("Noise levels (sigma) by step", lines, "step")]
    for name, array in facts["coefficients"].items():
        if not array:  # one call has nothing to correct
            continue
        rows = array if not isinstance(array[0][0], list) else [sum(row, []) for row in array]
        charts.append(heat_map(f"Coefficients {name} ({facts['family']}, {facts['form']})", rows))
    return charts


def page(file, pack):
    """A page of its own with the charts of every table of a pack."""
    parts = []
    for nfe in pack.nfes:
        charts = "".join(table_charts(pack, nfe))
        parts.append(f'<h2>{nfe} model calls</h2><div class="s4s-charts">{charts}</div>')
    title = escape(describe(pack).plain()["name"] or file)
    return _PAGE.format(title=title, body="".join(parts))
