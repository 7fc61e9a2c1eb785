"""The free numbers of a table as one vector, and the table's arrays as functions of it.

Coefficients are base + basis @ phi: the basis is the identity on the entries that exist (time
dependent, the paper's default), or ties the rows of full order together ("fixed"). `consistent`
keeps the sum of the weights of the last step, or of all steps. Weights that sum to one remove just
the noise that the step is meant to remove, so a call at the node is told the noise that is there,
and the last step leaves no grain.

Times move in lambda = log(alpha / sigma), with both ends fixed: one shift per inner node, which the
node's call follows, and one more shift per call (the decoupled steps of app:time-param-decouple).
Where A of a step is one (noise form in the ve space, velocity), a node enters only through its
factor B, which the free coefficients absorb: there a node and its call share one parameter.

Guidance multipliers move freely and are clipped at 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from ..names import ALL_STEPS, FREE, LAST_STEP
from ..program import Program, lower
from ..spaces import log_snr, sigma_of_log_snr, step_factors
from ..table import SolverTable


def coefficient_basis(
    table: SolverTable, fixed: bool = False, consistent: str = FREE
) -> torch.Tensor:
    """Return the directions in which coefficients may move, [all coefficients, parameters]."""
    masks = table.masks
    blocks: dict[str, np.ndarray] = {}
    columns: list[np.ndarray] = []
    offset = 0
    total = sum(mask.size for mask in masks.values())
    for name in sorted(masks):
        index = np.arange(masks[name].size).reshape(masks[name].shape) + offset
        blocks[name], offset = index, offset + masks[name].size
    for name, index in blocks.items():
        rows = index.reshape(-1, masks[name].shape[-1])
        keep = masks[name].reshape(rows.shape)
        whole = np.full(len(rows), consistent == ALL_STEPS)
        if name == "b":  # the last row of b makes the last step; `fixed` ties it to others
            whole[-1] |= consistent == LAST_STEP and not fixed
        columns += _directions(rows, keep, total, fixed, whole)
    return torch.from_numpy(np.array(columns).reshape(-1, total).T.copy())


def _directions(
    rows: np.ndarray, keep: np.ndarray, total: int, fixed: bool, consistent: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the directions of one array; with `fixed`, rows with the same mask move together.

    `consistent` [rows]: keep the sum of the row.
    """
    groups: dict[tuple[bytes | int, bool], list[np.ndarray]] = {}
    for number, mask in enumerate(keep):
        if mask.any():
            key = mask.tobytes() if fixed else number
            groups.setdefault((key, bool(consistent[number])), []).append(rows[number][mask])
    for (_, keeps_sum), members in groups.items():
        width = len(members[0])
        local = np.eye(width)
        if keeps_sum:
            local = np.linalg.svd(np.ones((1, width)))[2][1:].T
        for direction in local.T:
            column = np.zeros(total)
            for entries in members:
                column[entries] = direction
            yield column


@dataclass(frozen=True)
class Parameters:
    """The free numbers of a table; theta = 0 is the table itself.

    limits: the model's (sigma_min, sigma_max), which every call stays within.
    """

    table: SolverTable
    basis: torch.Tensor
    nodes: torch.Tensor
    calls: torch.Tensor
    guided: torch.Tensor
    limits: tuple[float, float]

    @classmethod
    def of(
        cls,
        table: SolverTable,
        limits: tuple[float, float],
        coefficients: bool = True,
        times: bool = True,
        fixed: bool = False,
        consistent: str = FREE,
        guidance: bool = False,
    ) -> "Parameters":
        """Make the parameters of a table: its coefficients, times and guidance, as asked for."""
        total = sum(array.size for array in table.coefficients.values())
        basis = torch.zeros(total, 0, dtype=torch.float64)
        if coefficients:
            basis = coefficient_basis(table, fixed, consistent)
        inner = torch.arange(1, table.steps) if times else torch.arange(0)
        apart = [n for n in range(1, table.nfe) if _moves_apart(table, n, consistent)]
        own = torch.tensor(apart if times else [])
        guided = torch.arange(table.nfe if guidance else 0)
        return cls(table, basis, inner, own.long(), guided, limits)

    @property
    def count(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The numbers of coefficients, node shifts, call shifts and multipliers in theta."""
        return [self.basis.shape[1], len(self.nodes), len(self.calls), len(self.guided)]

    def split(self, theta: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split theta into (phi, node shifts, call shifts, shifts of multipliers)."""
        return torch.split(theta, self.sizes, dim=-1)

    def arrays(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the table's arrays at theta [..., count], as float64 tensors; differentiable."""
        phi, node_shift, call_shift, guidance_shift = self.split(theta)
        lead = tuple(theta.shape[:-1])
        base = torch.cat([torch.tensor(a).flatten() for _, a in self._sorted()])
        flat = base + phi @ self.basis.T
        parts = torch.split(flat, [a.size for _, a in self._sorted()], dim=-1)
        out = {
            n: p.reshape(*lead, *a.shape) for (n, a), p in zip(self._sorted(), parts, strict=True)
        }
        return (
            self._times(lead, node_shift, call_shift) | self._guidance(lead, guidance_shift) | out
        )

    def _guidance(self, lead: tuple[int, ...], shift: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the multipliers after their shifts, if the table has or learns any."""
        known = self.table.guidance
        if known is None and not len(self.guided):
            return {}
        base = torch.ones(self.table.nfe).double() if known is None else torch.tensor(known)
        moved = base.expand(*lead, -1).index_add(-1, self.guided, shift)
        return {"guidance": moved.clamp(min=0)}

    def _sorted(self) -> list[tuple[str, np.ndarray]]:
        return sorted(self.table.coefficients.items())

    def _times(
        self, lead: tuple[int, ...], node_shift: torch.Tensor, call_shift: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return nodes and calls after their shifts in lambda."""
        table, space = self.table, self.table.space
        sigmas = torch.tensor(table.sigmas).expand(*lead, -1)
        calls = torch.tensor(table.call_sigmas).expand(*lead, -1)
        if not len(self.nodes) and not len(self.calls):
            return {"sigmas": sigmas, "call_sigmas": calls}
        move = torch.zeros(*lead, table.steps + 1, dtype=torch.float64)
        move = move.index_add(-1, self.nodes, node_shift)
        sigmas = _shift(space, sigmas, move, self.nodes)
        owner = torch.arange(table.nfe) // table.nfe_per_step
        total = move[..., owner].index_add(-1, self.calls, call_shift)
        calls = _shift(space, calls, total, torch.arange(1, table.nfe))
        low, high = self.limits
        calls = torch.cat([calls[..., :1], calls[..., 1:].clamp(low, high)], dim=-1)
        return {"sigmas": sigmas, "call_sigmas": calls}

    def program(self, theta: torch.Tensor) -> Program:
        """Return the lowered program at theta."""
        return lower(self.table.family, self.table.space, self.table.form, self.arrays(theta))

    def at(self, theta: torch.Tensor) -> SolverTable:
        """Return the validated table at theta [count]."""
        return self.table.replace(**{k: v.detach().numpy() for k, v in self.arrays(theta).items()})


def _moves_apart(table: SolverTable, call: int, consistent: str) -> bool:
    """Can a call move apart from the node of its step?

    Stages of a single-step method always can. First calls of a step can where A is not one, unless
    every call is to be told the noise that is there.
    """
    plain = table.form == "velocity" or (table.form == "noise" and table.space == "ve")
    return call % table.nfe_per_step != 0 or not (plain or consistent == ALL_STEPS)


def _shift(
    space: str, sigmas: torch.Tensor, move: torch.Tensor, where: torch.Tensor
) -> torch.Tensor:
    """Move sigmas in lambda at the indices `where`; the others stay bit for bit."""
    if not len(where):
        return sigmas
    inner = sigmas[..., where]
    moved = sigma_of_log_snr(space, log_snr(space, inner) + move[..., where])
    return sigmas.index_copy(-1, where, moved)


def widened(table: SolverTable, order: int) -> SolverTable:
    """Widen a multistep table to `order`, at most one weight per call; new weights are zero."""
    more = min(order, table.nfe) - table.order
    if table.family != "lms" or more <= 0:
        return table
    b = np.pad(table.coefficients["b"], ((0, 0), (0, more)))
    return replace(table, order=table.order + more, coefficients={"b": b})


def as_multistep(table: SolverTable) -> SolverTable:
    """Rewrite a predictor-corrector table as the equal multistep table (see program)."""
    if table.family != "pc":
        return table
    arrays = {name: torch.tensor(array) for name, array in table.arrays.items()}
    sigmas = arrays["sigmas"]
    factor = step_factors(table.space, table.form, sigmas[:-1], sigmas[1:])[1]
    moves = lower("pc", table.space, table.form, arrays).moves
    b = torch.zeros(table.steps, table.order + 1, dtype=torch.float64)
    for n, move in enumerate(moves):
        reach = move.reach
        calls = (
            1.0 if table.form == "data" else arrays["call_sigmas"][n + 1 - reach : n + 1].flip(0)
        )
        b[n, :reach] = cast(torch.Tensor, move.weights) * calls / factor[n]
    return SolverTable(
        "lms",
        table.order + 1,
        table.form,
        table.space,
        table.sigmas,
        table.call_sigmas,
        {"b": b.numpy()},
        table.guidance,
    )
