"""A table whose numbers are leaves of autograd: what the gradient methods train."""

import torch

from ..classical import classical_recipe
from ..families import lower
from ..sampling import Cursor, run
from .parameters import coefficient_basis
from .times import Times


class Student:
    """Coefficients base + basis @ phi, times from xi and the calls' offsets.

    `recompute` is (solver, order) where the base follows the times: that solver's coefficients at
    the current nodes, as LD3 has it. None holds the table's own.
    """

    def __init__(
        self, model, table, domain="logsnr", fixed=False, consistent=False, recompute=None
    ):
        self.table, self.recompute = table, recompute
        self.times = Times(model, table, domain)
        self.basis = coefficient_basis(table, fixed, consistent)
        self.leaves = {
            "phi": torch.zeros(self.basis.shape[1], dtype=torch.float64),
            "xi": self.times.initial.clone(),
            "offsets": self.times.offsets.clone(),
        }
        for leaf in self.leaves.values():
            leaf.requires_grad_()

    def arrays(self, leaves=None, move_times=True):
        """The table's arrays; without `move_times` its own times stay bit for bit."""
        leaves = leaves or self.leaves
        table = self.table
        nodes, calls = torch.tensor(table.sigmas), torch.tensor(table.call_sigmas)
        if move_times:
            nodes, calls = self.times.arrays(leaves["xi"], leaves["offsets"])
        out = {"sigmas": nodes, "call_sigmas": calls}
        named = self._base(nodes)
        base = torch.cat([array.flatten() for array in named.values()])
        flat = (base + self.basis @ leaves["phi"]).split([a.numel() for a in named.values()])
        parts = zip(named.items(), flat, strict=True)
        return out | {name: part.reshape(array.shape) for (name, array), part in parts}

    def _base(self, nodes):
        """The coefficients that the learned ones are added to, sorted by name."""
        arrays = self.table.coefficients
        if self.recompute is not None:
            solver, order = self.recompute
            recipe = classical_recipe(solver, nodes, self.table.space, order=order)
            return {name: recipe.arrays[name] for name in sorted(arrays)}
        return {name: torch.tensor(arrays[name]) for name in sorted(arrays)}

    def result(self, denoise, x, move_times=True):
        """Run the student from x, keeping the graph."""
        arrays = self.arrays(move_times=move_times)
        program = lower(self.table.family, self.table.space, self.table.form, arrays)
        return run(program, denoise, Cursor(x, x)).point

    def at(self, leaves, move_times=True):
        """The validated table of given leaves."""
        arrays = self.arrays(leaves, move_times)
        return self.table.replace(**{k: v.detach().numpy() for k, v in arrays.items()})
