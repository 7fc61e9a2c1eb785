"""The tab Jobs: the queue, and everything about the chosen job, while it runs."""

from functools import partial

import gradio as gr

from s4s_core.app.jobs import (
    OPEN,
    RESUMABLE,
    Job,
    ensure_runner,
    job_ids,
    list_jobs,
    runner_is_alive,
)
from s4s_core.errors import JobError

from . import markup
from .charts import line_chart
from .compat import on
from .fields import make_room
from .seen import changed

MOST_JOBS = 50
_NONE = "No jobs yet: choose a model in the tab Train and press Train solver."


class JobsTab:
    """Builds the tab; `outputs` are what `look` returns values for."""

    def __init__(self, hooks=None):
        self.hooks = hooks
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.list = gr.Radio(
                    [],
                    label="Jobs",
                    info="Newest first. They go on when this page or the panel is closed.",
                    elem_id="s4s-jobs",
                    elem_classes="s4s-list",
                )
                with gr.Row():
                    self.cancel = gr.Button("Cancel", interactive=False, min_width=80)
                    self.resume = gr.Button("Resume", interactive=False, min_width=80)
                    self.delete = gr.Button("Delete", interactive=False, min_width=80)
                self.confirm = gr.Button("Yes, delete this job", variant="stop", visible=False)
                self.again = gr.Button("Use its settings in Train", interactive=False)
            with gr.Column(scale=3, elem_id="s4s-job"):
                self.card = gr.HTML(markup.empty(_NONE))
                self.grid = gr.HTML("")
                self.curves = gr.HTML("")
                with gr.Accordion("Log", open=True):
                    self.log = gr.HTML("")
        self.outputs = [self.list, self.card, self.grid, self.curves, self.log]
        self.outputs += [self.cancel, self.resume, self.delete, self.again, self.confirm]

    def wire(self, look_again):
        """`look_again(event)` makes an event's end a look at everything."""
        look_again(on(self.cancel.click, lambda id: known(id).cancel(), self.list))
        look_again(on(self.resume.click, partial(resume, self.hooks), self.list))
        on(self.delete.click, lambda: gr.update(visible=True), None, self.confirm, quiet=True)
        look_again(on(self.confirm.click, lambda id: known(id).delete(), self.list))


def known(id):
    """The job of an id, if it is one of the jobs there are."""
    if id not in job_ids():
        raise JobError("That job is gone. Choose another one.")
    return Job(id)


def resume(hooks, id):
    """Queue a job again."""
    job = known(id)
    make_room(hooks)
    job.resume()


def wake(hooks):
    """Let jobs go on that wait although nobody works through the queue, as after a reboot."""
    if any(view.status == "queued" for view in list_jobs()) and not runner_is_alive():
        make_room(hooks)
        ensure_runner()


def choices():
    """(text, id) of the newest jobs."""
    return [(f"{view.name} · {view.status}", view.id) for view in list_jobs()[:MOST_JOBS]]


def look(seen, chosen):
    """Values for JobsTab.outputs: what has changed since the last look."""
    listed = choices()
    ids = [id for _, id in listed]
    new = chosen if chosen in ids else next(iter(ids), None)
    moved = {} if new == chosen else {"value": new}
    shown = changed(seen, "jobs", (tuple(listed), new), lambda: gr.update(choices=listed, **moved))
    try:
        return [shown, *_details(seen, Job(new))]
    except JobError:  # none, or deleted meanwhile
        return [shown, *_nothing(seen)]


def _details(seen, job):
    view, grid = job.view(), job.sheet()
    status, metrics = view.status, job.metrics()
    able = {
        "cancel": status in OPEN,
        "resume": status in RESUMABLE,
        "delete": True,
        "again": True,
    }
    return [
        changed(seen, "card", markup.job_card(view)),
        changed(seen, "grid", _stamp(grid), lambda: sheet(grid)),
        changed(seen, "curves", curves(metrics)),
        changed(seen, "log", markup.log(job.log_tail().splitlines())),
        *(
            changed(seen, name, on_off, lambda on_off=on_off: gr.update(interactive=on_off))
            for name, on_off in able.items()
        ),
        changed(seen, "confirm", job.id, lambda: gr.update(visible=False)),
    ]


def _nothing(seen):
    off = [
        changed(seen, name, False, lambda: gr.update(interactive=False))
        for name in ("cancel", "resume", "delete", "again")
    ]
    texts = [changed(seen, "card", markup.empty(_NONE))]
    texts += [changed(seen, place, "") for place in ("grid", "curves", "log")]
    return [*texts, *off, changed(seen, "confirm", None, lambda: gr.update(visible=False))]


def _stamp(path):
    """What changes when a picture does; "" where there is none."""
    try:
        return (str(path), path.stat().st_mtime_ns) if path else ""
    except OSError:
        return ""


def sheet(path):
    """The grid of samples as it is now."""
    try:
        data = path.read_bytes() if path else b""
    except OSError:
        data = b""
    if not data:
        return ""
    image = markup.picture(data, "image/png", "samples: teacher, classical, S4S")
    return markup.card("Samples while it learns", f'<div class="s4s-sheet">{image}</div>')


def curves(metrics):
    """Loss and validation error over model calls, a line for each NFE, cut at a new start."""
    if not metrics:
        return ""
    charts = []
    for title, key in (("Training loss", "loss"), ("Error on validation noise", "validation")):
        lines, last = {}, {}
        for entry in metrics:
            line, step = lines.setdefault(f"{entry['nfe']} steps", []), entry["step"]
            if step < last.get(entry["nfe"], 0):
                line.append((None, None))
            last[entry["nfe"]] = step
            line.append((entry["calls"], entry.get(key)))
        charts.append(line_chart(title, lines, "model calls"))
    return markup.charts(charts)
