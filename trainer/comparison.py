"""Teacher, classical solvers and a learned solver on the same noise: errors and pictures."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from s4s_core import SolverPack, SolverTable
from s4s_core.app.pictures import Row, save_png, sheet
from s4s_core.candidates import (
    AUTO_SCHEDULES,
    Candidate,
    candidates,
    named_solver,
    squared_errors,
)
from s4s_core.errors import S4SError, TableError
from s4s_core.hosting import mismatches, require_space
from s4s_core.names import AUTO
from s4s_core.teacher import Pairs, default_teacher, draw_pairs
from s4s_core.training.fit import Result
from s4s_core.training.memory import Batcher

from .config import MOST_NFE
from .models.contract import TrainerModel
from .progress import ProgressLine
from .results import (
    BATCH,
    FRESH_SEED,
    if_memory_allows,
    makes_pictures,
    sample_results,
    to_pictures,
)

Errors = dict[str, dict[str, float]]
"""RMSE to the teacher by the names of tables ("5", and parts such as "5@1.161") and labels."""


def recorded_solver(model: TrainerModel, text: object, nfe: int, ending: float) -> Candidate:
    """Return the classical solver that a file's metadata names, as "dpmpp 2, edm" or "dpmpp:2:edm".

    Anyone may have written that: raise S4SError unless it names one that is made at once and
    without calling the model.
    """
    match = re.fullmatch("([a-z0-9-]+)[ :]([1-9])(?:, |:)([a-z]+)", str(text))
    if match is None or match[3] not in AUTO_SCHEDULES:
        raise TableError("The file names no classical solver that can be made again.")
    return named_solver(model, ":".join(match.groups()), nfe, ending)


def recorded_teacher(
    pack: SolverPack, model: TrainerModel, warn: Callable[[str], object]
) -> SolverTable:
    """Return the teacher that a pack was trained on: the one that its config names, or the one
    that the run chose.

    It is the default teacher if the metadata names none, and with a warning if it names one that
    this version does not know, or does not trust: with more than MOST_NFE calls, with a schedule
    that is costly to make, or with an ending that the model cannot have.
    """
    ending, (name, nfe) = pack[pack.nfes[0]].ending, _recorded_names(pack.metadata)
    try:
        if name is None:
            return default_teacher(model, ending=ending)
        if not (type(nfe) is int and 1 <= nfe <= MOST_NFE):
            raise TableError(f"The file's teacher must have 1 to {MOST_NFE} calls.")
        return recorded_solver(model, name, nfe, ending).table
    except S4SError:
        warn("The teacher that the solver file names cannot be used: the default one replaces it.")
    try:
        return default_teacher(model, ending=ending)
    except TableError:
        return default_teacher(model)


def _recorded_names(about: Mapping[str, Any]) -> tuple[object, object]:
    """Return the name of a file's teacher and its calls, of any type; None if it has no name."""
    config, known = about.get("config"), about.get("teacher", {})
    text = config.get("teacher", AUTO) if isinstance(config, dict) else AUTO
    if text == AUTO:
        return known.get("name"), known.get("nfe")
    name, _, calls = str(text).rpartition(":")
    return name, int(calls) if re.fullmatch("[0-9]{1,4}", calls) else None


def check_fit(pack: SolverPack, model: TrainerModel) -> list[str]:
    """Return warnings about differences from the pack's training; HostError if it cannot run."""
    require_space(pack, model.space)
    about = model.about
    known, cfg = about.get("model", {}), about.get("cfg", [None])
    width, height = about.get("resolution", (None, None))
    return list(
        mismatches(
            pack,
            model_name=known.get("name"),
            model_hash=known.get("hash"),
            cfg=cfg[0],
            width=width,
            height=height,
            sigma_max=float(model.sigma_max),
        )
    )


@dataclass
class Score:
    """One table with its squared error to the teacher on each pair."""

    label: str
    table: SolverTable
    errors: torch.Tensor

    @property
    def nfe(self) -> int:
        return self.table.nfe

    @property
    def rmse(self) -> float:
        return float(self.errors.mean().sqrt())


class Comparison:
    """Scores tables on fresh pairs of a model and a teacher.

    A batch that does not fit memory is halved.
    """

    def __init__(
        self,
        model: TrainerModel,
        progress: ProgressLine,
        count: int = 32,
        seed: int = 0,
        teacher: SolverTable | None = None,
    ) -> None:
        self.model, self.progress, self._batcher = model, progress, Batcher(BATCH)
        self.teacher = table = teacher or default_teacher(model)

        def report(done: int) -> None:
            progress.show(done / count, "teacher")

        def draw(batch: int) -> Pairs:
            return draw_pairs(model, table, count, FRESH_SEED + seed, batch, progress=report)

        report(0)
        with torch.no_grad():
            self.pairs: Pairs = self._batcher.call(draw)

    def score(self, label: str, table: SolverTable, pairs: Pairs | None = None) -> Score:
        """Score a table on some pairs, by default on all."""
        chosen, denoise = pairs or self.pairs, self.model.denoise
        errors = self._batcher.call(lambda batch: squared_errors(denoise, table, chosen, batch))
        return Score(label, table, errors)

    def best_per_solver(self, nfe: int, report: Callable[[float, str], None]) -> list[Score]:
        """Score each classical solver with its best order and schedule, the best solver first.

        Order and schedule are chosen on the first pairs, the score is on all of them.
        report(share, label) is called before each trial.
        """
        first = self.pairs[:8]
        trials: dict[str, list[Score]] = {}
        tried = candidates(self.model, nfe, self.teacher.ending)
        for number, candidate in enumerate(tried):
            report(number / len(tried), candidate.label)
            score = self.score(candidate.label, candidate.table, first)
            trials.setdefault(candidate.solver, []).append(score)
        best = [min(scores, key=lambda score: score.rmse) for scores in trials.values()]
        scores = [self.score(each.label, each.table) for each in best]
        return sorted(scores, key=lambda score: score.rmse)

    def against_classical(
        self, pack: SolverPack, nfes: Sequence[int]
    ) -> tuple[Errors, list[Score]]:
        """Return the errors of a pack and the classical solvers, and the scores to draw."""
        errors: Errors = {}
        shown: list[Score] = []
        for number, nfe in enumerate(nfes):

            def report(share: float, label: str, number: int = number, nfe: int = nfe) -> None:
                self.progress.show((number + share) / len(nfes), f"comparing at {nfe} NFE: {label}")

            report(0, "S4S")
            ours, others = self.score("S4S", pack[nfe]), self.best_per_solver(nfe, report)
            errors[str(nfe)] = {score.label: score.rmse for score in [ours, *others]}
            shown += [others[0], ours]
        return errors, shown

    def of_training(self, result: Result) -> list[Score]:
        """Score the tables of a training, each after the best classical solver that it found."""
        scores = []
        for nfe in result.pack.nfes:
            name = result.scores[str(nfe)].get("classical_name")
            known = candidates(self.model, nfe, self.teacher.ending)
            scores += [self.score(c.label, c.table) for c in known if c.label == name]
            scores.append(self.score("S4S", result.pack[nfe]))
        return scores

    def save_picture(self, scores: Sequence[Score], path: str | os.PathLike[str]) -> str | None:
        """Save a sheet of the teacher and the scored tables; return its path.

        It shows the pairs on which the errors differ most. Return None if the model makes no
        pictures or memory does not suffice.
        """
        return if_memory_allows(lambda: self._save_picture(scores, Path(path)))

    def _save_picture(self, scores: Sequence[Score], path: Path, count: int = 10) -> str | None:
        if not makes_pictures(self.model):
            return None
        part = self.pairs[most_different(scores, count)]
        results = {f"teacher, {self.teacher.nfe} NFE": part.target}
        for score in scores:
            label = f"{score.label}, {score.nfe} NFE: {score.rmse:.3f}"
            self.progress.show(1.0, f"drawing {label}")
            results[label] = sample_results(
                self.model, score.table, part.x, part.cond, batcher=self._batcher
            )
        save_png(path, sheet(list(picture_rows(self.model, results.items()))))
        return str(path)


def picture_rows(model: TrainerModel, results: Iterable[tuple[str, torch.Tensor]]) -> Iterable[Row]:
    """Yield rows of a sheet from (title, results)."""
    for title, x in results:
        pictures = to_pictures(model, x)
        if pictures is None:
            raise S4SError(f"The model '{model.name}' makes no pictures. Choose another one.")
        yield Row(title, pictures)


def most_different(scores: Sequence[Score], count: int) -> torch.Tensor:
    """Return the sorted indices of the pairs on which the errors are furthest apart."""
    errors = torch.stack([score.errors.sqrt() for score in scores])
    apart = errors.amax(0) - errors.amin(0)
    return apart.topk(min(count, len(apart))).indices.sort().values


def scores_as_errors(scores: Mapping[str, Mapping[str, Any]]) -> Errors:
    """Convert a training's held-out scores to what `against_classical` returns.

    Classical solvers are scored only if training searched for a start.
    """
    errors: Errors = {}
    for name, score in scores.items():
        errors[name] = {"S4S": score["rmse"]}
        if "classical" in score:
            errors[name][score["classical_name"]] = score["classical"]
    return errors


def errors_text(errors: Errors, titles: Mapping[str, str]) -> str:
    """Format errors for people; `titles` are those of the tables by name."""
    lines = ["Error to the teacher on fresh noise (RMSE):"]
    for name, by_label in errors.items():
        best = min((error for label, error in by_label.items() if label != "S4S"), default=None)
        lines.append(f"  {titles[name]}")
        for label, error in by_label.items():
            mark = f"  {error / best:.2f} of the best classical" if label == "S4S" and best else ""
            lines.append(f"    {label:<24} {error:.4f}{mark}")
    return "\n".join(lines)
