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

from s4s_core.app.folders import data_home
from s4s_core.app.processes import end_tree, start_detached, trainer_command
from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError
from s4s_core.lock import Lock, holder

STATE, LOCK, LOG = "state.json", "lock", "log.txt"
PICTURES = ("teacher", "classical", "solver")
STARTING, STOPPED = "Starting.", "Stopped."
START_SECONDS = 60
"""How long a process may take from its start to its lock."""

STOP_SECONDS = 5
"""How long a process that was ended may keep its lock."""

SMALLEST_SIDE = 512
"""Sheets of small pictures are enlarged to about this many pixels, each pixel kept sharp."""


# Seen from outside; no torch

_started = {}
"""The newest process that `start` has started for a folder; until it has the lock, only we know."""


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
    _write(folder, _state(STARTING))
    (folder / LOG).write_bytes(b"")
    process = start_detached(trainer_command("render", *arguments, f"--out={folder}"), folder / LOG)
    _started[folder] = process
    return process


def stop(folder):
    """End the process that renders into a folder, if one does or is about to, and note it."""
    process, pid = _started.pop(folder, None), holder(folder / LOCK)
    if process is not None and process.poll() is None:
        end_tree(process.pid)
    if pid:
        end_tree(pid)
    deadline = time.monotonic() + STOP_SECONDS
    while is_rendering(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    state = _read(folder)
    if state and state["error"] is None and state["progress"] < 1:
        _write(folder, state | {"message": STOPPED})


def look(folder):
    """The state of a folder's rendering with "running", or None where there never was one.

    A process that ended before it was done leaves the end of its log as the error.
    """
    running = is_rendering(folder)  # asked first: what ends meanwhile has written its last state
    state = _read(folder)
    if state is None:
        return None
    running = running or (state["message"] == STARTING and _age(folder) < START_SECONDS)
    over = state["error"] is not None or state["progress"] >= 1 or state["message"] == STOPPED
    if not running and not over:
        state["error"] = _last_words(folder)
    return state | {"running": running}


def _read(folder):
    try:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(folder, state):
    write_atomic(folder / STATE, json.dumps(state).encode())


def _age(folder):
    """Seconds since a folder's state was written."""
    return time.time() - (folder / STATE).stat().st_mtime


def _last_words(folder):
    try:
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return "The rendering broke off without a word."
    reason = said[-1].removeprefix("error: ")
    return reason if reason != said[-1] else f"The rendering broke off; its last words: {reason}"


def _state(message, progress=0.0, **facts):
    told = {"message": message, "progress": progress, "error": None, "done": {}, "warnings": []}
    return told | facts


# The process


def render(choice, pack, folder, nfe, seed=0, count=4, classical="auto"):
    """Render the three and tell of it in `folder`; errors are told there too, and raised.

    Returns sentences about what differs from the pack's training.
    """
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
        return teller.facts["warnings"]


class Teller:
    """Writes state.json."""

    def __init__(self, folder, **facts):
        self.folder, self.facts = folder, facts
        self.done = {}

    def tell(self, message, progress, error=None):
        state = _state(message, progress, **self.facts) | {"done": self.done, "error": error}
        _write(self.folder, state)


def _render(choice, pack, teller, nfe, seed, count, classical):
    from .comparison import check_fit, fresh_noise, own_teacher
    from .models import open_model
    from .pictures import results

    if nfe not in pack.nfes:
        known = ", ".join(map(str, pack.nfes))
        raise S4SError(f"The solver has no table of {nfe} calls: choose one of {known}.")
    teller.tell("Opening the model.", 0.0)
    model = open_model(choice)
    teller.facts["warnings"] = check_fit(pack, model)
    teacher = own_teacher(pack, model)
    label, table = classical_choice(model, pack, nfe, classical, teacher.ending)
    tables = {
        "teacher": ("teacher", teacher),
        "classical": (label, table),
        "solver": ("S4S", pack[nfe]),
    }
    total, before, target = 1 + sum(table.nfe for _, table in tables.values()), 0, None
    x, cond = fresh_noise(model, count, seed)
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


def classical_choice(model, pack, nfe, text, ending):
    """(label, table) of solver:order:schedule; of "auto", the best one that the file knows of."""
    from s4s_core.candidates import named_solver

    if text == "auto":
        scores = pack.metadata.get("scores", {}).get(str(nfe), {})
        name = scores.get("classical_name") if isinstance(scores, dict) else None
        found = re.fullmatch(r"([a-z0-9-]+)[ :](\d)(?:, |:)([a-z]+)", str(name))
        usual = f"unipc-bh2:3:{'uniform' if model.space == 'flow' else 'edm'}"
        text = ":".join(found.groups()) if found else usual
    candidate = named_solver(model, text, nfe, ending)
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
