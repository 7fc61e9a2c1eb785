"""The page: four tabs, and one look at everything that runs while the page is on the screen."""

from functools import partial

import gradio as gr

from s4s_core import __version__

from . import compare, compat, jobs, solvers, style, train

HEAD = (
    f"<style>{style.CSS}</style>"
    '<div class="s4s-head"><h2>S4S</h2><span class="s4s-faint">learned diffusion solvers: '
    f"the look of 20 model calls in 4 to 8 · version {__version__}</span></div>"
)


def build_page(hooks=None):
    """The panel as a gr.Blocks; see `trainer.panel.build`."""
    with compat.blocks("S4S") as page, gr.Column(elem_id="s4s-panel"):
        gr.HTML(HEAD)
        with gr.Tabs() as tabs:
            with gr.Tab("Train", id="train"):
                train_tab = train.TrainTab(hooks)
            with gr.Tab("Jobs", id="jobs"):
                jobs_tab = jobs.JobsTab(hooks)
            with gr.Tab("Solvers", id="solvers"):
                solvers_tab = solvers.SolversTab()
            with gr.Tab("Compare", id="compare"):
                compare_tab = compare.CompareTab(hooks)
        tick = gr.Button("look again", elem_id="s4s-tick")
        seen = gr.State({})
        choices = [
            jobs_tab.list,
            solvers_tab.list,
            solvers_tab.nfe,
            compare_tab.inputs["solver"],
            compare_tab.inputs["nfe"],
        ]
        outputs = [*jobs_tab.outputs, *solvers_tab.outputs, *compare_tab.outputs, seen]

        def look_again(event):
            compat.on(event.then, look, [seen, *choices], outputs, quiet=True)

        for choice in choices:
            compat.on(choice.change, look, [seen, *choices], outputs, quiet=True)
        compat.on(tick.click, look, [seen, *choices], outputs, quiet=True)
        compat.on(page.load, partial(jobs.wake, hooks), quiet=True)
        compat.on(page.load, look, [seen, *choices], outputs, quiet=True)
        compat.on(page.load, js=style.TICK, quiet=True)
        for tab in (jobs_tab, solvers_tab, compare_tab):
            tab.wire(look_again)
        queue = partial(queue_job, hooks)
        look_again(
            compat.on(train_tab.button.click, queue, train_tab.values, [tabs, jobs_tab.list])
        )
        compat.on(jobs_tab.again.click, use_settings, jobs_tab.list, [tabs, *train_tab.values])
    return page


def look(seen, job, solver, table, compared, steps):
    """One look at everything: values for the outputs of all tabs, then what has been shown."""
    shown = [
        *jobs.look(seen, job),
        *solvers.look(seen, solver, table),
        *compare.look(seen, compared, steps),
    ]
    return [*shown, seen]


def queue_job(hooks, *values):
    """Queue a job, and turn to it."""
    id = train.queue_job(hooks, *values)
    return gr.update(selected="jobs"), gr.update(choices=jobs.choices(), value=id)


def use_settings(id):
    """Put a job's settings into the fields of Train, and turn there."""
    return [gr.update(selected="train"), *train.refill(jobs.known(id))]
