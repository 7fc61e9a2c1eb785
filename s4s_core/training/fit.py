"""`fit`: distil a model's teacher into a pack of solver tables."""

import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from ..candidates import candidates, check_start, distinct, named_start, ranked_starts
from ..errors import ObjectiveError, TrainingDiverged, TrainingError
from ..objectives import objective as find_objective
from ..schedules.gits import Costs, gits_costs
from ..table import SolverPack, SolverTable
from ..teacher import default_teacher, draw_pairs
from . import gauss_newton
from .distributed import rank_and_world
from .gradient import Descent
from .memory import Workers, in_a_sentence
from .parameters import Parameters, as_multistep
from .settings import Settings
from .state import load_state, save_state, writing
from .student import Student
from .task import Event, Meter, Task, check_model

# Noise of training, validation and held-out pairs never meets: each set has a seed of its own.
_SETS = {"train": 1, "validation": 2, "held_out": 3}
_SEED_STRIDE = 1_000_003


@dataclass
class Result:
    """A trained pack, the course of its training, and its scores on held-out noise."""

    pack: SolverPack
    history: dict
    scores: dict
    calls: int
    log: list = field(default_factory=list)


def fit(
    model,
    nfe=5,
    method="gauss-newton",
    seed=0,
    budget=None,
    callback=None,
    *,
    teacher=None,
    start=None,
    decode=None,
    objective=None,
    cache=None,
    state=None,
    cancelled=None,
    **options,
):
    """Train solver tables for `model` at one or several NFEs and return a Result.

    teacher: a table, or a callable (x, cond) -> result; UniPC at 20 calls by default.
    start: a SolverTable to begin from, instead of `init` ("auto" or solver:order:schedule).
    budget: model calls per NFE; the teacher, the search for a start and scoring come on top.
    callback gets an Event after every step.
    state: a file that the run is saved to and resumed from, by one process at a time.
    cache: a folder for teacher results.
    cancelled: a function asked between model calls; a true answer raises TrainingCancelled.
    Other options are the fields of Settings. On held-out noise the result is never worse, by the
    loss that was trained, than its start, nor than any of the eight classical solvers that were
    best in the search for one. Only where there was a search do scores speak of classical solvers.
    """
    if isinstance(objective, str):
        options["objective"], objective = objective, None
    nfes = (nfe,) if isinstance(nfe, int) else tuple(sorted(set(nfe)))
    chosen = {"method": method, "nfes": nfes, "seed": seed, "budget": budget}
    settings = Settings.of(options | chosen)
    teacher = teacher or default_teacher(model, ending=settings.ending)
    name = settings.objective
    if name.startswith("lpips") and decode is None and model.shape[0] != 3:
        raise ObjectiveError(
            f"The objective '{name}' compares pictures, and these are latents: give fit a `decode` "
            "that makes pictures of them, or use the objective 'l2'."
        )
    goal = objective or find_objective(name, decode)
    alone = writing(state) if state and rank_and_world()[0] == 0 else nullcontext()
    with alone, in_a_sentence():
        run = Run(model, settings, teacher, goal, start, callback, cache, state, cancelled)
        return run.result()


class Run:
    """One call of `fit`."""

    def __init__(self, model, settings, teacher, goal, start, callback, cache, path, cancelled):
        self.model, self.settings, self.teacher, self.goal = model, settings, teacher, goal
        self.start, self.callback, self.path, self.log = start, callback, path, []
        if settings.method == "gauss-newton" and not hasattr(goal, "embed"):
            raise TrainingError(
                f"gauss-newton cannot fit the objective '{goal.name}': use l2 or lpips."
            )
        if start is None and settings.init != "auto":
            for nfe in settings.nfes:
                check_start(model, settings.init, nfe, settings.ending)  # a bad name fails at once
        identity = {
            "version": STATE_VERSION,
            "settings": settings.plain(),
            "model": getattr(model, "fingerprint", None),
            "objective": goal.name,
            "teacher": getattr(teacher, "digest", getattr(teacher, "key", None)),
            "start": start and start.digest,
        }
        self.state = load_state(path, identity) if path else {"identity": identity}
        self.meter = Meter(model.denoise, cancelled, self.state.get("calls", 0))
        self.workers = Workers(settings.batch, self.meter)
        free = Meter(model.denoise, cancelled)
        seed, counts = settings.seed * _SEED_STRIDE, vars(settings) | {"train": settings.samples}

        total, drawn = sum(counts[name] for name in _SETS), 0

        def draw(name, batch):
            tell = partial(self._tell_drawn, drawn, total)
            number = seed + _SETS[name]
            return draw_pairs(model, teacher, counts[name], number, batch, cache, free, tell)

        self.pairs = {}
        for name in _SETS:
            self.pairs[name] = self.workers.fitting(partial(draw, name))
            drawn += counts[name]
        if "calls" not in self.state:
            self.workers.fitting(lambda batch: check_model(model, self.pairs["train"]))
            per_pair = (
                teacher.nfe if isinstance(teacher, SolverTable) else getattr(teacher, "nfe", 0)
            )
            self.meter.calls = per_pair * sum(len(p) for p in self.pairs.values())
            self.state.update(calls=self.meter.calls, nfes={}, seed=settings.seed)

    def _tell_drawn(self, before, total, count):
        """Tell the listener how many teacher pairs are drawn."""
        if self.callback is not None and rank_and_world()[0] == 0:
            self.callback(Event("teacher", None, before + count, total, calls=self.meter.calls))

    def save(self):
        """Save the run, if it has a file; only in the first process."""
        self.state["calls"] = self.meter.calls
        if self.path and rank_and_world()[0] == 0:
            save_state(self.path, self.state)

    def result(self):
        """Train every NFE that is not trained yet, score, and pack."""
        tables, history, scores = {}, {}, {}
        for nfe in self.settings.nfes:
            part = self.state["nfes"].setdefault(str(nfe), {})
            tables[nfe] = self._train(nfe, part)
            history[nfe], scores[str(nfe)] = part["history"], part["scores"]
            self.log += part["log"]
        about = {
            "training": _training_facts(self.settings, self.goal, self.meter.calls),
            "teacher": _teacher_facts(self.model, self.teacher),
            "scores": scores,
        }
        return Result(SolverPack(tables, about), history, scores, self.meter.calls, self.log)

    # One NFE

    def _train(self, nfe, part):
        """The trained table of one NFE; `part` is its share of the state."""
        ranked = self._ranked(nfe, part)
        task = Task(
            self.model,
            self.meter,
            self.goal,
            self.pairs["train"],
            self.pairs["validation"],
            nfe,
            self.settings.budget or BUDGETS.get(self.settings.method),
            self.workers,
            self.settings.central,
            self.callback,
            self.save,
            part.setdefault("first_calls", self.meter.calls),
            path=self.path,
        )
        if self.settings.method == "gauss-newton":
            with torch.inference_mode():
                start, table = self._gauss_newton(task, ranked, part)
        else:
            start, table = ranked[0], self._descend(task, ranked[0], part)
        table = self._guard(task, part, start, table, ranked)
        self.save()
        return table

    def _ranked(self, nfe, part):
        """Starting candidates, best first; ranked once, then read from the state."""
        settings = self.settings
        if self.start is not None:
            if self.start.nfe != nfe:
                raise TrainingError(f"The start has {self.start.nfe} calls, {nfe} are asked for.")
            return [_Given(self.start)]
        if settings.init != "auto":
            options = {"costs": self._costs()} if settings.init.endswith(":gits") else {}
            return [named_start(self.model, settings.init, nfe, settings.ending, **options)]
        if "ranked" not in part:
            pairs = self.pairs["train"][:16]
            ranked = self.workers.fitting(
                partial(ranked_starts, self.model, self.meter, pairs, nfe, settings.ending)
            )
            part["ranked"] = [[c.solver, c.order, c.schedule] for _, c in ranked]
        found = {
            (c.solver, c.order, c.schedule): c for c in candidates(self.model, nfe, settings.ending)
        }
        return [found[tuple(key)] for key in part["ranked"]]

    def _costs(self):
        """The costs that gits needs; measured once, then read from the state."""
        if "costs" not in self.state:
            low = self.settings.ending or self.model.sigma_min
            self.state["costs"] = self.workers.fitting(
                lambda batch: gits_costs(self.model, low, batch=batch, denoise=self.meter)
            )
            self.save()
        return Costs(*self.state["costs"])

    def _gauss_newton(self, task, ranked, part):
        """Probe the best starts, then finish them, the most promising first, while budget lasts.

        One that diverges is trained no further; the best table that it had stays in the contest.
        """
        settings = self.settings
        chosen = distinct([(0, c) for c in ranked], settings.starts)
        if "scale" not in part:
            part["scale"] = _scale(task, chosen)
        task.scale = part["scale"]
        limits = float(self.model.sigma_min), float(self.model.sigma_max)
        runs = part.setdefault("runs", [{} for _ in chosen])
        parameters = [
            Parameters.of(
                as_multistep(c.table),
                limits,
                settings.coefficients,
                settings.times,
                settings.fixed,
                settings.consistent,
            )
            for c in chosen
        ]
        for each, run in zip(parameters, runs, strict=True):
            if "best" in run:
                task.remember(run["validation"] ** 0.5, each.at(run["best"]))

        def refine(k, iterations):
            self._refine(task, chosen[k], parameters[k], k, part, iterations)

        if "order" not in part:
            for k in range(len(runs)):
                refine(k, PROBE_ITERATIONS)
            begun = [k for k, run in enumerate(runs) if "best" in run]
            part["order"] = sorted(begun, key=lambda k: runs[k]["validation"])
        for k in part["order"]:
            refine(k, MAX_ITERATIONS)
        best = min(part["order"], key=lambda k: runs[k]["validation"])
        part["history"] = runs[best]["history"]
        return chosen[best], parameters[best].at(runs[best]["best"])

    def _refine(self, task, start, parameters, number, part, iterations):
        """Train one of the starts; TrainingDiverged only if all of them have diverged."""
        runs = part["runs"]
        if "diverged" in runs[number]:
            return
        try:
            gauss_newton.refine(task, parameters, runs[number], iterations=iterations)
        except TrainingDiverged:
            runs[number]["diverged"] = True
            if all("diverged" in run for run in runs):
                raise
            part.setdefault("log", []).append(
                f"NFE {task.nfe}: training from {start.label} was given up, because its results "
                "are not finite."
            )

    def _descend(self, task, candidate, part):
        """Train by gradient from the best start."""
        settings = self.settings
        student = Student(
            self.model,
            candidate.table,
            settings.domain,
            settings.fixed,
            settings.consistent,
            self._recomputed(candidate),
        )
        state = part.setdefault("descent", {"seed": settings.seed})
        descent = Descent(
            task,
            student,
            settings.method,
            state,
            rate=settings.rate,
            relax=settings.relax,
            epochs=settings.epochs,
            rematerialise=settings.rematerialise,
            autocast=settings.autocast,
        )
        descent.run()
        part["history"] = state["history"]
        return student.at(state["best"], descent.moves_times)

    def _recomputed(self, candidate):
        """(solver, order) of the coefficients that follow the times, or None."""
        method, follow = self.settings.method, self.settings.follow
        if method != "ld3" and not follow:
            return None
        if isinstance(candidate, _Given):
            what = "ld3" if method == "ld3" else "follow"
            raise TrainingError(f"{what} recomputes a classical solver: start from one by name.")
        if follow and follow != f"{candidate.solver}:{candidate.order}":
            raise TrainingError(
                f"The coefficients cannot follow {follow} from a start of {candidate.label}: "
                f"name a start such as {follow}:edm."
            )
        return candidate.solver, candidate.order

    def _guard(self, task, part, start, table, ranked):
        """Score on held-out noise; the best classical start comes back where training lost to it.

        Better or worse is a matter of the loss that was trained; the scores are errors to the
        teacher: of the result, of the start, and after a search the least of all that were found.
        """
        if "scores" not in part:
            trained, marks = self._mark(task, table), [self._mark(task, c.table) for c in ranked]
            if math.inf in (trained.loss, min(mark.loss for mark in marks)):
                raise TrainingDiverged(
                    f"The results of {task.nfe} NFE on held-out noise are not finite: "
                    "try another precision."
                )
            best = min(range(len(ranked)), key=lambda k: marks[k].loss)
            log, part["kept"] = part.setdefault("log", []), None
            if trained.loss > marks[best].loss:
                log.append(
                    f"NFE {task.nfe}: training did not help on held-out noise ({trained.rmse:.4g} "
                    f"against {marks[best].rmse:.4g}); {ranked[best].label} is kept."
                )
                trained, part["kept"] = marks[best], best
            log += _too_small(task, part)
            initial = marks[ranked.index(start)].rmse
            part["scores"] = {
                "rmse": trained.rmse,
                "median": trained.median,
                "initial": initial if math.isfinite(initial) else None,
            }
            if "ranked" in part:
                part["scores"] |= _classical_scores(ranked, marks)
                log += _worse(task.nfe, part["scores"])
        return table if part["kept"] is None else ranked[part["kept"]].table

    def _mark(self, task, table):
        """The _Mark of a table on held-out noise; infinite where a result is not finite."""
        distances, errors = task.scores(table, self.pairs["held_out"])
        if not bool((distances.isfinite() & errors.isfinite()).all()):
            return _Mark(math.inf, math.inf, math.inf)
        robust = self.settings.method == "gauss-newton"
        loss = gauss_newton.robust_loss(distances, task.scale) if robust else distances.mean()
        return _Mark(float(loss), float(errors.mean().sqrt()), float(errors.sqrt().median()))


STATE_VERSION = 2
BUDGETS = {"gauss-newton": 20_000}
PROBE_ITERATIONS, MAX_ITERATIONS = 1, 200


def _scale(task, chosen):
    """The robust scale of the first start whose results are finite."""
    for candidate in chosen[:-1]:
        with suppress(TrainingDiverged):
            return gauss_newton.robust_scale(task.initial_errors(candidate.table))
    return gauss_newton.robust_scale(task.initial_errors(chosen[-1].table))


class _Mark(NamedTuple):
    """Of a table on some pairs: the trained loss, the RMSE, and the median pair's RMSE."""

    loss: float
    rmse: float
    median: float


def _too_small(task, part):
    """A line for the log if Gauss-Newton could not make a single step for want of budget."""
    runs = part.get("runs", [])
    needed = [run["needed"] for run in runs if "needed" in run]
    if not needed or any(run.get("iteration") for run in runs):
        return []
    return [
        f"NFE {task.nfe}: the budget of {task.budget:,} model calls is too small for one step of "
        f"training: give it at least {min(needed):,}, better several times that."
    ]


def _worse(nfe, scores):
    """A line for the log if the result, better by its loss, errs more than a classical solver."""
    if scores["rmse"] <= scores["classical"]:
        return []
    return [
        f"NFE {nfe}: by its RMSE ({scores['rmse']:.4g}) the result is worse on held-out noise than "
        f"{scores['classical_name']} ({scores['classical']:.4g}), though better by the loss that "
        "was trained."
    ]


def _classical_scores(ranked, marks):
    """What the scores say of the classical solvers that a search has found."""
    first = min(range(len(ranked)), key=lambda k: marks[k].rmse)
    return {
        "classical": marks[first].rmse,
        "classical_median": min(mark.median for mark in marks),
        "classical_name": ranked[first].label,
    }


@dataclass(frozen=True)
class _Given:
    """A start that the caller gave as a table."""

    table: SolverTable
    schedule: str = "given"
    label: str = "given"


def _training_facts(settings, goal, calls):
    facts = {key: getattr(settings, key) for key in ("method", "seed", "samples", "init")}
    return facts | {"objective": goal.name, "calls": calls}


def _teacher_facts(model, teacher):
    """What a file says of its teacher; a table that is a classical solver's gets its name."""
    if not isinstance(teacher, SolverTable):
        return {"nfe": getattr(teacher, "nfe", 0), "name": getattr(teacher, "name", "callable")}
    facts = {
        "nfe": teacher.nfe,
        "family": teacher.family,
        "order": teacher.order,
        "form": teacher.form,
        "digest": teacher.digest[:16],
    }
    known = candidates(model, teacher.nfe, teacher.ending)
    names = [candidate.label for candidate in known if candidate.table == teacher]
    return facts | ({"name": names[0]} if names else {})
