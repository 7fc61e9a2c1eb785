"""Teacher, classical solver and learned solver from the same noise, as pictures in a folder.

The folder holds one rendering, the newest:
    state.json                                  how far it is and what was asked for
    teacher.png, classical.png, solver.png      written one after the other
    lock                                        held by the process that renders
    log.txt                                     what that process printed
`start` renders in a process of its own, which outlives the caller; `look` shows how far it is.
"""

import json
import re
import time

from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError
from s4s_core.folders import data_home
from s4s_core.processes import Lock, end_tree, holder, start_detached

from .starting import own_command

STATE, LOCK, LOG = "state.json", "lock", "log.txt"
PICTURES = ("teacher", "classical", "solver")
STARTING = "Starting."
START_SECONDS = 60
"""How long a process may take from its start to its lock."""

SMALLEST_SIDE = 512
"""Sheets of small pictures are enlarged to about this many pixels, each pixel kept sharp."""


# Seen from outside; no torch


def compare_home():
    """The folder of the newest comparison."""
    return data_home() / "compare"


def is_rendering(folder):
    return holder(folder / LOCK) is not None


def start(folder, arguments):
    """Render in a process of its own: `arguments` are those of the command `render`."""
    if is_rendering(folder):
        raise S4SError("A comparison is being rendered: wait for it, or stop it.")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE, json.dumps(_state(STARTING)).encode())
    (folder / LOG).write_bytes(b"")
    return start_detached(own_command("render", *arguments, f"--out={folder}"), folder / LOG)


def stop(folder):
    """End the process that renders into a folder, if one does."""
    pid = holder(folder / LOCK)
    if pid:
        end_tree(pid)


def look(folder):
    """The state of a folder's rendering with "running", or None where there never was one.

    A process that ended without a word leaves the end of its log as the error.
    """
    running = is_rendering(folder)  # asked first: what ends meanwhile has written its last state
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        age = time.time() - (folder / STATE).stat().st_mtime
    except (OSError, ValueError):
        return None
    running = running or (state["message"] == STARTING and age < START_SECONDS)
    if not running and state["error"] is None and state["progress"] < 1:
        state["error"] = _last_words(folder)
    return state | {"running": running}


def _last_words(folder):
    try:
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else "The rendering was stopped before it was done."


def _state(message, progress=0.0, **facts):
    return {"message": message, "progress": progress, "error": None, "done": {}, **facts}


# The process


def render(choice, pack, folder, nfe, seed=0, count=4, classical="auto"):
    """Render the three and tell of it in `folder`; errors are told there too, and raised."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise S4SError(f"{folder} cannot be rendered into: {error.strerror}.") from error
    with Lock(folder / LOCK) as lock:
        if not lock.take():
            raise S4SError(f"Another process renders into {folder}: wait for it, or stop it.")
        for name in PICTURES:
            (folder / f"{name}.png").unlink(missing_ok=True)
        teller = Teller(folder, nfe=nfe, seed=seed, model=choice.label)
        try:
            _render(choice, pack, teller, nfe, seed, count, classical)
        except S4SError as error:
            teller.tell("Failed.", 0.0, error=str(error))
            raise


class Teller:
    """Writes state.json."""

    def __init__(self, folder, **facts):
        self.folder, self.facts = folder, facts
        self.done = {}

    def tell(self, message, progress, error=None):
        state = _state(message, progress, **self.facts) | {"done": self.done, "error": error}
        write_atomic(self.folder / STATE, json.dumps(state).encode())


def _render(choice, pack, teller, nfe, seed, count, classical):
    from s4s_core.hosting import check_space
    from s4s_core.teacher import default_teacher, draw_noise

    from .models import open_model
    from .pictures import results

    if nfe not in pack.nfes:
        known = ", ".join(map(str, pack.nfes))
        raise S4SError(f"The solver has no table of {nfe} calls: choose one of {known}.")
    teller.tell("Opening the model.", 0.0)
    model = open_model(choice)
    check_space(pack, model.space)
    label, table = classical_choice(model, pack, nfe, classical)
    tables = {
        "teacher": ("teacher", default_teacher(model)),
        "classical": (label, table),
        "solver": ("S4S", pack[nfe]),
    }
    total, before, target = 1 + sum(table.nfe for _, table in tables.values()), 0, None
    x, cond = draw_noise(model, count, seed)
    for name, (label, table) in tables.items():

        def show(share, before=before, label=label, calls=table.nfe):
            teller.tell(f"{label}, {calls} calls", (before + share * calls) / total)

        result = results(model, table, x, cond, show)
        target = result if target is None else target
        save_sheet(model, result, teller.folder / f"{name}.png")
        error = float((result - target).square().mean().sqrt())
        teller.done[name] = {"label": label, "nfe": table.nfe, "rmse": error}
        before += table.nfe
    teller.tell("Done.", 1.0)


def classical_choice(model, pack, nfe, text):
    """(label, table) of solver:order:schedule; of "auto", the best one that the file knows of."""
    from s4s_core.training.starts import named_start

    if text == "auto":
        scores = pack.metadata.get("scores", {}).get(str(nfe), {})
        name = scores.get("classical_name") if isinstance(scores, dict) else None
        found = re.fullmatch(r"([a-z0-9-]+)[ :](\d)(?:, |:)([a-z]+)", str(name))
        usual = f"unipc-bh2:3:{'uniform' if model.space == 'flow' else 'edm'}"
        text = ":".join(found.groups()) if found else usual
    candidate = named_start(model, text, nfe, 0.0)
    return candidate.label, candidate.table


def save_sheet(model, x, path):
    """Results as one PNG: a square sheet of pictures."""
    from PIL import Image

    from .pictures import pictures, save_png, to_pixels

    shown = pictures(model, x)
    if shown is None:
        raise S4SError(f"The model '{model.name}' makes nothing that can be shown.")
    pixels = to_pixels(shown)
    height, width = pixels.shape[1:3]
    columns = next(n for n in range(1, len(pixels) + 1) if n * n >= len(pixels))
    rows = -(-len(pixels) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for number, picture in enumerate(pixels):
        place = (number % columns * width, number // columns * height)
        sheet.paste(Image.fromarray(picture), place)
    factor = max(1, SMALLEST_SIDE // sheet.width)
    save_png(path, sheet.resize((sheet.width * factor, sheet.height * factor), Image.NEAREST))
