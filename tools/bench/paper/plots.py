"""Charts of the report."""

import importlib.util
import io
from pathlib import Path
from typing import Any

from s4s_core.atomic import write_atomic

from .plans import CFGS, METHODS, NFES, PAPER_CFGS, Plan, best, learned
from .results import NAMES, NOT_RUN, Results
from .tables import method_rows


def draw_plots(plan: Plan, results: Results, folder: Path) -> bool:
    """Write both charts to a folder; return False if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    _save(_headline_chart(plan, results), folder / "paper-headline.png")
    _save(_nfe_chart(plan, results), folder / "paper-nfe.png")
    return True


def _headline_chart(plan: Plan, results: Results) -> Any:
    """Bars of the headline rows, one panel per CFG."""
    from matplotlib import pyplot

    charts = {cfg: _bars(plan, results, cfg) for cfg in PAPER_CFGS}
    charts = {cfg: bars for cfg, bars in charts.items() if bars}
    size = (6.5 * max(1, len(charts)), 4)
    figure, panels = pyplot.subplots(1, max(1, len(charts)), figsize=size, squeeze=False)
    for panel, (cfg, bars) in zip(panels[0], charts.items(), strict=False):
        places = range(len(bars))
        panel.barh([p - 0.2 for p in places], [b[1] for b in bars], 0.4, label="RMSE")
        panel.barh([p + 0.2 for p in places], [b[2] for b in bars], 0.4, label="median error")
        panel.set(title=f"{plan.base.nfe} NFE, CFG {cfg:g}", yticks=places)
        panel.set_yticklabels([b[0] for b in bars])
        panel.invert_yaxis()
        panel.axvline(0.5, color="grey", linestyle=":")
        panel.set_xlabel("ratio to the best classical solver")
        panel.legend()
    return figure


def _bars(plan: Plan, results: Results, cfg: float) -> list[tuple[str, float, float]]:
    """(name, RMSE ratio, median ratio) of the headline rows that have both."""
    rows = method_rows(plan, results, plan.base.nfe, cfg)
    return [
        (row[0].partition(" (")[0], float(row[2]), float(row[3]))
        for row in rows
        if NOT_RUN not in row[2:4]
    ]


def _nfe_chart(plan: Plan, results: Results) -> Any:
    """Lines of RMSE over NFE, one per method."""
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 4))
    lines = {"best classical": [best(plan.base, n, CFGS[0]) for n in NFES]}
    for method in METHODS:
        lines[NAMES[method]] = [learned(plan.base, method, plan.budget, nfe=n) for n in NFES]
    for label, cells in lines.items():
        points = [(c.nfe, results.value(c)) for c in cells if results.value(c) is not None]
        if points:
            panel.plot(*zip(*points, strict=True), marker="o", label=label)
    panel.set(xlabel="NFE", ylabel="RMSE to the teacher", title=f"CFG {CFGS[0]:g}", yscale="log")
    if panel.lines:
        panel.legend()
    return figure


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write_atomic(path, data.getvalue())
