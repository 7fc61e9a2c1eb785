"""The tab Compare: teacher, classical solver and learned solver from the same noise."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from s4s_core.app.folders import DEMO, DEMO_SOLVER, find_solver, solver_files
from s4s_core.errors import S4SError
from s4s_core.regular import read_whole
from s4s_core.solver_file import load_unchanged

from .. import rendering
from ..models import PATHS
from ..rendering import PICTURES, STOPPED, RenderedPicture, RenderingState, compare_home
from . import PanelHost, fields, markup
from .compat import Shown, changed, changed_choices, on, shows

CLASSICAL = {
    "best one in the solver file": "auto",
    "DPM++ 2M, Karras-like schedule": "dpmpp:2:edm",
    "UniPC": "unipc-bh2:3:logsnr",
    "iPNDM": "ipndm:3:edm",
    "Euler": "euler:1:edm",
    "Euler, uniform schedule (flow models)": "euler:1:uniform",
}
_NONE = "Choose a solver and press Render. The three pictures appear here."

NAMES = (
    *("kind", "path", "solver", "nfe", "seed", "count", "prompts", "classical", "negative"),
    *("cfg", "width", "height", "dtype", "offload"),
)
"""The fields in the order of CompareTab.inputs."""


class CompareTab:
    """The tab's components; `refresh` returns updates for `outputs`."""

    def __init__(self, host: PanelHost | None = None) -> None:
        self.host = host
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                self.inputs = self._basic() | self._advanced()
                with gr.Row():
                    self.render = gr.Button("Render", variant="primary", elem_id="s4s-render")
                    self.stop = gr.Button("Stop", interactive=False, min_width=80)
            with gr.Column(scale=3):
                self.status = gr.HTML("")
                self.pictures = gr.HTML(markup.empty(_NONE))
        self.outputs = [self.inputs["solver"], self.inputs["nfe"], self.status, self.pictures]
        self.outputs += [self.stop]

    def _basic(self) -> dict[str, Any]:
        inputs = {"kind": fields.kind_field()}
        inputs["path"] = fields.path_field(inputs["kind"])
        inputs["solver"] = gr.Dropdown(
            [],
            label="Solver",
            info="A file from the tab Solvers, or the demo's solver.",
            elem_id="s4s-compare-solver",
        )
        with gr.Row():
            inputs["nfe"] = gr.Dropdown([], label="Steps", info="Step counts in the file.")
            inputs["seed"] = gr.Number(0, precision=0, label="Seed", info="Seed of the noise.")
            inputs["count"] = gr.Slider(
                1, 16, value=4, step=1, label="Pictures", info="How many per solver."
            )
        inputs["prompts"] = gr.Textbox(
            "", lines=2, label="Prompt", info="Leave empty to use the model's default prompts."
        )
        inputs["classical"] = gr.Dropdown(
            list(CLASSICAL),
            value=next(iter(CLASSICAL)),
            label="Compare with",
            info="A classical solver with the same number of steps.",
        )
        return inputs

    def _advanced(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        with gr.Accordion("Advanced", open=False):
            inputs["negative"] = fields.negative_field()
            with gr.Row():
                inputs["cfg"] = fields.cfg_field()
                inputs["width"] = fields.side_field("Width")
                inputs["height"] = fields.side_field("Height")
            with gr.Row():
                inputs["dtype"] = fields.dtype_field()
                inputs["offload"] = fields.offload_field()
        return inputs

    def listen(self, refresh_after: Callable[[Any], None]) -> None:
        """Connect the buttons; `refresh_after(event)` refreshes the page when an event is over."""
        start = partial(start_rendering, self.host)
        refresh_after(on(self.render.click, start, list(self.inputs.values())))
        refresh_after(on(self.stop.click, lambda: rendering.stop(compare_home())))


def offered_solvers() -> dict[str, Path]:
    """Return the solver files by name, and the demo's solver after them."""
    files = solver_files()
    return files if DEMO in files else files | {DEMO: DEMO_SOLVER}


def solver_path(name: Any) -> Path:
    """Return the path of an offered solver; raise S4SError if there is none of that name."""
    if not name:
        raise S4SError("Choose a solver first.")
    files = offered_solvers()
    return files[name] if name in files else find_solver(name)


def start_rendering(host: PanelHost | None, *values: Any) -> None:
    """Start the process that renders."""
    arguments = render_arguments(dict(zip(NAMES, values, strict=True)))
    fields.free_memory(host)
    rendering.start(compare_home(), arguments)


def render_arguments(given: Mapping[str, Any]) -> list[str]:
    """Check the values of the fields and return them as arguments of the command `render`."""
    prompt = " ".join(fields.text(given, "prompts").split())
    path = solver_path(fields.text(given, "solver"))
    pack = load_unchanged(path)
    choice = fields.model_choice({**given, "prompts": prompt})
    nfe, seed, count = (fields.number(given, key, int) for key in ("nfe", "seed", "count"))
    if nfe not in pack.nfes:
        raise S4SError(
            f"{path.name} has no table for that many steps. Choose one of its step counts."
        )
    classical = fields.text(given, "classical")
    if classical not in CLASSICAL:
        raise S4SError("Choose a classical solver from the list.")
    if not 1 <= count <= 16 or not 0 <= seed < 2**63:
        raise S4SError("Pictures must be 1 to 16, and the seed must be >= 0.")
    model = f"{choice.kind}:{choice.path}" if choice.kind in PATHS else choice.kind
    options = {
        "model": model,
        "solver": path.absolute(),
        "nfe": nfe,
        "seed": seed,
        "count": count,
        "classical": CLASSICAL[classical],
        "prompt": prompt,
        "negative": choice.negative,
        "cfg": choice.cfg,
        "width": choice.width,
        "height": choice.height,
        "dtype": choice.dtype,
        "host": choice.host,
    }
    flags = ["--offload"] if choice.offload else []
    return [*(f"--{name}={value}" for name, value in options.items()), *flags]


def refresh(shown: Shown, chosen: Any, nfe: Any) -> list[Any]:
    """Return updates for CompareTab.outputs."""
    files = offered_solvers()
    names = list(files)
    was_default = shows(shown, "compared", ((DEMO,), DEMO)) and len(names) > 1
    solver = chosen if chosen in names and not was_default else names[0]
    nfes = _step_counts(files[solver])
    steps = nfe if nfe in nfes else next(iter(nfes[len(nfes) // 2 :]), None)
    state, running = rendering.rendering_state(compare_home())
    done = state.done if state else {}
    return [
        changed_choices(shown, "compared", names, chosen, solver),
        changed_choices(shown, "steps", nfes, nfe, steps),
        changed(shown, "status", status_markup(state, running)),
        changed(shown, "pictures", repr(done), lambda: pictures_markup(done)),
        changed(shown, "stop", gr.update(interactive=running)),
    ]


def _step_counts(path: Path) -> list[str]:
    try:
        return [str(n) for n in load_unchanged(path).nfes]
    except S4SError:
        return []


def status_markup(state: RenderingState | None, running: bool) -> str:
    """Show how far the rendering is, and what differs from the solver's training."""
    if state is None:
        return ""
    if state.message == STOPPED:
        return markup.note(STOPPED)
    if state.error:
        return markup.note(state.error, bad=True)
    warnings = "".join(map(markup.note, state.warnings))
    if not running:
        return warnings
    bar = markup.bar(state.progress, "running")
    return markup.card("Rendering", bar + markup.hint(state.message)) + warnings


def pictures_markup(done: Mapping[str, RenderedPicture]) -> str:
    """Show the finished pictures: a slider from classical to S4S, and all three side by side."""
    images = {}
    for name in PICTURES:
        try:
            data = read_whole(compare_home() / f"{name}.png", markup.MOST_PICTURE)
        except OSError:
            continue
        if name in done:
            images[name] = markup.picture(data, name)
    if not images:
        return markup.empty(_NONE)
    titles = {name: f"{done[name].label}, {done[name].nfe} steps" for name in images}
    slider = ""
    if len(images) == len(PICTURES):
        pair = ("classical", "solver")
        slider = markup.slider(*(images[name] for name in pair), *(titles[name] for name in pair))
    errors = {name: done[name].rmse for name in images}
    captions = {
        name: f"{title}: error {errors[name]:.4f}" if errors[name] else title
        for name, title in titles.items()
    }
    return slider + markup.figures((captions[name], images[name]) for name in images)
