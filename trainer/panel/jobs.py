"""The tab Jobs: the queue, and the progress of the chosen job."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from s4s_core.app.jobs import (
    DAMAGED,
    OPEN,
    RESUMABLE,
    Job,
    ensure_runner,
    job_ids,
    list_jobs,
    runner_is_alive,
)
from s4s_core.app.progress import Metric
from s4s_core.errors import JobError
from s4s_core.regular import read_whole

from ..jobs import job_solver
from . import PanelHost, markup
from .charts import line_chart
from .compat import Shown, changed, changed_choices, on
from .fields import free_memory

MOST_JOBS = 50
_NONE = "No jobs yet. Choose a model in the tab Train and press Train solver."
_BUTTONS = ("cancel", "resume", "delete", "reuse")


class JobsTab:
    """The tab's components; `refresh` returns updates for `outputs`."""

    def __init__(self, host: PanelHost | None = None) -> None:
        self.host = host
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.list = gr.Radio(
                    [],
                    label="Jobs",
                    info="Newest first. Jobs keep running when you close this page or the panel.",
                    elem_id="s4s-jobs",
                    elem_classes="s4s-list",
                )
                with gr.Row():
                    self.cancel = gr.Button("Cancel", interactive=False, min_width=80)
                    self.resume = gr.Button("Resume", interactive=False, min_width=80)
                    self.delete = gr.Button("Delete", interactive=False, min_width=80)
                self.confirm = gr.Button("Yes, delete this job", variant="stop", visible=False)
                self.reuse = gr.Button("Use these settings in Train", interactive=False)
            with gr.Column(scale=3, elem_id="s4s-job"):
                self.card = gr.HTML(markup.empty(_NONE))
                self.samples = gr.HTML("")
                self.curves = gr.HTML("")
                with gr.Accordion("Log", open=True):
                    self.log = gr.HTML("")
        self.outputs = [self.list, self.card, self.samples, self.curves, self.log]
        self.outputs += [self.cancel, self.resume, self.delete, self.reuse, self.confirm]

    def listen(self, refresh_after: Callable[[Any], None]) -> None:
        """Connect the buttons; `refresh_after(event)` refreshes the page when an event is over."""
        refresh_after(on(self.cancel.click, lambda id: listed_job(id).cancel(), self.list))
        refresh_after(on(self.resume.click, partial(resume, self.host), self.list))
        on(self.delete.click, lambda: gr.update(visible=True), None, self.confirm, quiet=True)
        refresh_after(on(self.confirm.click, lambda id: listed_job(id).delete(), self.list))


def listed_job(id: Any) -> Job:
    """Return an existing job; raise JobError for any other value from a browser."""
    if id not in job_ids():
        raise JobError("This job no longer exists. Choose another one.")
    return Job(id)


def resume(host: PanelHost | None, id: Any) -> None:
    """Queue a job again."""
    job = listed_job(id)
    free_memory(host)
    job.resume()


def restart_queue(host: PanelHost | None) -> None:
    """Start the runner if jobs are waiting and none is running, as after a reboot."""
    if any(view.status == "queued" for view in list_jobs()) and not runner_is_alive():
        free_memory(host)
        ensure_runner()


def job_choices() -> list[tuple[str, str]]:
    """Return (text, id) of the newest jobs."""
    return [(f"{view.name} · {view.status}", view.id) for view in list_jobs()[:MOST_JOBS]]


def refresh(shown: Shown, chosen: Any) -> list[Any]:
    """Return updates for JobsTab.outputs."""
    try:
        choices, fault = job_choices(), markup.empty(_NONE)
    except JobError as error:
        choices, fault = [], markup.note(str(error), bad=True)
    ids = [id for _, id in choices]
    new = chosen if chosen in ids else next(iter(ids), None)
    listed = changed_choices(shown, "jobs", choices, chosen, new)
    if new is not None:
        with suppress(JobError):  # deleted meanwhile
            return [listed, *_details(shown, Job(new))]
    return [listed, *_nothing(shown, fault)]


def _details(shown: Shown, job: Job) -> list[Any]:
    view, sheet = job.view(), job.sheet()
    enabled = (view.status in OPEN, view.status in RESUMABLE, True, view.status != DAMAGED)
    return [
        changed(shown, "card", markup.job_card(view, job_solver(job))),
        changed(shown, "samples", _file_signature(sheet), lambda: samples_card(sheet)),
        changed(shown, "curves", training_curves(job.metrics())),
        changed(shown, "log", markup.log(job.log_tail())),
        *_button_updates(shown, enabled),
        changed(shown, "confirm", job.id, lambda: gr.update(visible=False)),
    ]


def _nothing(shown: Shown, card: str) -> list[Any]:
    return [
        changed(shown, "card", card),
        *(changed(shown, place, "") for place in ("samples", "curves", "log")),
        *_button_updates(shown, (False,) * len(_BUTTONS)),
        changed(shown, "confirm", None, lambda: gr.update(visible=False)),
    ]


def _button_updates(shown: Shown, enabled: tuple[bool, ...]) -> list[Any]:
    return [
        changed(shown, name, gr.update(interactive=able))
        for name, able in zip(_BUTTONS, enabled, strict=True)
    ]


def _file_signature(path: Path | None) -> Any:
    """Return a value that changes when the file does, or "" if there is none."""
    try:
        return (str(path), path.stat().st_mtime_ns) if path else ""
    except OSError:
        return ""


def samples_card(path: Path | None) -> str:
    """Return the newest sheet of samples as a card."""
    try:
        data = read_whole(path, markup.MOST_PICTURE) if path else b""
    except OSError:
        data = b""
    return markup.samples_card(data) if data else ""


def training_curves(metrics: list[Metric]) -> str:
    """Plot loss and validation error over model calls: a line per step count, cut at restarts.

    Each strength has charts of its own.
    """
    strengths: dict[float | None, list[Metric]] = {}
    for entry in metrics:
        strengths.setdefault(entry.strength, []).append(entry)
    charts = [
        _curves(title if strength is None else f"{title}, strength {strength:g}", key, entries)
        for strength, entries in strengths.items()
        for title, key in (("Training loss", "loss"), ("Error on validation noise", "validation"))
    ]
    return markup.charts(charts) if charts else ""


def _curves(title: str, key: str, metrics: list[Metric]) -> str:
    """Plot one value of metrics."""
    lines: dict[str, list[Any]] = {}
    newest: dict[int | None, int] = {}
    for entry in metrics:
        line = lines.setdefault(f"{entry.nfe} steps", [])
        if entry.step < newest.get(entry.nfe, 0):
            line.append((None, None))
        newest[entry.nfe] = entry.step
        line.append((entry.calls, getattr(entry, key)))
    return line_chart(title, lines, "model calls")
