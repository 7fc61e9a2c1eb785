"""One training run in the graph: what it learns from, its progress, and what comes of it."""

import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import comfy.model_management
import comfy.utils

from ..s4s_core import __version__, sample
from ..s4s_core.app import folders
from ..s4s_core.app.comfyui import identity
from ..s4s_core.candidates import candidates
from ..s4s_core.errors import TrainingError
from ..s4s_core.lock import Lock, holder
from ..s4s_core.names import EFFORTS
from ..s4s_core.table import SolverPack
from ..s4s_core.teacher import Pairs, draw_noise
from ..s4s_core.training.fit import STATE_VERSION, fit
from ..s4s_core.training.memory import Batcher
from ..s4s_core.training.task import Meter
from . import notices, sheets
from .graph import ancestors
from .wired import in_session, teacher_of
from .wiring import digest_of, model_name, pixels

JOB = "graph"
"""The id of training in the graph among the jobs."""

STATE, LOCK = "state.safetensors", "lock"
KEPT = 14 * 24 * 3600
"""Seconds for which a training that was interrupted can be gone on with."""

SHOWN, SHOW_SEED = 4, 900_000_001
_TICKS, _PREVIEW_SHARE, _PREVIEW_SIZE = 1000, 20, 1024
_LARGEST_SEED = 2**31
_MOST_NFE = 100

_running = {}


def running():
    """The view of the training that runs now, or None."""
    return dict(_running) or None


def whole_numbers(text):
    """Steps from a text such as 4,5,6; TrainingError says what is wrong with it."""
    parts = [part for part in re.split(r"[,;\s]+", str(text).strip()) if part]
    if not parts or not all(p.isascii() and p.isdigit() and 0 < int(p) <= _MOST_NFE for p in parts):
        raise TrainingError(
            f"The steps to learn must be whole numbers from 1 to {_MOST_NFE}, such as 5 or 4,5,6."
        )
    return tuple(sorted({int(part) for part in parts}))


def problem_with_nfes(text):
    """What is wrong with a text of steps, in a sentence; None if nothing is."""
    try:
        whole_numbers(text)
    except TrainingError as error:
        return str(error)
    return None


def encoded(clip, prompts):
    """One CONDITIONING for each line of the extra prompts."""
    lines = [line.strip() for line in prompts.splitlines() if line.strip()]
    if lines and clip is None:
        raise TrainingError("The extra prompts need a CLIP: connect the checkpoint's to this node.")
    return [clip.encode_from_tokens_scheduled(clip.tokenize(line)) for line in lines]


class TeacherChoice(NamedTuple):
    """A stock name, "auto" or a SAMPLER; a stock name, "auto" or SIGMAS; the steps."""

    sampler: object
    scheduler: object
    steps: int

    def plain(self):
        """What can be hashed of it; of a SAMPLER its function's name and options."""
        function = getattr(self.sampler, "sampler_function", None)
        options = getattr(self.sampler, "extra_options", None)
        name = self.sampler if function is None else getattr(function, "__qualname__", "")
        return [name, options, self.scheduler, self.steps]


@dataclass
class Lesson:
    """Everything that Train Solver was asked for."""

    model: object
    positives: list
    negative: list
    latent: dict
    cfg: float
    nfes: tuple
    effort: str
    teacher: TeacherChoice
    seed: int
    vae: object = None
    node: str | None = None
    graph: dict | None = None

    def learn(self):
        """(solver, preview IMAGE, report).

        The VAE decodes behind the session, never in it: loading it may push the model out.
        """
        try:
            wiring = self.model, self.positives, self.negative, self.cfg, self.latent, self.seed
            result, about, shown, folder = in_session(*wiring, self._work)
            rows = rows_of(self.model.model, shown, self.vae)
            about["thumbnail"] = sheets.data_uri(sheets.image_of(rows[-1].pictures[0], 96))
            pack = SolverPack(result.pack.tables, about | dict(result.pack.metadata))
            shutil.rmtree(folder, ignore_errors=True)
            tell_end(self.node, "done")
            return pack, sheets.as_image(sheets.sheet(rows)), report(result)
        except Exception as error:
            cancelled = isinstance(error, comfy.model_management.InterruptProcessingException)
            tell_end(self.node, "cancelled" if cancelled else "failed", str(error) or None)
            raise
        finally:
            _running.clear()
            comfy.model_management.soft_empty_cache()

    def key(self, base, shape):
        """A hash of all that the outcome depends on: the wiring, the weights, the settings."""
        graph = ancestors(self.graph, self.node) if self.graph and self.node else {}
        patches = {
            name: [(patch[0], patch[2]) for patch in entries]
            for name, entries in self.model.patches.items()
        }
        settings = [
            __version__,
            STATE_VERSION,
            self.cfg,
            self.nfes,
            self.effort,
            self.seed,
            list(shape),
        ]
        conditioning = [self.positives, self.negative]
        return digest_of(
            identity(base), patches, graph, settings, self.teacher.plain(), conditioning
        )[:32]

    def _work(self, model):
        """(result, header, {title: results to look at}, folder) of training on a ready model.

        The folder keeps the state and the teacher's results until the training is done.
        """
        key = self.key(model.base, model.shape)
        model.fingerprint = key
        teacher = teacher_of(model, *self.teacher)
        home = folders.data_home() / "comfyui"
        folder, about, show = home / key, self._about(model), Show(model, teacher)
        folder.mkdir(parents=True, exist_ok=True)
        with Lock(folder / LOCK) as lock:
            lock.take()
            forget_abandoned(home)
            result = fit(
                model,
                self.nfes,
                seed=self.seed % _LARGEST_SEED,
                budget=EFFORTS[self.effort],
                callback=Progress(self, show),
                teacher=teacher,
                state=folder / STATE,
                cache=folder,
                batch=model.batch(),
            )
        return result, about, show.final(result), folder

    def _about(self, model):
        """What the solver's header says that it was trained for."""
        name, size = model_name(model.base), pixels(model.base, model.shape, self.vae)
        about = {
            "name": f"{name} solver",
            "model": {
                "name": name,
                "hash": identity(model.base),
                "architecture": name,
                "prediction": model.base.model_type.name.lower(),
            },
            "cfg": [self.cfg, self.cfg],
        }
        return about | ({"resolution": list(size)} if size else {})


def forget_abandoned(home):
    """Remove what is left of trainings that nobody has gone on with; never of one that runs."""
    for folder in home.iterdir():
        with suppress(OSError):  # another ComfyUI may have just finished it
            if folder.stat().st_mtime < time.time() - KEPT and holder(folder / LOCK) is None:
                shutil.rmtree(folder, ignore_errors=True)


def rows_of(base, shown, vae=None):
    """Rows of a sheet from {title: results}."""
    return [sheets.Row(title, sheets.pictures_of(base, x, vae)) for title, x in shown.items()]


class Show:
    """A few runs from noise that training never sees, for people to look at."""

    def __init__(self, model, teacher):
        self.model, self.teacher = model, teacher
        self.workers = Batcher(model.batch(), Meter(model.denoise))
        x, cond = draw_noise(model, SHOWN, SHOW_SEED)
        self.pairs = Pairs(x, cond, self._run(Pairs(x, cond, x), teacher))

    def _run(self, pairs, solver):
        """Results of a table or a teacher, in batches that shrink, as training's, to fit memory."""

        def run(part):
            if callable(solver):
                return (solver(part.x, part.cond),)
            return (sample(self.model.denoise, part.x, solver, part.cond),)

        return self.workers.map(pairs, run)[0]

    def results(self, tables):
        """The teacher's results and those of each {title: table}."""
        shown = {f"teacher, {self.teacher.nfe} calls": self.pairs.target}
        return shown | {title: self._run(self.pairs, table) for title, table in tables.items()}

    def sheet(self, title, table):
        """A rough picture of the teacher's results and a table's."""
        return sheets.sheet(rows_of(self.model.base, self.results({title: table})))

    def final(self, result):
        """Teacher, the best classical solver and the learned one, at each NFE."""
        tables = {}
        for nfe, table in result.pack.tables.items():
            scores = result.scores[str(nfe)]
            for other in candidates(self.model, nfe):
                if other.label == scores["classical_name"]:
                    title = f"{other.label}, {nfe} calls: error {scores['classical']:.4f}"
                    tables[title] = other.table
            tables[f"S4S, {nfe} calls: error {scores['rmse']:.4f}"] = table
        return self.results(tables)


class Progress:
    """Listens to `fit`: progress bar, remaining time, a preview now and then, and the page."""

    def __init__(self, lesson, show):
        self.lesson, self.show = lesson, show
        self.bar = comfy.utils.ProgressBar(_TICKS, node_id=lesson.node)
        self.began, self.first = time.monotonic(), None
        self.image, self.next_image = None, 0.0

    def __call__(self, event):
        share, eta = self._share(event), None
        now = time.monotonic()
        if self.first is None:
            self.first, self.began = share, now
        elif share > self.first:
            eta = (now - self.began) / (share - self.first) * (1 - share)
        if event.table is not None and now >= self.next_image:
            title = f"S4S, {event.nfe} calls, so far"
            self.image = self.show.sheet(title, event.table)
            spent = time.monotonic() - now
            self.next_image = time.monotonic() + _PREVIEW_SHARE * spent
        self._tell(share, eta, event)

    def _share(self, event):
        """The share of all planned calls; drawing the teacher's pairs is a tenth."""
        if event.phase == "teacher":
            return 0.1 * event.step / max(event.total, 1)
        nfes = self.lesson.nfes
        return 0.1 + 0.9 * (nfes.index(event.nfe) + min(event.done, 1.0)) / len(nfes)

    def _tell(self, share, eta, event):
        if event.phase == "teacher":
            message = f"The teacher renders what to learn from: {event.step}/{event.total}"
        else:
            message = f"{event.nfe} steps: error {event.validation:.4f}"
        view = {
            "id": JOB,
            "name": f"Training at node {self.lesson.node}",
            "model": model_name(self.show.model.base),
            "nfes": list(self.lesson.nfes),
            "status": "running",
            "progress": share,
            "eta": eta,
            "message": message,
            "error": None,
            "exit_code": None,
            "result": None,
            "calls": event.calls,
            "created": "",
        }
        _running.update(view)
        preview = None if self.image is None else sheets.data_uri(self.image, 512)
        notices.send("s4s.training", view | {"preview": preview, "node": self.lesson.node})
        picture = None if self.image is None else ("JPEG", self.image, _PREVIEW_SIZE)
        self.bar.update_absolute(int(share * _TICKS), _TICKS, picture)


def tell_end(node, status, error=None):
    """Tell the page how a training that it heard of ended."""
    if _running:
        last = {"status": status, "eta": None, "error": error, "preview": None, "node": node}
        notices.send("s4s.training", dict(_running) | last)


def report(result):
    """What came of a training, in words."""
    lines = []
    for nfe, scores in result.scores.items():
        share = scores["rmse"] / scores["classical"] if scores["classical"] else 1.0
        lines.append(
            f"{nfe} steps: error to the teacher {scores['rmse']:.4f}, "
            f"{share:.0%} of the best classical solver's "
            f"({scores['classical_name']}: {scores['classical']:.4f})."
        )
    lines += result.log
    lines.append(f"{result.calls:,} model calls in all.")
    return "\n".join(lines)
