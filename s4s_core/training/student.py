"""A table with autograd leaves as numbers: what the gradient methods train.

Times follow the paper's parametrisation (app:time-param-sec) in a chosen time domain. Nodes come
from a vector xi [steps + 1] by cumulative softmax and linear rescaling. Each call is at the node of
its step, or, for later stages of single-step methods, at a fixed share of the step, plus an offset.
The offset is clipped to a part of the smallest gap (or to its initial value if that is larger) and
to the range. Both ends are fixed: the first node and call, and the last node, which is the ending
(spaced, as in a schedule, as if it were sigma_min if the ending is 0).
"""

from collections.abc import Mapping
from typing import Any

import torch

from ..classical import classical_recipe
from ..errors import TrainingError
from ..model import BoundDenoiser, Model
from ..names import DOMAINS, FREE, check_name
from ..program import lower
from ..sampling import Cursor, run
from ..schedules.closed import finite
from ..spaces import log_snr, sigma_of_log_snr
from ..table import SolverTable
from .parameters import coefficient_basis

CLIP_SHARE = 0.5


class Times:
    """The times of one table as functions of (xi, offsets), differentiable in both.

    At xi = `initial` and offsets = `offsets` they are the table's, up to rounding.
    """

    def __init__(self, model: Model, table: SolverTable, domain: str = "logsnr") -> None:
        check_name(DOMAINS, "time domain", domain, TrainingError)
        self._map: Any = getattr(model, "times", None)
        if domain == "time" and self._map is None:
            raise TrainingError("This model has no discrete times: use the domain logsnr or sigma.")
        self.model, self.domain, self.ending = model, domain, table.ending
        self.stride = table.nfe_per_step
        self.first = torch.tensor(table.sigmas[:1]), torch.tensor(table.call_sigmas[:1])
        self.owner = torch.arange(table.nfe) // self.stride
        ends = finite(model.space, float(table.sigmas[0])), self._low()
        self.top, self.low = (self.to_time(end) for end in ends)
        time = self._with_ends(torch.tensor(table.sigmas[1:-1]))
        self.initial = torch.cat([-time.diff(), -time.diff().mean().reshape(1)]).log()
        width = (time[1:] - time[:-1])[self.owner]
        calls, nodes = torch.tensor(table.call_sigmas), torch.tensor(table.sigmas)[self.owner]
        gap, none = self.to_time(calls) - time[self.owner], torch.zeros_like(calls)
        later = torch.arange(table.nfe) % self.stride != 0
        self.shares = torch.where(later, gap / width, none)
        self.offsets = torch.where(later | (calls == nodes), none, gap)
        self.offsets[0] = 0
        within = calls.clamp(min=float(model.sigma_min))
        self.lowest = torch.minimum(self.low, self.to_time(within).min())

    def _low(self) -> torch.Tensor:
        return torch.tensor(self.ending or float(self.model.sigma_min), dtype=torch.float64)

    def _with_ends(self, inner: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.top.reshape(1), self.to_time(inner), self.low.reshape(1)])

    def to_time(self, sigma: torch.Tensor) -> torch.Tensor:
        """Return the time in the domain, which increases with sigma."""
        if self.domain == "sigma":
            return sigma
        if self.domain == "logsnr":
            return -log_snr(self.model.space, sigma)
        time: torch.Tensor = self._map.time(sigma)
        return time

    def to_sigma(self, time: torch.Tensor) -> torch.Tensor:
        """Invert `to_time`."""
        if self.domain == "sigma":
            return time
        if self.domain == "logsnr":
            return sigma_of_log_snr(self.model.space, -time)
        sigma: torch.Tensor = self._map.sigma(time)
        return sigma

    def arrays(self, xi: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (nodes [steps + 1], calls [nfe]) as sigmas."""
        tau = xi.softmax(0).flip(0).cumsum(0).flip(0)
        time = (tau - tau[-1]) / (tau[0] - tau[-1]) * (self.top - self.low) + self.low
        least = CLIP_SHARE / self.stride * (time[:-1] - time[1:]).min().item()
        calls = time[self.owner] + self.shares * (time[1:] - time[:-1])[self.owner]
        bound = self.offsets[1:].abs().clamp(min=least)
        calls = (calls[1:] + offsets[1:].clamp(-bound, bound)).clamp(self.lowest, self.top)
        last = torch.tensor([self.ending], dtype=torch.float64)
        nodes = torch.cat([self.first[0], self.to_sigma(time[1:-1]), last])
        return nodes, torch.cat([self.first[1], self.to_sigma(calls)])


class Student:
    """Coefficients base + basis @ phi; times from xi and the offsets of the calls; guidance.

    With `recompute`, a (solver, order), the base is that solver's coefficients at the current
    nodes, as in LD3; without, it is the coefficients of the table.
    """

    def __init__(
        self,
        model: Model,
        table: SolverTable,
        domain: str = "logsnr",
        fixed: bool = False,
        consistent: str = FREE,
        recompute: tuple[str, int] | None = None,
        guidance: bool = False,
    ) -> None:
        self.table, self.recompute = table, recompute
        self.times = Times(model, table, domain)
        self.basis = coefficient_basis(table, fixed, consistent)
        self.leaves = {
            "phi": torch.zeros(self.basis.shape[1], dtype=torch.float64),
            "xi": self.times.initial.clone(),
            "offsets": self.times.offsets.clone(),
        }
        if guidance:
            self.leaves["guidance"] = torch.ones(table.nfe, dtype=torch.float64)
            if table.guidance is not None:
                self.leaves["guidance"] = torch.tensor(table.guidance)
        for leaf in self.leaves.values():
            leaf.requires_grad_()

    def arrays(
        self, leaves: Mapping[str, torch.Tensor] | None = None, move_times: bool = True
    ) -> dict[str, torch.Tensor]:
        """Return the table's arrays; without `move_times` the times stay bit for bit."""
        leaves = leaves or self.leaves
        table = self.table
        nodes, calls = torch.tensor(table.sigmas), torch.tensor(table.call_sigmas)
        if move_times:
            nodes, calls = self.times.arrays(leaves["xi"], leaves["offsets"])
        out = {"sigmas": nodes, "call_sigmas": calls}
        if "guidance" in leaves:
            out["guidance"] = leaves["guidance"].clamp(min=0)
        elif table.guidance is not None:
            out["guidance"] = torch.tensor(table.guidance)
        named = self._base(nodes)
        base = torch.cat([array.flatten() for array in named.values()])
        sizes = [array.numel() for array in named.values()]
        flat = torch.split(base + self.basis @ leaves["phi"], sizes)
        parts = zip(named.items(), flat, strict=True)
        return out | {name: part.reshape(array.shape) for (name, array), part in parts}

    def _base(self, nodes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the coefficients that learned ones are added to, sorted by name."""
        arrays = self.table.coefficients
        if self.recompute is not None:
            solver, order = self.recompute
            recipe = classical_recipe(solver, nodes, self.table.space, order=order)
            return {name: recipe.arrays[name] for name in sorted(arrays)}
        return {name: torch.tensor(arrays[name]) for name in sorted(arrays)}

    def result(
        self,
        denoise: BoundDenoiser,
        x: torch.Tensor,
        move_times: bool = True,
    ) -> torch.Tensor:
        """Run the student from x and keep the graph."""
        arrays = self.arrays(move_times=move_times)
        program = lower(self.table.family, self.table.space, self.table.form, arrays)
        return run(program, denoise, Cursor(x, x)).point

    def at(self, leaves: Mapping[str, torch.Tensor], move_times: bool = True) -> SolverTable:
        """Return the validated table of given leaves."""
        arrays = self.arrays(leaves, move_times)
        return self.table.replace(**{k: v.detach().numpy() for k, v in arrays.items()})
