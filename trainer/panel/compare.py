"""The tab Compare: teacher, classical solver and learned solver from the same noise."""

from functools import partial

import gradio as gr

from s4s_core.app.folders import DEMO, DEMO_SOLVER, find_solver, solver_files
from s4s_core.errors import ModelError, S4SError
from s4s_core.solver_file import load_unchanged

from ..models import PATHS
from ..rendering import PICTURES, STOPPED, compare_home, rendering_state, start, stop
from . import fields, markup
from .compat import on
from .seen import changed

CLASSICAL = {
    "the best one that the file knows": "auto",
    "DPM++ 2M, Karras-like times": "dpmpp:2:edm",
    "UniPC": "unipc-bh2:3:logsnr",
    "iPNDM": "ipndm:3:edm",
    "Euler": "euler:1:edm",
    "Euler, uniform times (flow models)": "euler:1:uniform",
}
_NONE = "Choose a solver and press Render: the three pictures appear here."


class CompareTab:
    """Builds the tab; `outputs` are what `look` returns values for."""

    def __init__(self, hooks=None):
        self.hooks = hooks
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                self.inputs = self._fields()
                with gr.Row():
                    self.render = gr.Button("Render", variant="primary", elem_id="s4s-render")
                    self.stop = gr.Button("Stop", interactive=False, min_width=80)
            with gr.Column(scale=3):
                self.status = gr.HTML("")
                self.pictures = gr.HTML(markup.empty(_NONE))
        self.outputs = [self.inputs["solver"], self.inputs["nfe"], self.status, self.pictures]
        self.outputs += [self.stop]

    def _fields(self):
        found = {"kind": fields.kind_field()}
        found["path"] = fields.path_field(found["kind"])
        found["solver"] = gr.Dropdown(
            [],
            label="Solver",
            info="A file of the tab Solvers, or the demo's own.",
            elem_id="s4s-compare-solver",
        )
        with gr.Row():
            found["nfe"] = gr.Dropdown(
                [], label="Steps", info="Model calls; those that the file has."
            )
            found["seed"] = gr.Number(0, precision=0, label="Seed", info="Of the noise.")
            found["count"] = gr.Slider(
                1, 16, value=4, step=1, label="Pictures", info="On one sheet."
            )
        found["prompts"] = gr.Textbox(
            "", lines=2, label="Prompt", info="What to show. Empty: the model's own prompts."
        )
        found["classical"] = gr.Dropdown(
            list(CLASSICAL),
            value=next(iter(CLASSICAL)),
            label="Compare with",
            info="The classical solver at the same number of model calls.",
        )
        with gr.Accordion("Advanced", open=False):
            found["negative"] = fields.negative_field()
            with gr.Row():
                found["cfg"] = fields.cfg_field()
                found["width"] = fields.side_field("Width")
                found["height"] = fields.side_field("Height")
            with gr.Row():
                found["dtype"] = fields.dtype_field()
                found["offload"] = fields.offload_field()
        return found

    def wire(self, look_again):
        """`look_again(event)` makes an event's end a look at everything."""
        start = partial(begin, self.hooks)
        look_again(on(self.render.click, start, list(self.inputs.values())))
        look_again(on(self.stop.click, lambda: stop(compare_home())))


NAMES = (
    *("kind", "path", "solver", "nfe", "seed", "count", "prompts", "classical", "negative"),
    *("cfg", "width", "height", "dtype", "offload"),
)
"""The fields in the order of CompareTab.inputs; a test holds the two together."""


def offered():
    """{name: path} of the solver files, and the demo's own behind them."""
    files = solver_files()
    return files if DEMO in files else files | {DEMO: DEMO_SOLVER}


def find(name):
    """The path of an offered solver; S4SError says what to do where it is none."""
    if not name:
        raise S4SError("Choose a solver first.")
    files = offered()
    return files[name] if name in files else find_solver(name)


def begin(hooks, *values):
    """Start to render in a process of its own."""
    options = arguments(dict(zip(NAMES, values, strict=True)))
    fields.make_room(hooks)
    start(compare_home(), options)


def arguments(given):
    """Arguments of the command `render`; everything is checked before a process starts."""
    prompt = " ".join((given["prompts"] or "").split())
    path = find(given["solver"])
    pack = load_unchanged(path)
    try:
        choice = fields.model_choice(given | {"prompts": prompt})
        nfe, seed, count = (int(given[key]) for key in ("nfe", "seed", "count"))
    except (TypeError, ValueError):
        raise ModelError("Steps, seed, pictures, CFG and size are numbers.") from None
    if nfe not in pack.nfes:
        raise S4SError(f"{path.name} has no table of {nfe} steps: choose one of its own.")
    if given["classical"] not in CLASSICAL or not 1 <= count <= 16 or not 0 <= seed < 2**63:
        raise S4SError("Choose 1 to 16 pictures, a seed from 0 on, and a solver of the list.")
    model = f"{choice.kind}:{choice.path}" if choice.kind in PATHS else choice.kind
    options = {
        "model": model,
        "solver": path.absolute(),
        "nfe": nfe,
        "seed": seed,
        "count": count,
        "classical": CLASSICAL[given["classical"]],
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


def look(seen, solver, nfe):
    """Values for CompareTab.outputs: what has changed since the last look."""
    names = list(offered())
    first = seen.get("named") == ((DEMO,), DEMO) and len(names) > 1  # nobody chose the demo's
    new = solver if solver in names and not first else names[0]
    moved = {} if new == solver else {"value": new}
    nfes = _nfes(new)
    kept = {} if nfe in nfes else {"value": nfes[len(nfes) // 2] if nfes else None}
    state = rendering_state(compare_home())
    running = bool(state and state["running"])
    return [
        changed(seen, "named", (tuple(names), new), lambda: gr.update(choices=names, **moved)),
        changed(seen, "steps", (new, *nfes), lambda: gr.update(choices=nfes, **kept)),
        changed(seen, "status", status(state)),
        changed(seen, "pictures", repr(state and state["done"]), lambda: pictures(state)),
        changed(seen, "stop", running, lambda: gr.update(interactive=running)),
    ]


def _nfes(name):
    try:
        return [str(n) for n in load_unchanged(find(name)).nfes]
    except S4SError:
        return []


def status(state):
    """How far the rendering is, and what differs from the solver's training."""
    if state is None:
        return ""
    if state["message"] == STOPPED:
        return markup.note(STOPPED)
    if state["error"]:
        return markup.note(state["error"], bad=True)
    warnings = "".join(map(markup.note, state.get("warnings", [])))  # older states have none
    if not state["running"]:
        return warnings
    bar = markup.bar(state["progress"], "running")
    return markup.card("Rendering", bar + markup.escape(state["message"])) + warnings


def pictures(state):
    """What is rendered so far: a slider from teacher to S4S, and all three side by side."""
    shown = {}
    for name in PICTURES if state else ():
        try:
            data = (compare_home() / f"{name}.png").read_bytes()
        except OSError:
            continue
        if name in state["done"]:
            shown[name] = (caption(state["done"][name]), markup.picture(data, "image/png", name))
    if not shown:
        return markup.empty(_NONE)
    top = ""
    if len(shown) == len(PICTURES):
        (_, left), (_, right) = shown["classical"], shown["solver"]
        texts = [state["done"][name] for name in ("classical", "solver")]
        top = markup.slider(left, right, *(f"{t['label']}, {t['nfe']} steps" for t in texts))
    return top + markup.figures(shown.values())


def caption(done):
    text = f"{done['label']}, {done['nfe']} steps"
    return f"{text}: error {done['rmse']:.4f}" if done["rmse"] else text
