"""Pieces of HTML. Whatever comes from a file, a job or a person is escaped here."""

import base64
from html import escape

from s4s_core.app.progress import duration


def empty(sentence):
    return f'<div class="s4s-empty">{escape(sentence)}</div>'


def note(sentence, bad=False):
    return f'<div class="s4s-note{" s4s-bad" if bad else ""}">{escape(sentence)}</div>'


def card(title, body):
    return f'<div class="s4s-card"><h3>{escape(title)}</h3>{body}</div>'


def facts(pairs):
    """A list of names and values; empty values are left out."""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in pairs.items()
        if value not in (None, "", [])
    )
    return f'<dl class="s4s-facts">{rows}</dl>'


def bar(share, status=""):
    width = 100 * min(max(share, 0.0), 1.0)
    return f'<div class="s4s-bar s4s-{escape(status)}"><div style="width:{width:.1f}%"></div></div>'


def picture(data, mime, text):
    """Bytes of a picture as an <img> that carries them."""
    code = base64.b64encode(data).decode()
    return f'<img alt="{escape(text)}" src="data:{mime};base64,{code}">'


def download(data, name, text="Download"):
    """A link that saves bytes under a name; no path of this machine is served for it."""
    code = base64.b64encode(data).decode()
    source = f"data:application/octet-stream;base64,{code}"
    return f'<a class="s4s-button" download="{escape(name)}" href="{source}">{escape(text)}</a>'


def job_card(view):
    """What a job is and how far it is."""
    status, share = view.status, view.progress
    line = [f"{share:.0%}"]
    if view.eta is not None:
        line.append(f"{duration(view.eta)} left")
    if view.calls:
        line.append(f"{view.calls:,} model calls")
    nfes = ", ".join(map(str, view.nfes))
    parts = [
        f'<div class="s4s-head"><h2>{escape(view.name)}</h2>'
        f'<span class="s4s-chip s4s-{escape(status)}">{escape(status)}</span>'
        f'<span class="s4s-faint">{escape(view.model)}, {escape(nfes)} steps</span></div>',
        bar(share, status),
        f"<div><b>{escape(' · '.join(line))}</b> "
        f'<span class="s4s-faint">{escape(view.message or "")}</span></div>',
    ]
    if view.error:
        code = "" if view.exit_code is None else f" (exit code {view.exit_code})"
        parts.append(note(f"{view.error}{code}", bad=True))
    return f'<div class="s4s-card" data-status="{escape(status)}">{"".join(parts)}</div>'


def charts(parts):
    """SVG charts side by side on a card."""
    return f'<div class="s4s-card"><div class="s4s-charts">{"".join(parts)}</div></div>'


def log(lines):
    text = escape("\n".join(lines))
    return f'<div class="s4s-log"><code>{text or "The log is empty."}</code></div>'


def score_table(summary):
    """Errors to the teacher by NFE: the solver's and the best classical one's."""
    rows = []
    for nfe, scores in summary["scores"].items():
        ratio = summary["ratios"].get(nfe)
        cells = [
            nfe,
            _number(scores.get("rmse")),
            _number(scores.get("classical")),
            scores.get("classical_name", ""),
            "" if ratio is None else f"{ratio:.0%}",
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in cells) + "</tr>")
    names = ("Steps", "S4S error", "Best classical", "which one", "S4S / classical")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<table class="s4s-scores"><tr>{head}</tr>{"".join(rows)}</table>'


def _number(value):
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def solver_card(name, summary):
    """What a solver file says about itself."""
    model, training, teacher = summary["model"], summary["training"], summary["teacher"]
    size, cfg = summary["resolution"], summary["cfg"]
    known = {
        "Title": summary["name"],
        "Model": model.get("name"),
        "Model's hash": model.get("hash"),
        "Steps": ", ".join(map(str, summary["nfes"])),
        "CFG": cfg and " to ".join(f"{v:g}" for v in sorted(set(cfg))),
        "Resolution": size and " x ".join(f"{v:g}" for v in size),
        "Teacher": _listed(teacher),
        "Training": _listed(training),
        "SHA-256": summary["sha256"],
        "Notes": summary["notes"],
    }
    image = ""
    if summary["thumbnail"]:  # validated as a data URI of a picture when the file was read
        image = f'<img alt="thumbnail" src="{escape(summary["thumbnail"])}">'
    body = f"<div>{facts(known)}{score_table(summary)}</div>"
    return card(name, f'<div class="s4s-solver">{image}{body}</div>')


def _listed(known):
    return ", ".join(f"{key} {value}" for key, value in known.items())


def slider(left, right, left_text, right_text):
    """Two pictures on top of each other, and a handle that uncovers the second."""
    move = "this.parentElement.style.setProperty('--split', this.value + '%')"
    return (
        f'<div class="s4s-slider">{left}{right}<div class="s4s-handle"></div>'
        f'<span style="left:10px">{escape(left_text)}</span>'
        f'<span style="right:10px">{escape(right_text)}</span>'
        f'<input type="range" min="0" max="100" step="0.1" value="50" oninput="{move}" '
        f'aria-label="move between the two pictures"></div>'
    )


def figures(pairs):
    """Pictures side by side, each with its caption."""
    cells = (
        f"<figure>{image}<figcaption>{escape(text)}</figcaption></figure>" for text, image in pairs
    )
    return f'<div class="s4s-three">{"".join(cells)}</div>'
