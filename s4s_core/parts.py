"""Runs over a part of the way: below full strength, or up to a level above the end.

A run takes learned weights where it can: those of a part that was trained for its number of calls,
or, under guidance, of the last calls of a table for the whole way, if they begin near its level.
Any other run has the weights of a classical solver, on nodes laid as the learned ones lie. Where it
makes many more calls than any learned table does there, these nodes are no better than others, and
it is a good classical solver on its own schedule. docs/benchmarks/strength.md measures them.
"""

from collections.abc import Iterable

import numpy as np

from .classical import classical_table
from .schedules.closed import edm_levels
from .slicing import from_node
from .spaces import CLIP
from .spacing import lay_nodes, levels_at, places_of
from .table import Array, SolverPack, SolverTable

NEAR, SHARE = 0.5, 0.7
"""How far a learned table may be moved: in log-SNR, and in steps of the run (on average)."""

FINE = 1.8
"""A run makes fine steps if it has this many times the calls of the longest whole table there."""

FINE_SOLVER = ("unipc-bh2", 2)
"""The best solver of fine steps, and without guidance also of coarse ones."""

STRONG_CFG = 6.0
"""From this guidance on, coarse steps are Euler's."""

CLASSICAL = {"noise": ("ipndm", 2), "velocity": ("ipndm", 2), "data": ("dpmpp", 2)}
"""The classical solver of each form: second order, because guidance breaks higher ones."""


def classical_on(nodes: Array, form: str, space: str) -> SolverTable:
    """Return the classical table of a form on given nodes."""
    solver, order = CLASSICAL[form]
    return classical_table(solver, nodes, order, space)


def relaid(table: SolverTable, first: float, calls: int) -> SolverTable:
    """Return the classical table of `calls` calls on nodes from `first` on, laid as a table's."""
    return classical_on(lay_nodes(table.sigmas, calls, first), table.form, table.space)


def stretched(table: SolverTable, first: float) -> SolverTable:
    """Return a table that begins at another level: nodes and calls move, the weights stay.

    What lay at some place between the first node and the end lies there again.
    """
    begins = float(places_of(table.sigmas, first))

    def moved(places: Array) -> Array:
        return levels_at(table.sigmas, begins + (1 - begins / table.steps) * places)

    nodes = moved(np.arange(table.steps + 1.0))
    nodes[0], nodes[-1] = first, table.ending
    calls = moved(places_of(table.sigmas, table.call_sigmas))
    calls[table.call_sigmas == table.sigmas[0]] = first
    if table.space == "flow":
        calls = np.minimum(calls, 1.0)
    return table.replace(sigmas=nodes, call_sigmas=calls)


def part_table(
    pack: SolverPack, first: float, last: float, calls: int, lowest: float, guided: bool = True
) -> SolverTable:
    """Return the table of `calls` model calls from level `first` to `last`.

    last: the pack's ending, or a level above it. lowest: the model's lowest level above 0. guided:
    can the guidance of each call be set?
    """
    lowest = min(lowest, first / 2)
    if last <= pack.ending:
        way = _log_snr(pack.space, lowest) - _log_snr(pack.space, first)
        reach = min(NEAR, SHARE * way / calls)
        parts = (part for part in pack.parts if part.nfe == calls)
        tails = _tails(pack, calls) if pack.guided and guided else ()
        learned = _nearest(parts, first, reach) or _nearest(tails, first, reach)
        if learned is not None:
            return stretched(learned, first)
    whole = max(pack.tables.values(), key=lambda table: table.nfe)
    if last <= pack.ending and calls > FINE * _calls_between(whole, first, last):
        return _fine(pack.space, first, last, lowest, calls)
    near = [part for part in pack.parts if _distance(part, first) <= NEAR]
    source = max(near or [whole], key=lambda table: table.nfe)
    stop = None if last <= source.ending else last
    nodes = lay_nodes(source.sigmas, calls, first, stop)
    if _is_strong(pack):
        return classical_table("euler", nodes, 1, pack.space)
    if pack.guided:
        return classical_on(nodes, source.form, pack.space)
    solver, order = FINE_SOLVER
    return classical_table(solver, nodes, order, pack.space)


def _is_strong(pack: SolverPack) -> bool:
    """Is a pack for guidance at which coarse steps of second order break?"""
    scales = pack.metadata.get("cfg")
    return scales is not None and min(scales) >= STRONG_CFG


def _tails(pack: SolverPack, calls: int) -> Iterable[SolverTable]:
    """Yield the last calls of every table for the whole way that has as many."""
    for table in pack.tables.values():
        start, rest = divmod(table.nfe - calls, table.nfe_per_step)
        if start >= 0 and not rest and start < table.steps:
            yield from_node(table, start)


def _nearest(tables: Iterable[SolverTable], first: float, reach: float) -> SolverTable | None:
    """Return the table whose first level is nearest to a level, if it is within reach."""
    near = {_distance(table, first): table for table in tables}
    return near[min(near)] if near and min(near) <= reach else None


def _calls_between(table: SolverTable, first: float, last: float) -> float:
    """Return how many calls a table makes between two levels, also in parts of a step."""
    end = table.steps if last <= table.ending else float(places_of(table.sigmas, last))
    return table.nfe_per_step * (end - float(places_of(table.sigmas, first)))


def _fine(space: str, first: float, last: float, lowest: float, calls: int) -> SolverTable:
    """Return the solver of fine steps on its own schedule; before level 0, it calls at `lowest`."""
    solver, order = FINE_SOLVER
    if last > 0:
        nodes = edm_levels(space, first, last, calls).numpy()
        nodes[-1] = last  # rounding aside
    else:
        nodes = np.append(edm_levels(space, first, lowest, calls - 1).numpy(), 0.0)
    nodes[0] = first  # a flow model's level 1 is clipped
    return classical_table(solver, nodes, order, space)


def _log_snr(space: str, sigma: float) -> float:
    """Return lambda = log(alpha / sigma), finite also where alpha is 0."""
    alpha = max(1 - sigma, CLIP) if space == "flow" else 1.0
    return float(np.log(alpha / sigma))


def _distance(table: SolverTable, sigma: float) -> float:
    """Return how far in log-SNR a level is from the first of a table."""
    return abs(_log_snr(table.space, sigma) - _log_snr(table.space, float(table.sigmas[0])))
