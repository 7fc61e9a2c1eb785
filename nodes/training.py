"""One training run in the graph: what it learns from, its progress, and its result."""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_management
import comfy.utils
import torch
from PIL import Image

from ..s4s_core import __version__
from ..s4s_core.app import folders, pictures
from ..s4s_core.app.comfyui import (
    CLIP,
    CONDITIONING,
    LATENT,
    MODEL,
    SAMPLER,
    VAE,
    BaseModel,
    as_image,
    identity,
    model_family,
    pictures_of,
    pixels_per_latent,
)
from ..s4s_core.app.estimate import DryRun, Estimate
from ..s4s_core.app.jobs import JobView
from ..s4s_core.app.plan import event_message
from ..s4s_core.app.progress import Throttle, TimeLeft, duration
from ..s4s_core.candidates import candidates
from ..s4s_core.errors import TrainingError
from ..s4s_core.lock import Lock, holder
from ..s4s_core.names import AUTO, EFFORTS, MEASURES
from ..s4s_core.objectives import chosen_objective, objective
from ..s4s_core.regular import remove_tree
from ..s4s_core.table import SolverPack, SolverTable
from ..s4s_core.teacher import Pairs, draw_noise
from ..s4s_core.training.fit import STATE_VERSION, Result, fit
from ..s4s_core.training.plan import CallPlan, plan_of
from ..s4s_core.training.settings import Goal, Settings
from ..s4s_core.training.state import RunState
from ..s4s_core.training.task import SEARCH, TEACHER, Event
from . import notices
from .session import HostTeacher, SessionModel, make_teacher, run_in_session

JOB = "graph"
"""The id of the training in the graph among the jobs."""

STATE, LOCK = "state.safetensors", "lock"
KEEP_SECONDS = 14 * 24 * 3600
"""How long an interrupted training can be resumed."""

PREVIEW_SAMPLES, PREVIEW_SEED = 4, 900_000_001
_TICKS, _PREVIEW_SIZE, _EVENT_PREVIEW_SIZE, _THUMBNAIL_SIZE = 1000, 1024, 512, 96
_LARGEST_SEED = 2**31

_running: JobView | None = None


def running() -> JobView | None:
    """Return the view of the training that is running now, or None."""
    return _running


def encode_prompts(clip: CLIP | None, prompts: str) -> list[CONDITIONING]:
    """Return one CONDITIONING for each line of the extra prompts."""
    lines = [line.strip() for line in prompts.splitlines() if line.strip()]
    if not lines:
        return []
    if clip is None:
        raise TrainingError("Extra prompts need a CLIP. Connect the checkpoint's CLIP to the node.")
    return [clip.encode_from_tokens_scheduled(clip.tokenize(line)) for line in lines]


class TeacherChoice(NamedTuple):
    """A stock name, "auto" or a SAMPLER; a stock name, "auto" or SIGMAS; the step count."""

    sampler: str | SAMPLER
    scheduler: str | torch.Tensor
    steps: int

    def plain(self) -> list[Any]:
        """Return what can be hashed; of a SAMPLER its function's name and its options."""
        function = getattr(self.sampler, "sampler_function", None)
        options = getattr(self.sampler, "extra_options", None)
        name = self.sampler if function is None else getattr(function, "__qualname__", "")
        return [name, options, self.scheduler, self.steps]


class _Trained(NamedTuple):
    """What a session leaves: the result, its report, the file's header, images by title, and the
    folder."""

    result: Result
    report: str
    about: dict[str, Any]
    images: dict[str, torch.Tensor]
    folder: Path


@dataclass
class TrainingRun:
    """A run of Train Solver with everything the node was given."""

    model: MODEL
    positives: list[CONDITIONING]
    negative: CONDITIONING
    latent: LATENT
    cfg: float
    nfes: tuple[int, ...]
    strengths: tuple[float, ...]
    effort: str
    teacher: TeacherChoice
    seed: int
    vae: VAE | None = None
    node: str | None = None
    graph: notices.Graph | None = None

    def run(self) -> tuple[SolverPack, torch.Tensor, str]:
        """Train, and return the solver, a preview IMAGE and a report.

        The VAE decodes after the session, never in it: loading it may push the model out of memory.
        """
        global _running
        try:
            wiring = self.model, self.positives, self.negative, self.cfg, self.latent, self.seed
            trained = run_in_session(*wiring, self._train)
            rows = _sheet_rows(self.model.model, trained.images, self.vae)
            first = pictures.image_of(rows[-1].pictures[0], _THUMBNAIL_SIZE)
            trained.about["thumbnail"] = pictures.data_uri(first, _THUMBNAIL_SIZE)
            pack = trained.result.pack
            pack = pack.described(trained.about | dict(pack.metadata))
            remove_tree(trained.folder)
            _send_end(self.node, "done")
            return pack, as_image(pictures.sheet(rows)), trained.report
        except Exception as error:
            cancelled = isinstance(error, comfy.model_management.InterruptProcessingException)
            _send_end(self.node, "cancelled" if cancelled else "failed", str(error) or None)
            raise
        finally:
            _running = None
            comfy.model_management.soft_empty_cache()

    def _train(self, model: SessionModel) -> _Trained:
        """Train on a ready model; the folder keeps the state and the teacher's results."""
        key = self._key(model.base, model.shape)
        model.fingerprint = key
        teacher = make_teacher(model, *self.teacher)
        budget, seed = EFFORTS[self.effort], self.seed % _LARGEST_SEED
        settings = Settings(nfes=self.nfes, strengths=self.strengths, seed=seed, budget=budget)
        reporter = ProgressReporter(settings, self.node, Previews(model))
        trial = reporter.prepare(teacher)
        home = folders.data_home() / "comfyui"
        folder = home / key
        folder.mkdir(parents=True, exist_ok=True)
        with Lock(folder / LOCK) as lock:
            lock.take()
            remove_abandoned(home)
            reporter.go_on(folder / STATE)
            result = fit(
                model,
                self.nfes,
                seed=seed,
                budget=budget,
                callback=reporter,
                teacher=teacher,
                state=folder / STATE,
                cache=folder,
                batch=trial.batch,
                strengths=self.strengths,
            )
        text = "\n".join([report(result), reporter.outcome(result)])
        return _Trained(result, text, self._about(model), reporter.previews.final(result), folder)

    def _key(self, base: BaseModel, shape: tuple[int, ...]) -> str:
        """Return a hash of everything the result depends on: wiring, weights and settings."""
        graph = notices.ancestors(self.graph, self.node) if self.graph and self.node else {}
        patches = {
            name: [(patch[0], patch[2]) for patch in entries]
            for name, entries in self.model.patches.items()
        }
        settings = [
            __version__,
            STATE_VERSION,
            self.cfg,
            self.nfes,
            self.strengths,
            self.effort,
            self.seed,
            list(shape),
        ]
        digest = hashlib.sha256()
        conditioning = [self.positives, self.negative]
        for value in (identity(base), patches, graph, settings, self.teacher.plain(), conditioning):
            _update(digest, value)
        return digest.hexdigest()[:32]

    def _about(self, model: SessionModel) -> dict[str, Any]:
        """Return what the solver file says it was trained for."""
        name, factor = model_family(model.base), pixels_per_latent(model.base, self.vae)
        about: dict[str, Any] = {
            "name": f"{name} solver",
            "model": {
                "name": name,
                "hash": identity(model.base),
                "architecture": name,
                "prediction": model.base.model_type.name.lower(),
            },
            "cfg": [self.cfg, self.cfg],
        }
        if factor is not None:
            about["resolution"] = [model.shape[-1] * factor, model.shape[-2] * factor]
        return about


def _update(digest: Any, value: object) -> None:
    """Add nested lists, dicts, tensors, numbers and texts to a hash; other objects by type."""
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {tuple(value.shape)} ".encode())
        digest.update(value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(f"key {key} ".encode())
            _update(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)} ".encode())
        for item in value:
            _update(digest, item)
    elif value is None or isinstance(value, str | int | float | bool):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    else:
        digest.update(f"object {type(value).__qualname__} ".encode())


def remove_abandoned(home: Path) -> None:
    """Remove what interrupted trainings left, after two weeks; never that of a running one."""
    for folder in home.iterdir():
        with suppress(OSError):  # another ComfyUI may have just finished it
            old = folder.stat().st_mtime < time.time() - KEEP_SECONDS
            if old and holder(folder / LOCK) is None:
                remove_tree(folder)


def _sheet_rows(
    base: BaseModel, images: Mapping[str, torch.Tensor], vae: VAE | None = None
) -> list[pictures.Row]:
    return [pictures.Row(title, pictures_of(base, x, vae)) for title, x in images.items()]


class Previews:
    """A few runs from noise that training never sees, for the user to look at.

    `teacher` must be set before the first one.
    """

    teacher: HostTeacher | SolverTable

    def __init__(self, model: SessionModel) -> None:
        self.model = model

    @cached_property
    def _pairs(self) -> Pairs:
        x, cond = draw_noise(self.model, PREVIEW_SAMPLES, PREVIEW_SEED)
        return Pairs(x, cond, self.model.run(self.teacher, x, cond))

    def _run(self, table: SolverTable) -> torch.Tensor:
        return self.model.run(table, self._pairs.x, self._pairs.cond)

    def results(self, tables: Mapping[str, SolverTable]) -> dict[str, torch.Tensor]:
        """Return the teacher's results and those of each table, by title."""
        titled = {f"teacher, {self.teacher.nfe} calls": self._pairs.target}
        return titled | {title: self._run(table) for title, table in tables.items()}

    def sheet(self, title: str, table: SolverTable) -> Image.Image:
        """Draw a rough preview of the teacher's results and a table's."""
        return pictures.sheet(_sheet_rows(self.model.base, self.results({title: table})))

    def final(self, result: Result) -> dict[str, torch.Tensor]:
        """Return results of the teacher, the best classical solvers and the learned tables."""
        if isinstance(result.teacher, SolverTable):
            self.teacher = result.teacher  # a run that was finished before had no events
        tables = {}
        for nfe, table in result.pack.tables.items():
            scores = result.scores[str(nfe)]
            for other in candidates(self.model, nfe):
                if other.label == scores.get("classical_name"):
                    title = f"{other.label}, {nfe} calls: RMSE {scores['classical']:.4f}"
                    tables[title] = other.table
            tables[f"S4S, {nfe} calls: RMSE {scores['rmse']:.4f}"] = table
        return self.results(tables)


class ProgressReporter:
    """A callback of `fit`: updates the progress bar, the preview and the page."""

    plan: CallPlan
    estimate: Estimate | None = None

    def __init__(self, settings: Settings, node: str | None, previews: Previews) -> None:
        self.settings, self.node, self.previews = settings, node, previews
        self.bar = comfy.utils.ProgressBar(_TICKS, node_id=node)
        self.time_left, self.throttle = TimeLeft(), Throttle()
        self.image: Image.Image | None = None

    def prepare(self, teacher: HostTeacher | int) -> DryRun:
        """Check a teacher before `fit` is called with it, and say what training will take.

        A number of calls is a teacher that `fit` will choose.
        """
        if isinstance(teacher, HostTeacher):
            self._report("Checking the teacher")
            teacher.require_deterministic()
            self.previews.teacher = teacher
        self.plan = plan_of(self.settings, teacher)
        self._report("Measuring the model")
        model = self.previews.model
        trial = DryRun(model, model.batch, objective(chosen_objective(AUTO, model.shape)))
        seconds, memory = trial.seconds(self.plan), model.memory(trial.batch)
        self.estimate = Estimate(seconds, memory, self.plan.total)
        notices.show_on_node(self.node, self.estimate.sentence)
        self._report("Starting")
        return trial

    def outcome(self, result: Result) -> str:
        """Repeat the estimate, beside what it came to."""
        assert self.estimate is not None
        took = duration(self.time_left.spent)
        return f"{self.estimate.sentence} It came to {result.calls:,} calls; this run took {took}."

    def go_on(self, state: Path) -> None:
        """Begin with what a saved run has done, if there is one."""
        saved = RunState.read(state)
        if saved is not None:
            self.time_left.share = self.plan.saved_share(saved)

    def __call__(self, event: Event) -> None:
        seconds = self.time_left.update(self.plan.share(event))
        if event.phase == TEACHER:
            self.previews.teacher = event.table or self.previews.teacher
        elif event.table is not None and event.strength is None and self.throttle.ready():
            began = time.monotonic()
            title = "best classical solver" if event.phase == SEARCH else "S4S"
            self.image = self.previews.sheet(f"{title}, {event.nfe} calls, so far", event.table)
            self.throttle.took(time.monotonic() - began)
        self._report(event_message(event), self.time_left.share, seconds, event.calls)

    def _report(
        self, message: str, share: float = 0.0, seconds: float | None = None, calls: int = 0
    ) -> None:
        global _running
        _running = JobView(
            id=JOB,
            name=f"Training at node {self.node}",
            model=model_family(self.previews.model.base),
            nfes=list(self.settings.nfes),
            status="running",
            progress=share,
            eta=seconds,
            message=message,
            calls=calls,
            estimate=self.estimate.sentence if self.estimate else "",
        )
        image = self.image
        preview = None if image is None else pictures.data_uri(image, _EVENT_PREVIEW_SIZE)
        _send(_running, self.node, preview)
        shown = None if image is None else ("JPEG", image, _PREVIEW_SIZE)
        self.bar.update_absolute(int(share * _TICKS), _TICKS, shown)


def _send(view: JobView, node: str | None, preview: str | None) -> None:
    notices.send("s4s.training", view.plain() | {"preview": preview, "node": node})


def _send_end(node: str | None, status: str, error: str | None = None) -> None:
    """Tell the page how a training that it has seen running ended."""
    if _running is not None:
        _send(replace(_running, status=status, eta=None, error=error), node, None)


def report(result: Result) -> str:
    """Describe the result of a training."""
    lines = [
        f"{Goal(table.nfe, result.scores[name].get('strength')).title}: "
        f"{_scores_text(result.scores[name])}."
        for name, table in result.pack.named.items()
    ]
    lines.append("Errors to the teacher on new noise; in brackets the best of classical solvers.")
    return "\n".join(lines + result.log)


def _scores_text(scores: Mapping[str, Any]) -> str:
    """Describe one step count's scores, each beside the best classical solver's if it is known."""
    parts = []
    for ours, (title, theirs) in MEASURES.items():
        if ours in scores:
            best = f" ({scores[theirs]:.4f})" if theirs in scores else ""
            parts.append(f"{title} {scores[ours]:.4f}{best}")
    return ", ".join(parts)
