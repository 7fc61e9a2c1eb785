"""The page: four tabs, and one refresh of all of them while the page is visible."""

import json
from functools import partial
from typing import Any

import gradio as gr

from s4s_core import __version__

from . import PanelHost, compare, compat, jobs, markup, solvers, train

_HEAD = (
    f"<style>{markup.CSS}</style>"
    '<div class="s4s-head"><h2>S4S</h2><span class="s4s-faint">learned diffusion solvers: '
    f"the look of 20 model calls in 4 to 8 · version {__version__}</span></div>"
)


def build_page(host: PanelHost | None = None, run: str = "") -> gr.Blocks:
    """Return the page; see `trainer.panel.build`."""
    with compat.blocks("S4S") as page, gr.Column(elem_id="s4s-panel"):
        gr.HTML(_HEAD + markup.lost_notes(run))
        with gr.Tabs() as tabs:
            with gr.Tab("Train", id="train"):
                train_tab = train.TrainTab(host)
            with gr.Tab("Jobs", id="jobs"):
                jobs_tab = jobs.JobsTab(host)
            with gr.Tab("Solvers", id="solvers"):
                solvers_tab = solvers.SolversTab()
            with gr.Tab("Compare", id="compare"):
                compare_tab = compare.CompareTab(host)
        _listen(page, host, tabs, train_tab, jobs_tab, solvers_tab, compare_tab)
    return page


def _listen(
    page: Any,
    host: PanelHost | None,
    tabs: Any,
    train_tab: train.TrainTab,
    jobs_tab: jobs.JobsTab,
    solvers_tab: solvers.SolversTab,
    compare_tab: compare.CompareTab,
) -> None:
    """Connect the events: whatever happens ends in a refresh of all tabs."""
    tick = gr.Button("Refresh", elem_id="s4s-tick")
    memo = "What this page shows: kept here, in the browser, so that only news is sent."
    shown = gr.Textbox("{}", label="Shown", info=memo, visible=False)
    choices = [
        jobs_tab.list,
        solvers_tab.list,
        solvers_tab.table,
        compare_tab.inputs["solver"],
        compare_tab.inputs["nfe"],
    ]
    outputs = [*jobs_tab.outputs, *solvers_tab.outputs, *compare_tab.outputs, shown]

    def refresh_after(event: Any) -> None:
        compat.on(event.then, refresh, [shown, *choices], outputs, quiet=True)

    for choice in choices:
        compat.on(choice.change, refresh, [shown, *choices], outputs, quiet=True)
    compat.on(tick.click, refresh, [shown, *choices], outputs, quiet=True)
    compat.on(page.load, partial(jobs.restart_queue, host), quiet=True)
    compat.on(page.load, refresh, [shown, *choices], outputs, quiet=True)
    compat.on(page.load, js=markup.TICK, quiet=True)
    for tab in (jobs_tab, solvers_tab, compare_tab):
        tab.listen(refresh_after)
    start = partial(start_training, host)
    started = compat.on(train_tab.button.click, start, train_tab.values, [tabs, jobs_tab.list])
    refresh_after(started)
    compat.on(jobs_tab.reuse.click, reuse_settings, jobs_tab.list, [tabs, *train_tab.values])


def refresh(said: Any, job: Any, solver: Any, table: Any, compared: Any, steps: Any) -> list[Any]:
    """Return updates for the outputs of all tabs, then what the browser shows now (compat.Shown),
    as JSON; `said` is what it showed before."""
    shown = compat.parse_shown(said)
    updates = [
        *jobs.refresh(shown, job),
        *solvers.refresh(shown, solver, table),
        *compare.refresh(shown, compared, steps),
    ]
    return [*updates, json.dumps(shown)]


def start_training(host: PanelHost | None, *values: Any) -> tuple[Any, Any]:
    """Queue a job and switch to it."""
    id = train.queue_training(host, *values)
    return gr.update(selected="jobs"), gr.update(choices=jobs.job_choices(), value=id)


def reuse_settings(id: Any) -> list[Any]:
    """Fill the fields of Train with a job's settings and switch there."""
    return [gr.update(selected="train"), *train.field_updates(jobs.listed_job(id))]
