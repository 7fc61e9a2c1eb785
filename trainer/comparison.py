"""Teacher, classical solvers and a learned solver on the same noise: errors and pictures."""

from dataclasses import dataclass

import torch

from s4s_core.candidates import candidates, squared_errors
from s4s_core.errors import S4SError
from s4s_core.hosting import mismatches, require_space
from s4s_core.teacher import default_teacher, draw_noise, draw_pairs
from s4s_core.training.memory import Workers

from .config import from_plain
from .pictures import (
    BATCH,
    can_show,
    grid,
    if_memory_allows,
    pictures,
    results,
    save_png,
    tiles,
)
from .training import teacher_of

FRESH_SEED = 700_000_001
"""Seeds of comparisons and samples lie far from those of training."""


def fresh_noise(model, count, seed):
    """(x, conditions) of `count` runs from noise that no training with a usual seed has seen."""
    return draw_noise(model, count, FRESH_SEED + seed)


def own_teacher(pack, model):
    """The teacher that a pack says it has learned from, with its ending.

    The default one where it does not say, or not in a way that this version knows.
    """
    try:
        config = from_plain(pack.metadata["config"])
    except (KeyError, TypeError, ValueError, S4SError):  # a stranger's text, of any type
        return default_teacher(model)
    return teacher_of(config, model)


def check_fit(pack, model):
    """Sentences about what differs from the pack's training; HostError if it cannot run at all."""
    require_space(pack, model.space)
    about = model.about
    known, cfg = about.get("model", {}), about.get("cfg", [None])
    width, height = about.get("resolution", (None, None))
    return mismatches(
        pack,
        model_name=known.get("name"),
        model_hash=known.get("hash"),
        cfg=cfg[0],
        width=width,
        height=height,
    )


@dataclass
class Row:
    """One solver at one NFE: its table, and the squared error to the teacher of each pair."""

    label: str
    table: object
    errors: torch.Tensor

    @property
    def nfe(self):
        return self.table.nfe

    @property
    def rmse(self):
        return float(self.errors.mean().sqrt())


class Comparison:
    """Fresh pairs of a model and its teacher, and whatever is compared on them.

    `progress` is a ProgressLine; a batch that memory does not hold is halved.
    """

    def __init__(self, model, progress, count=32, seed=0, teacher=None):
        self.model, self.progress, self.workers = model, progress, Workers(BATCH)
        self.teacher = teacher or default_teacher(model)
        tell = lambda done: progress.show(done / count, "teacher")  # noqa: E731
        tell(0)
        with torch.inference_mode():
            self.pairs = self.workers.fitting(
                lambda batch: draw_pairs(
                    model, self.teacher, count, FRESH_SEED + seed, batch, tell=tell
                )
            )

    def row(self, label, table, pairs=None):
        """The Row of a table on all pairs, or on some."""
        chosen, denoise = pairs or self.pairs, self.model.denoise
        errors = self.workers.fitting(lambda batch: squared_errors(denoise, table, chosen, batch))
        return Row(label, table, errors)

    def best_per_solver(self, nfe, tell):
        """Each classical solver with the order and schedule that suit it best, best solver first.

        The choice is made on the first few pairs, the score on all of them. tell(share, label) is
        called before each one that is tried.
        """
        few, chosen = self.pairs[:8], {}
        found = candidates(self.model, nfe, self.teacher.ending)
        for number, candidate in enumerate(found):
            tell(number / len(found), candidate.label)
            row = self.row(candidate.label, candidate.table, few)
            chosen.setdefault(candidate.solver, []).append(row)
        winners = [min(tried, key=lambda row: row.rmse) for tried in chosen.values()]
        rows = [self.row(winner.label, winner.table) for winner in winners]
        return sorted(rows, key=lambda row: row.rmse)

    def against_classical(self, pack, nfes):
        """({nfe: {label: error}}, rows worth a look) of a pack and the classical solvers."""
        errors, shown = {}, []
        for number, nfe in enumerate(nfes):

            def tell(share, label, number=number, nfe=nfe):
                self.progress.show((number + share) / len(nfes), f"comparing at {nfe} NFE: {label}")

            tell(0, "S4S")
            ours, others = self.row("S4S", pack[nfe]), self.best_per_solver(nfe, tell)
            errors[nfe] = {row.label: row.rmse for row in [ours, *others]}
            shown += [others[0], ours]
        return errors, shown

    def save_picture(self, rows, path):
        """Save the grid of teacher and rows; the path, or None where there is nothing to see.

        It shows the pairs on which the rows' errors differ most, whichever of them is better there:
        on most of the others no eye can tell them apart.
        """
        return if_memory_allows(lambda: self._save_picture(rows, path))

    def _save_picture(self, rows, path, count=10):
        if not can_show(self.model):
            return None
        part = self.pairs[_telling(rows, count)]
        shown = {f"teacher, {self.teacher.nfe} NFE": part.target}
        for row in rows:
            label = f"{row.label}, {row.nfe} NFE: {row.rmse:.3f}"
            self.progress.show(1.0, f"drawing {label}")
            shown[label] = results(self.model, row.table, part.x, part.cond, workers=self.workers)
        rows = {label: tiles(pictures(self.model, x)) for label, x in shown.items()}
        save_png(path, grid(rows))
        return str(path)


def _telling(rows, count):
    """Indices, in order, of the pairs on which the errors of the rows are furthest apart."""
    errors = torch.stack([row.errors.sqrt() for row in rows])
    apart = errors.amax(0) - errors.amin(0)
    return apart.topk(min(count, len(apart))).indices.sort().values


def scores_as_errors(scores):
    """Scores of a training on held-out noise as `against_classical` gives errors.

    Without a search for a start, no classical solver was scored.
    """
    errors = {int(nfe): {"S4S": score["rmse"]} for nfe, score in scores.items()}
    for nfe, rows in errors.items():
        score = scores[str(nfe)]
        if "classical" in score:
            rows[score["classical_name"]] = score["classical"]
    return errors


def errors_text(errors):
    """What `against_classical` found, for people."""
    lines = ["Error to the teacher on fresh noise (RMSE):"]
    for nfe, rows in errors.items():
        best = min((error for label, error in rows.items() if label != "S4S"), default=None)
        lines.append(f"  {nfe} NFE")
        for label, error in rows.items():
            mark = f"  {error / best:.2f} of the best classical" if label == "S4S" and best else ""
            lines.append(f"    {label:<24} {error:.4f}{mark}")
    return "\n".join(lines)
