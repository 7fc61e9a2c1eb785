"""Teacher, classical solvers and a learned solver on the same noise: errors and pictures."""

from dataclasses import dataclass

import torch

from s4s_core import sample
from s4s_core.evaluation import candidates, rmse
from s4s_core.teacher import default_teacher, draw_pairs

from .pictures import can_show, grid, pictures, save_png, tiles

FRESH_SEED = 700_000_001
"""Seeds of comparisons lie far from those of training."""


@dataclass
class Row:
    """One solver at one NFE: its RMSE to the teacher and its table."""

    label: str
    nfe: int
    rmse: float
    table: object


class Comparison:
    """Fresh pairs of a model, and whatever is compared on them."""

    def __init__(self, model, count=32, seed=0, batch=32):
        self.model, self.batch = model, batch
        with torch.inference_mode():
            teacher = default_teacher(model)
            self.pairs = draw_pairs(model, teacher, count, FRESH_SEED + seed, batch)
        self.teacher_nfe = teacher.nfe

    def _error(self, table, pairs):
        return rmse(self.model.denoise, table, pairs, self.batch)

    def row(self, label, table):
        return Row(label, table.nfe, self._error(table, self.pairs), table)

    def best_per_solver(self, nfe):
        """Each classical solver with the order and schedule that suit it best, best solver first.

        The choice is made on the first few pairs, the score on all of them.
        """
        few, chosen = self.pairs[:8], {}
        for candidate in candidates(self.model, nfe):
            error = self._error(candidate.table, few)
            chosen.setdefault(candidate.solver, []).append((error, candidate))
        winners = [min(tried, key=lambda pair: pair[0])[1] for tried in chosen.values()]
        rows = [self.row(winner.label, winner.table) for winner in winners]
        return sorted(rows, key=lambda row: row.rmse)

    def pictures(self, rows, count=10):
        """Labelled results of the first pairs: the teacher's, then each row's."""
        part = self.pairs[:count]
        shown = {f"teacher, {self.teacher_nfe} NFE": part.target}
        with torch.inference_mode():
            for row in rows:
                label = f"{row.label}, {row.nfe} NFE: {row.rmse:.3f}"
                shown[label] = sample(self.model.denoise, part.x, row.table, part.cond)
        return shown

    def against_classical(self, pack, nfes, progress=None):
        """({nfe: {label: error}}, rows worth a look) of a pack and the classical solvers."""
        errors, shown = {}, []
        for number, nfe in enumerate(nfes):
            if progress is not None:
                progress.show(number / len(nfes), f"comparing at {nfe} NFE")
            ours, others = self.row("S4S", pack[nfe]), self.best_per_solver(nfe)
            errors[nfe] = {row.label: row.rmse for row in [ours, *others]}
            shown += [others[0], ours]
        return errors, shown

    def save_picture(self, rows, path):
        """Save the grid of teacher and rows; the path, or None where there is nothing to see."""
        if not can_show(self.model):
            return None
        shown = self.pictures(rows).items()
        save_png(path, grid({label: tiles(pictures(self.model, x)) for label, x in shown}))
        return str(path)


def errors_text(errors):
    """What `against_classical` found, for people."""
    lines = ["Error to the teacher on fresh noise (RMSE):"]
    for nfe, rows in errors.items():
        best = min(error for label, error in rows.items() if label != "S4S")
        lines.append(f"  {nfe} NFE")
        for label, error in rows.items():
            mark = f"  {error / best:.2f} of the best classical" if label == "S4S" else ""
            lines.append(f"    {label:<24} {error:.4f}{mark}")
    return "\n".join(lines)
