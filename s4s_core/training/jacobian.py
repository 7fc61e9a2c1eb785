"""Finite-difference columns that reuse the shared prefix of the trajectory.

A parameter that first acts after model call n leaves everything up to there as it was, so its
column costs only the calls behind n: none at all for the last step's coefficients. Where it acts
is read off the lowered programs, so this works for every family. Perturbed continuations that
start at the same place run as one batch, as many at once as the batch size allows. They and the
base trajectory run the same arithmetic, sample by sample: its rounding cancels in the differences,
and how samples are batched does not change them.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from ..program import Move
from ..sampling import Cursor, advance, run


class Entry(NamedTuple):
    """Where a perturbed program departs: before model call `call`, or in the move behind it."""

    call: int
    before: bool


def entry_point(base, other):
    """The first place at which two programs in floats differ, or None if they are the same."""
    for call in range(base.nfe):
        scales = [p.data_scales and p.data_scales[call] for p in (base, other)]
        if base.sigmas[call] != other.sigmas[call] or scales[0] != scales[1]:
            return Entry(call, True)
        if base.moves[call] != other.moves[call]:
            return Entry(call, False)
    return None


def expand_rows(program, count):
    """A program of leading dimension [rows] with every row repeated `count` times."""

    def repeat(tensor):
        return tensor.repeat_interleave(count, dim=0)

    scales = program.data_scales
    moves = [Move(repeat(m.scale), repeat(m.weights), m.accept) for m in program.moves]
    scales = None if scales is None else repeat(scales)
    return replace(program, sigmas=repeat(program.sigmas), data_scales=scales, moves=tuple(moves))


def _tile(cursor, rows):
    """A cursor's batch repeated for `rows` perturbed continuations."""

    def tile(x):
        return x.repeat(rows, *[1] * (x.ndim - 1))

    return Cursor(tile(cursor.state), tile(cursor.point), tuple(tile(h) for h in cursor.history))


class Columns:
    """Columns of d(result)/d(theta) at one theta: planned once, computed batch by batch.

    A call time at the end of the model's range moves one way only, and its difference is taken on
    that side. A parameter that changes nothing on either side has a column of zeros.
    """

    def __init__(self, parameters, theta, step, central=False):
        self.parameters, self.theta = parameters, theta
        self.base = parameters.program(theta).floats()
        self.groups = {}
        for index in range(parameters.count):
            entries = self._entries(index, step, central)
            if entries:
                entry = next(iter(entries.values()))
                self.groups.setdefault((entry, tuple(entries)), []).append(index)

    def _entries(self, index, step, central):
        """{offset: Entry} of the one move of a parameter, or the two, that change something."""
        entries = {}
        for offset in (step, -step):
            moved = self.parameters.program(self._moved(index, offset)).floats()
            entry = entry_point(self.base, moved)
            if entry is not None:
                entries[offset] = entry
            if entries and not central:
                break
        return entries

    def _moved(self, index, offset):
        theta = self.theta.clone()
        theta[index] += offset
        return theta

    def calls(self):
        """Model calls per sample of one evaluation, the base trajectory included."""
        behind = [
            len(group) * len(offsets) * (self.base.nfe - entry.call - (0 if entry.before else 1))
            for (entry, offsets), group in self.groups.items()
        ]
        return self.base.nfe + sum(behind)

    def compute(self, denoise, pairs, batch, embed):
        """(features of the base result [b, m], columns [count, b, m]) for one batch of pairs.

        denoise(x, sigma, rows) gets the indices of the pairs that its rows belong to.
        """
        size = len(pairs)
        rows = torch.arange(size)
        program = self.parameters.program(self.theta)
        trace, start = [], Cursor(pairs.x, pairs.x)
        end = run(program, lambda x, s: denoise(x, s, rows), start, trace=trace)
        features = embed(end.point)
        columns = features.new_zeros(self.parameters.count, *features.shape)
        at_once = max(1, batch // size)
        for (entry, offsets), group in self.groups.items():
            before, behind = trace[entry.call]
            cursor = before if entry.before else behind
            for first in range(0, len(group), at_once):
                part = group[first : first + at_once]
                ends = [self._continue(denoise, entry, part, cursor, o, embed) for o in offsets]
                columns[part] = _quotient([*ends, features], [*offsets, 0.0])
        return features, columns

    def _continue(self, denoise, entry, group, cursor, offset, embed):
        """Features [len(group), b, m] of the results with each parameter moved by `offset`."""
        size = cursor.point.shape[0]
        program = self._perturbed(group, offset, size)
        if len(group) > 1:
            cursor = _tile(cursor, len(group))
        rows = torch.arange(size).repeat(len(group))
        first = entry.call
        if not entry.before:
            cursor, first = advance(program, first, cursor), first + 1
        result = run(program, lambda x, s: denoise(x, s, rows), cursor, first).point
        return embed(result).unflatten(0, (len(group), size))

    def _perturbed(self, group, offset, size):
        """The programs of moved parameters as rows of a batch."""
        thetas = torch.stack([self._moved(index, offset) for index in group])
        return expand_rows(self.parameters.program(thetas), size)


def _quotient(results, offsets):
    """The quotient of the first two: both sides, or one side and the base, which comes last."""
    return (results[0] - results[1]) / (offsets[0] - offsets[1])
