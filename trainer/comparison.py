"""Teacher, classical solvers and a learned solver on the same noise: errors and pictures."""

from dataclasses import dataclass

import torch

from s4s_core import sample
from s4s_core.evaluation import candidates, squared_errors
from s4s_core.teacher import default_teacher, draw_pairs

from .pictures import can_show, grid, save_png

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

    def row(self, label, table):
        errors = squared_errors(self.model.denoise, table, self.pairs, self.batch)
        return Row(label, table.nfe, float(errors.mean().sqrt()), table)

    def classical(self, nfe):
        """Every classical solver on every schedule at this NFE, best first."""
        rows = [self.row(c.label, c.table) for c in candidates(self.model, nfe)]
        return sorted(rows, key=lambda row: row.rmse)

    def best_per_solver(self, nfe):
        """The best schedule of each classical solver, best solver first."""
        chosen = {}
        for row in self.classical(nfe):
            chosen.setdefault(row.label.split()[0], row)
        return list(chosen.values())

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
        save_png(path, grid(self.pictures(rows)))
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
