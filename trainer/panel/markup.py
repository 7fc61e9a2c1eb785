"""HTML, CSS and JavaScript of the page. All text from files, jobs and people is escaped here."""

import base64
from collections.abc import Iterable, Mapping
from html import escape

from s4s_core.app.description import TITLES, Measure, SolverDescription
from s4s_core.app.jobs import JobView
from s4s_core.app.progress import duration

MOST_PICTURE = 64 << 20
"""Bytes of the largest picture that the page shows."""

RUN = "/s4s-run"
"""Where the panel's own server says which run of it answers."""

_HOW_TO_READ = (
    "Measured on noise that training did not see. In %: of the best classical solver by that "
    "measure, at as many model calls; less is better."
)


def lost_notes(run: str) -> str:
    """Return the notes for a page whose server, which names its run, is away or a later one."""
    gone = "The panel has stopped. This page goes on when it runs again; jobs go on without it."
    new = "The panel runs again; jobs went on. Reloading clears what you typed or chose here."
    notes = (
        f'<div id="s4s-lost" data-run="{escape(run)}" hidden>{note(gone, bad=True)}</div>'
        f'<div id="s4s-again" hidden>{note(new)}<a class="s4s-button" href="">Reload</a></div>'
    )
    return notes if run else ""


def empty(text: str) -> str:
    return f'<div class="s4s-empty">{escape(text)}</div>'


def note(text: str, bad: bool = False) -> str:
    return f'<div class="s4s-note{" s4s-bad" if bad else ""}">{escape(text)}</div>'


def hint(text: str) -> str:
    return f'<div class="s4s-faint">{escape(text)}</div>'


def card(title: str, body: str) -> str:
    return f'<div class="s4s-card"><h3>{escape(title)}</h3>{body}</div>'


def fact_list(facts: Mapping[str, object]) -> str:
    """Return a list of labels and values, without the empty ones."""
    rows = "".join(
        f"<dt>{escape(label)}</dt><dd>{escape(str(value))}</dd>"
        for label, value in facts.items()
        if value not in (None, "")
    )
    return f'<dl class="s4s-facts">{rows}</dl>'


def bar(share: float, status: str = "") -> str:
    width = 100 * min(max(share, 0.0), 1.0)
    return f'<div class="s4s-bar s4s-{escape(status)}"><div style="width:{width:.1f}%"></div></div>'


def picture(png: bytes, text: str) -> str:
    """Return an <img> that contains a PNG."""
    code = base64.b64encode(png).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{code}">'


def download(data: bytes, name: str, text: str) -> str:
    """Return a link that contains a file, so the server need not serve any path."""
    code = base64.b64encode(data).decode()
    source = f"data:application/octet-stream;base64,{code}"
    return f'<a class="s4s-button" download="{escape(name)}" href="{source}">{escape(text)}</a>'


def charts(parts: Iterable[str]) -> str:
    """Return a card with SVG charts side by side."""
    return f'<div class="s4s-card"><div class="s4s-charts">{"".join(parts)}</div></div>'


def log(text: str) -> str:
    return f'<div class="s4s-log"><code>{escape(text) or "The log is empty."}</code></div>'


def job_card(view: JobView, solver: SolverDescription | None = None) -> str:
    """Show what a job trains and how far it is, and the scores of the solver that it made."""
    status = escape(view.status)
    line = [f"{view.progress:.0%}"]
    if view.eta is not None:
        line.append(f"{duration(view.eta)} left")
    if view.calls:
        line.append(f"{view.calls:,} model calls")
    trained = f"{view.model}, {', '.join(map(str, view.nfes))} steps" if view.nfes else ""
    message = "" if view.message == view.error else view.message or ""  # shown once
    parts = [
        f'<div class="s4s-head"><h2>{escape(view.name)}</h2>'
        f'<span class="s4s-chip s4s-{status}">{status}</span>'
        f'<span class="s4s-faint">{escape(trained)}</span></div>',
        bar(view.progress, view.status),
        f"<div><b>{escape(' · '.join(line))}</b> "
        f'<span class="s4s-faint">{escape(message)}</span></div>',
    ]
    if view.error:
        code = "" if view.exit_code is None else f" (exit code {view.exit_code})"
        parts.append(note(f"{view.error}{code}", bad=True))
    if solver is not None:
        parts.append(score_table(solver))
    return f'<div class="s4s-card" data-status="{status}">{"".join(parts)}</div>'


def samples_card(png: bytes) -> str:
    """Show a job's newest sheet of samples."""
    image = picture(png, "samples: teacher, classical, S4S")
    return card("Samples during training", f'<div class="s4s-sheet">{image}</div>')


def solver_card(file: str, solver: SolverDescription) -> str:
    """Show what a solver file says about itself."""
    facts = {
        "Name": solver.title,
        **solver.facts(),
        "Model hash": solver.model.get("hash"),
        "SHA-256": solver.sha256,
    }
    image = ""
    if solver.thumbnail:  # reading the file has checked that it is the data URI of a picture
        image = f'<img alt="thumbnail" src="{escape(solver.thumbnail)}">'
    body = f"<div>{fact_list(facts)}{score_table(solver)}</div>"
    return card(file, f'<div class="s4s-solver">{image}{body}</div>')


def score_table(solver: SolverDescription) -> str:
    """Show the scores of each table of a solver, and how the best classical solver's compare;
    nothing if the file has none."""
    titles = solver.titles
    tables = {key: {m.name: m for m in known} for key, known in solver.measures.items()}
    names = [name for name in TITLES if any(name in known for known in tables.values())]
    if not names:
        return ""
    rows = [_cells("th", ["Table", *(TITLES[name] for name in names), "Best classical (error)"])]
    for key, known in tables.items():
        error = known.get("rmse")
        label = str(solver.scores[key].get("classical_name", ""))
        best = "" if error is None or error.classical is None else f"{label} {error.classical:.4f}"
        scores = (_score(known.get(name)) for name in names)
        rows.append(_cells("td", [titles[key], *scores, best]))
    return f'<table class="s4s-scores">{"".join(rows)}</table>' + hint(_HOW_TO_READ)


def _cells(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"


def _score(measure: Measure | None) -> str:
    """Write a score as 0.0512 (71%)."""
    if measure is None:
        return ""
    share = "" if measure.ratio is None else f" ({measure.ratio:.0%})"
    return f"{measure.ours:.4f}{share}"


def slider(left: str, right: str, left_text: str, right_text: str) -> str:
    """Lay two pictures on top of each other, with a handle that moves the border between them."""
    move = "this.parentElement.style.setProperty('--split', this.value + '%')"
    return (
        f'<div class="s4s-slider">{left}{right}<div class="s4s-handle"></div>'
        f'<span style="left:10px">{escape(left_text)}</span>'
        f'<span style="right:10px">{escape(right_text)}</span>'
        f'<input type="range" min="0" max="100" step="0.1" value="50" oninput="{move}" '
        f'aria-label="move between the two pictures"></div>'
    )


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Show pictures side by side; `pairs` are (caption, picture)."""
    cells = (
        f"<figure>{image}<figcaption>{escape(text)}</figcaption></figure>" for text, image in pairs
    )
    return f'<div class="s4s-three">{"".join(cells)}</div>'


CSS = """
#s4s-tick { display: none !important; }
#s4s-panel { max-width: 1400px; margin: 0 auto; }
#s4s-panel .html-container { padding: 0 !important; }
#s4s-panel .block:has(.prose:empty) { display: none; }
.s4s-head { display: flex; align-items: baseline; gap: .8rem; flex-wrap: wrap; }
.s4s-head h2 {
  margin: 0 !important; font-size: 1.3rem; color: var(--body-text-color); overflow-wrap: anywhere;
}
.s4s-faint { color: var(--body-text-color-subdued) !important; }
.s4s-card {
  border: 1px solid var(--border-color-primary); border-radius: 10px; padding: 1rem;
  background: var(--background-fill-primary); color: var(--body-text-color);
}
.s4s-card h3 { margin: 0 0 .5rem !important; font-size: 1.05rem; color: var(--body-text-color); }
.s4s-bar {
  height: 12px; border-radius: 6px; margin: .7rem 0 .5rem; overflow: hidden;
  background: var(--border-color-primary);
}
.s4s-bar > div { height: 100%; border-radius: 6px; background: #8b5cf6; transition: width .4s; }
.s4s-bar.s4s-done > div { background: #10b981; }
.s4s-bar.s4s-failed > div { background: #ef4444; }
.s4s-list .wrap { flex-direction: column; }
.s4s-list label { width: 100%; overflow-wrap: anywhere; }
.s4s-chip {
  display: inline-block; padding: .1rem .6rem; border-radius: 99px; font-size: .8rem;
  font-weight: 600; color: #fff !important; background: #64748b;
}
.s4s-chip.s4s-running { background: #7c3aed; }
.s4s-chip.s4s-done { background: #047857; }
.s4s-chip.s4s-failed, .s4s-chip.s4s-interrupted, .s4s-chip.s4s-damaged { background: #b91c1c; }
.s4s-facts { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
.s4s-facts dt { color: var(--body-text-color-subdued) !important; margin: 0; }
.s4s-facts dd { margin: 0; overflow-wrap: anywhere; }
.s4s-note {
  border-left: 4px solid #f59e0b; padding: .5rem .8rem; margin-top: .6rem; border-radius: 4px;
  background: var(--background-fill-secondary); color: var(--body-text-color);
}
.s4s-note.s4s-bad { border-color: #ef4444; }
.s4s-empty {
  padding: 2.5rem 1rem; text-align: center; color: var(--body-text-color-subdued) !important;
}
.s4s-charts {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(360px, 1fr));
}
.s4s-chart { width: 100%; height: auto; font-size: 12px; }
.s4s-chart text { fill: var(--body-text-color); }
.s4s-chart text.s4s-faint { fill: var(--body-text-color-subdued); }
.s4s-chart .s4s-title { font-size: 13px; font-weight: 600; }
.s4s-chart .s4s-rule { stroke: var(--border-color-primary); stroke-width: 1; }
.s4s-log {
  display: flex; flex-direction: column-reverse; max-height: 260px; overflow: auto; margin: 0;
  padding: .7rem .9rem; border-radius: 8px; font: 12px/1.5 ui-monospace, monospace;
  background: var(--background-fill-secondary); color: var(--body-text-color);
}
.s4s-log code { white-space: pre-wrap; overflow-wrap: anywhere; background: none; padding: 0; }
.s4s-sheet { overflow-x: auto; }
.s4s-sheet img { border-radius: 8px; max-width: 100%; margin: 0; }
.s4s-scores { border-collapse: collapse; width: 100%; margin: .6rem 0 0 !important; }
.s4s-scores, .s4s-scores tr { border: 0 !important; }
.s4s-scores th, .s4s-scores td {
  padding: .25rem .6rem !important; text-align: right !important; border: 0 !important;
  border-top: 1px solid var(--border-color-primary) !important; color: var(--body-text-color);
}
.s4s-scores th { color: var(--body-text-color-subdued) !important; font-weight: 500; }
.s4s-solver { display: flex; gap: 1.2rem; align-items: flex-start; }
.s4s-solver > img { width: 144px; border-radius: 10px; margin: 0; image-rendering: auto; }
.s4s-solver > div { flex: 1; min-width: 0; }
.s4s-button {
  display: inline-block; padding: .45rem 1rem !important; border-radius: 8px; font-weight: 600;
  background: #7c3aed; color: #fff !important; text-decoration: none !important;
}
#s4s-again a { margin-top: .6rem; }
.s4s-slider { position: relative; max-width: 768px; margin: 0 auto; --split: 50%; }
.s4s-slider img { display: block; width: 100%; margin: 0; border-radius: 10px; }
.s4s-slider img + img {
  position: absolute; inset: 0; clip-path: inset(0 0 0 var(--split));
}
.s4s-slider .s4s-handle {
  position: absolute; top: 0; bottom: 0; left: var(--split); width: 3px; margin-left: -1.5px;
  background: #fff; box-shadow: 0 0 4px #0008; pointer-events: none;
}
.s4s-slider .s4s-handle::after {
  content: "\\2194"; position: absolute; top: 50%; left: 50%; width: 34px; height: 34px;
  margin: -17px; border-radius: 50%; background: #fff; color: #333; text-align: center;
  font: 700 20px/34px system-ui; box-shadow: 0 0 4px #0008;
}
.s4s-slider input {
  position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0; cursor: ew-resize;
}
.s4s-slider span {
  position: absolute; bottom: 10px; padding: .1rem .6rem; border-radius: 6px;
  color: #fff !important; background: #000a; font-size: .85rem; pointer-events: none;
}
.s4s-three { display: grid; gap: 1rem; grid-template-columns: repeat(3, 1fr); margin-top: 1rem; }
.s4s-three figure { margin: 0; text-align: center; }
.s4s-three img { width: 100%; border-radius: 10px; margin: 0; }
.s4s-three figcaption { margin-top: .4rem; color: var(--body-text-color); }
"""
"""In Gradio's colour variables, so that it suits light and dark pages and any host."""

TICK = """
() => {
  if (window.s4sTick) return;
  const find = (selector) => document.querySelector(selector);
  const pages = "[role=tab], .tab-nav *, .label-wrap";
  const fields = `input, textarea, select, [role=listbox], button:not(${pages})`;
  const load = window.fetch;
  let touched = false, broken = false;

  const ask = async () => {  // relative: a proxy may show the panel below another path
    const answer = await load(".@RUN@").catch(() => null);
    const run = answer && answer.ok ? await answer.text().catch(() => "") : "";
    return /^[0-9a-f]{16}$/.test(run) ? run : null;  // another program may have the port now
  };
  const isCurrent = async () => {
    const lost = find("#s4s-lost"), again = find("#s4s-again");
    if (!lost) return true;
    const run = await ask(), over = run !== null && (broken || run !== lost.dataset.run);
    lost.hidden = run !== null;
    again.hidden = !(over && touched);
    if (over && !touched) location.reload();
    return run !== null && !over;
  };
  if (find("#s4s-lost")) {
    const touch = (event) => {
      if (event.isTrusted && event.target.closest?.(fields)) touched = true;
    };
    for (const kind of ["input", "keydown", "mousedown"])
      document.addEventListener(kind, touch, true);
    window.fetch = (url, ...rest) => {
      if (!String(url).endsWith("/app_id")) return load(url, ...rest);
      broken = true;  // Gradio 6 has given up its connection and wants to load the page anew
      return Promise.reject(new Error("The panel reloads its page itself."));
    };
  }
  window.s4sTick = setInterval(async () => {
    const panel = find("#s4s-panel");
    const seen = panel && panel.offsetParent !== null && document.visibilityState === "visible";
    if (seen && await isCurrent()) find("#s4s-tick")?.click();
  }, 1500);
}
""".replace("@RUN@", RUN)
"""Clicks the hidden refresh button while the panel is visible; works in every Gradio.

The page of the panel's own server first asks which run of it answers. From another run it loads
itself anew, at once if nobody has touched its fields and else when asked to.
"""
