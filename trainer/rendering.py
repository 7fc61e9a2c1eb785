"""Renderings: teacher, classical solver and learned solver from the same noise, as pictures.

A rendering is a folder that a detached process works in (see s4s_core/app/detached.py). Its
state.json says how far it is; teacher.png, classical.png and solver.png appear one after another.
`start` renders in a new process, which outlives the caller; `rendering_state` reads its progress.
"""

import math
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from s4s_core.app.detached import LOG, STATE, ProcessFolder
from s4s_core.app.folders import data_home
from s4s_core.app.processes import end_tree, trainer_command
from s4s_core.app.progress import Count, Share
from s4s_core.atomic import sweep_folder
from s4s_core.errors import S4SError, short
from s4s_core.regular import remove_tree

if TYPE_CHECKING:
    import torch

    from s4s_core import SolverPack, SolverTable

    from .models import ModelChoice
    from .models.contract import TrainerModel

PICTURES = ("teacher", "classical", "solver")
STARTING, STOPPED = "Starting.", "Stopped."
START_SECONDS = 60
"""How long a process may take from its start to its lock."""

LONGEST_ARGUMENT = 8000
"""Characters of a prompt: Windows allows 32,767 for a whole command line."""

SMALLEST_SIDE = 512
"""Sheets of small pictures are enlarged to about this many pixels, with sharp pixels."""


@dataclass(frozen=True)
class RenderedPicture:
    """A finished picture; `rmse` is the error to the teacher, None if it is not finite."""

    label: str
    nfe: Count
    rmse: float | None


@dataclass(frozen=True)
class RenderingState:
    """What state.json holds; `done` are the pictures of PICTURES that are finished."""

    message: str
    progress: Share = 0.0
    error: str | None = None
    done: dict[str, RenderedPicture] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.progress >= 1 or self.message == STOPPED


# Seen from outside; no torch

_starting = threading.Lock()
_started: dict[Path, subprocess.Popen[bytes]] = {}
"""The newest process started for a folder: until it has the lock, nobody else knows of it."""


def compare_home() -> Path:
    """Return the folder of the newest comparison."""
    return data_home() / "compare"


def start(folder: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Render in a new process; `arguments` are those of the command `render`."""
    if any(len(each) > LONGEST_ARGUMENT or "\0" in each for each in arguments):
        raise S4SError(
            f"A prompt must have at most {LONGEST_ARGUMENT:,} characters, none of them NUL."
        )
    place = ProcessFolder(folder)
    with _starting:
        if rendering_state(folder)[1]:
            raise S4SError("A comparison is already being rendered. Wait for it or stop it.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_tree(folder / LOG)
            place.write_state(RenderingState(STARTING))
            process = place.start(trainer_command("render", *arguments, f"--out={folder}"))
        except OSError as error:
            raise S4SError(
                f"Could not render in {folder}: {error.strerror or error}. Make it a folder that "
                "can be written to."
            ) from error
        _started[folder] = process
    return process


def stop(folder: Path) -> None:
    """End the process that renders or is about to render into a folder, and record that."""
    place, process = ProcessFolder(folder), _started.pop(folder, None)
    pid = place.holder()
    if process is not None and process.poll() is None:
        end_tree(process.pid)
    if pid:
        place.stop(pid)
    state = _read(place)
    if state and not state.is_over:
        place.write_state(replace(state, message=STOPPED))


def rendering_state(folder: Path) -> tuple[RenderingState | None, bool]:
    """Return the state of a folder's rendering (None if there never was one), and whether it runs.

    If the process ended before it was done, the error says why.
    """
    place = ProcessFolder(folder)
    running = place.is_running()  # before reading: what ends meanwhile has written its last state
    state = _read(place)
    if state is None:
        return None, running
    running = running or (state.message == STARTING and _may_start(folder))
    if not running and not state.is_over:
        state = replace(state, error=place.death())
    return state, running


def _read(place: ProcessFolder) -> RenderingState | None:
    """Return a folder's state; a damaged one is that of a failed rendering."""
    try:
        return place.read_state(RenderingState)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        damage = f"Could not read {place.path / STATE}: {short(str(error), 200)}. Render again."
        return RenderingState("Failed.", error=damage)


def _may_start(folder: Path) -> bool:
    """May the process that was started for a folder still take its lock?"""
    process = _started.get(folder)
    if process is not None:
        return process.poll() is None
    try:
        age = time.time() - (folder / STATE).stat().st_mtime
    except OSError:
        return False
    return 0 <= age < START_SECONDS


# The process


def render(
    choice: "ModelChoice",
    pack: "SolverPack",
    folder: Path,
    nfe: int,
    seed: int = 0,
    count: int = 4,
    classical: str = "auto",
) -> list[str]:
    """Render the three pictures into a folder; errors are recorded there and raised.

    Return warnings about differences from the pack's training.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise S4SError(f"Could not make the folder {folder}: {error.strerror}.") from error
    with ProcessFolder(folder).lock() as lock:
        if not lock.take():
            raise S4SError(f"Another process is rendering into {folder}. Wait for it or stop it.")
        sweep_folder(folder)
        for name in PICTURES:
            remove_tree(folder / f"{name}.png")
        report = RenderingReport(folder)
        try:
            _render(choice, pack, report, nfe, seed, count, classical)
        except S4SError as error:
            report.write("Failed.", 0.0, error=str(error))
            raise
        return report.warnings


class RenderingReport:
    """Writes the state of a rendering."""

    def __init__(self, folder: Path) -> None:
        self.place = ProcessFolder(folder)
        self.done: dict[str, RenderedPicture] = {}
        self.warnings: list[str] = []

    def write(self, message: str, progress: float, error: str | None = None) -> None:
        state = RenderingState(message, progress, error, self.done, tuple(self.warnings))
        self.place.write_state(state)


def _render(
    choice: "ModelChoice",
    pack: "SolverPack",
    report: RenderingReport,
    nfe: int,
    seed: int,
    count: int,
    classical: str,
) -> None:
    from .comparison import check_fit, recorded_teacher
    from .models import open_model
    from .results import fresh_noise, sample_results

    if nfe not in pack.nfes:
        known = ", ".join(map(str, pack.nfes))
        raise S4SError(f"The solver has no table for {nfe} steps. Choose one of {known}.")
    report.write("Opening the model.", 0.0)
    model = open_model(choice)
    report.warnings = check_fit(pack, model)
    warn = report.warnings.append
    teacher = recorded_teacher(pack, model, warn)
    rival = classical_choice(model, pack, nfe, classical, teacher.ending, warn)
    tables = {"teacher": ("teacher", teacher), "classical": rival, "solver": ("S4S", pack[nfe])}
    total, before, target = 1 + sum(table.nfe for _, table in tables.values()), 0, None
    x, cond = fresh_noise(model, count, seed)
    for name, (label, table) in tables.items():

        def show(
            share: float, before: int = before, label: str = label, calls: int = table.nfe
        ) -> None:
            report.write(f"{label}, {calls} calls", (before + share * calls) / total)

        result = sample_results(model, table, x, cond, show)
        target = result if target is None else target
        save_sheet(model, result, report.place.path / f"{name}.png")
        error = float((result - target).square().mean().sqrt())
        report.done[name] = RenderedPicture(
            label, table.nfe, error if math.isfinite(error) else None
        )
        before += table.nfe
    report.write("Done.", 1.0)


def classical_choice(
    model: "TrainerModel",
    pack: "SolverPack",
    nfe: int,
    text: str,
    ending: float,
    warn: Callable[[str], object],
) -> "tuple[str, SolverTable]":
    """Return label and table of solver:order:schedule; "auto" is the best that the file names.

    If the file names one that cannot be made, warn and take UniPC.
    """
    from s4s_core.candidates import named_solver

    from .comparison import recorded_solver

    if text == "auto":
        scores = pack.metadata.get("scores", {}).get(str(nfe), {})
        name = scores.get("classical_name") if isinstance(scores, dict) else None
        try:
            candidate = recorded_solver(model, name, nfe, ending)
            return candidate.label, candidate.table
        except S4SError:
            if name is not None:
                warn("The classical solver that the solver file names cannot be used: UniPC is.")
        text = f"unipc-bh2:3:{'uniform' if model.space == 'flow' else 'edm'}"
    candidate = named_solver(model, text, nfe, ending)
    return candidate.label, candidate.table


def save_sheet(model: "TrainerModel", x: "torch.Tensor", path: Path) -> None:
    """Save results as a square sheet of pictures."""
    from PIL import Image

    from s4s_core.app.pictures import save_png, square

    from .comparison import picture_rows

    (row,) = picture_rows(model, [("", x)])
    image = square(row.pictures)
    factor = max(1, SMALLEST_SIDE // image.width)
    size = image.width * factor, image.height * factor
    save_png(path, image.resize(size, Image.Resampling.NEAREST))
