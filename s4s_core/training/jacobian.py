"""Finite-difference columns that reuse the shared prefix of the trajectory.

A parameter that first acts after model call n changes nothing before it, so its column costs only
the calls after n: none at all for the coefficients of the last step. Where a parameter acts is read
from the lowered programs, so this works for every family. Perturbed continuations that start at the
same place run as one batch, as many at once as the batch size allows. They and the base trajectory
use the same arithmetic for each sample, so rounding cancels in the differences, and the batch size
does not change them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from ..program import Move, Program
from ..sampling import Cursor, advance, run
from ..teacher import Pairs
from .parameters import Parameters

Denoise = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""denoise(x, sigma, guidance, rows); `rows` are the indices of the pairs of the rows of x."""
Embed = Callable[[torch.Tensor], torch.Tensor]


class Entry(NamedTuple):
    """Where a perturbed program departs: before model call `call`, or in the move after it."""

    call: int
    before: bool


class Group(NamedTuple):
    """Parameters that are moved by the same offset and act first at the same place."""

    entry: Entry
    offset: float


def entry_point(base: Program, other: Program) -> Entry | None:
    """Return the first place where two programs in floats differ; None if they are equal."""
    for call in range(base.nfe):
        scales = [p.data_scales and p.data_scales[call] for p in (base, other)]
        told = [p.guidance is not None and float(p.guidance[call]) for p in (base, other)]
        if base.sigmas[call] != other.sigmas[call] or scales[0] != scales[1] or told[0] != told[1]:
            return Entry(call, True)
        if base.moves[call] != other.moves[call]:
            return Entry(call, False)
    return None


def expand_rows(program: Program, count: int) -> Program:
    """Repeat every row of a program of leading dimension [rows] `count` times."""

    def repeat(tensor: object) -> torch.Tensor:  # a program holds tensors, or floats
        return cast(torch.Tensor, tensor).repeat_interleave(count, dim=0)

    scales = program.data_scales
    moves = [Move(repeat(m.scale), repeat(m.weights), m.accept) for m in program.moves]
    scales = None if scales is None else repeat(scales)
    guidance = None if program.guidance is None else repeat(program.guidance)
    return replace(
        program,
        sigmas=repeat(program.sigmas),
        data_scales=scales,
        moves=tuple(moves),
        guidance=guidance,
    )


def _tile(cursor: Cursor, rows: int) -> Cursor:
    """Repeat the batch of a cursor for `rows` perturbed continuations."""

    def tile(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(rows, *[1] * (x.ndim - 1))

    return Cursor(tile(cursor.state), tile(cursor.point), tuple(tile(h) for h in cursor.history))


class Columns:
    """Columns of d(result)/d(theta) at one theta: planned once, computed batch by batch.

    A call time at the end of the model's range can move one way only, and its difference is taken
    on that side. A parameter that changes nothing on either side has a column of zeros.
    """

    def __init__(self, parameters: Parameters, theta: torch.Tensor, step: float) -> None:
        self.parameters, self.theta = parameters, theta
        self.base = parameters.program(theta).floats()
        self.groups: dict[Group, list[int]] = {}
        for index in range(parameters.count):
            for offset in (step, -step):
                moved = parameters.program(self._moved(index, offset)).floats()
                entry = entry_point(self.base, moved)
                if entry is not None:
                    self.groups.setdefault(Group(entry, offset), []).append(index)
                    break

    def _moved(self, index: int, offset: float) -> torch.Tensor:
        theta = self.theta.clone()
        theta[index] += offset
        return theta

    def calls(self) -> int:
        """Return the model calls per sample of one evaluation, base trajectory included."""
        after = [
            len(members) * (self.base.nfe - entry.call - (0 if entry.before else 1))
            for (entry, _), members in self.groups.items()
        ]
        return self.base.nfe + sum(after)

    def compute(
        self, denoise: Denoise, pairs: Pairs, batch: int, embed: Embed
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features of the base result [b, m] and the columns [count, b, m]."""
        size = len(pairs)
        rows = torch.arange(size)
        program = self.parameters.program(self.theta)
        trace: list[tuple[Cursor, Cursor]] = []
        start = Cursor(pairs.x, pairs.x)
        end = run(program, lambda x, s, g: denoise(x, s, g, rows), start, trace=trace)
        features = embed(end.point).clone()  # an objective may reuse its result
        columns = features.new_zeros(self.parameters.count, *features.shape)
        at_once = max(1, batch // size)
        for (entry, offset), members in self.groups.items():
            before, after = trace[entry.call]
            cursor = before if entry.before else after
            for first in range(0, len(members), at_once):
                part = members[first : first + at_once]
                moved = self._continue(denoise, entry, part, cursor, offset, embed)
                columns[part] = (moved - features) / offset
        return features, columns

    def _continue(
        self,
        denoise: Denoise,
        entry: Entry,
        members: list[int],
        cursor: Cursor,
        offset: float,
        embed: Embed,
    ) -> torch.Tensor:
        """Return features [len(members), b, m] of the results with each parameter moved."""
        size = cursor.point.shape[0]
        program = self._perturbed(members, offset, size)
        if len(members) > 1:
            cursor = _tile(cursor, len(members))
        rows = torch.arange(size).repeat(len(members))
        first = entry.call
        if not entry.before:
            cursor, first = advance(program, first, cursor), first + 1
        result = run(program, lambda x, s, g: denoise(x, s, g, rows), cursor, first).point
        features = embed(result)
        return features.reshape(len(members), size, *features.shape[1:])

    def _perturbed(self, members: list[int], offset: float, size: int) -> Program:
        """Return the programs of moved parameters as rows of a batch."""
        thetas = torch.stack([self._moved(index, offset) for index in members])
        return expand_rows(self.parameters.program(thetas), size)
