"""Results of finished cells, and how their numbers are printed."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from .cells import RIVALS, Cell, Result
from .plans import Plan, learned, rivals

NOT_RUN = "not run"
NAMES = {
    "s4s": "S4S (coefficients)",
    "s4s-alt": "S4S-Alt (times and coefficients)",
    "gauss-newton": "S4S-GN (gauss-newton, with times)",
    "bns": "BNS (maximal order, joint)",
    "gs": "GS-style (theory at the current times + offsets)",
    "trajectory": "trajectory matching (local)",
    "dpm-v3": "DPM-Solver-v3 (measured statistics)",
    "dpmpp": "DPM-Solver++ 3M",
    "ipndm": "iPNDM 3",
    "unipc-bh2": "UniPC 3",
}
"""Methods, rivals and solvers as the report names them."""

ResultsByCell = Mapping[Cell, Result | None]
Reasons = Mapping[Cell, str]
"""Why cells could not be measured."""


def reasons_of(cells: Iterable[Cell], reasons: Reasons) -> str:
    """Return the distinct reasons why some of the cells could not be measured."""
    return " ".join(sorted({reasons[cell] for cell in cells if cell in reasons}))


class Results:
    """Looks up numbers of cells; None stands for a cell that is not finished."""

    def __init__(self, by_cell: ResultsByCell) -> None:
        self.by_cell = by_cell

    def value(self, cell: Cell, key: str = "rmse") -> Any:
        """Return one number of a cell, or None."""
        result = self.by_cell.get(cell)
        return None if result is None else result.get(key)

    def values(self, cells: Iterable[Cell], key: str = "rmse") -> list[float]:
        """Return the numbers of the finished cells."""
        return [v for v in (self.value(cell, key) for cell in cells) if v is not None]

    def mean(self, cells: Iterable[Cell], key: str = "rmse") -> float | None:
        """Return the mean over the finished cells, or None."""
        values = self.values(cells, key)
        return statistics.fmean(values) if values else None

    def ratio(self, cells: Iterable[Cell], classical: Cell, key: str = "rmse") -> float | None:
        """Return the mean over cells relative to a classical cell, or None."""
        return ratio(self.mean(cells, key), self.value(classical, key))


def ratio(first: float | None, second: float | None) -> float | None:
    """Return first / second, or None if either is None or the second is 0."""
    return None if first is None or not second else first / second


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with so many significant digits; None is "not run"."""
    return NOT_RUN if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """Format a share; None is "not run"."""
    return NOT_RUN if value is None else f"{100 * value:.2g} %"


def spread(values: list[float], digits: int = 4) -> str:
    """Format the mean and, for several values, half their range."""
    if not values:
        return NOT_RUN
    text = number(statistics.fmean(values), digits)
    return f"{text} ± {(max(values) - min(values)) / 2:.2g}" if len(values) > 1 else text


def cells_of(plan: Plan, method: str, nfe: int, cfg: float) -> list[Cell]:
    """Return the cells of a method or a rival, for all seeds of the plan."""
    if method in RIVALS:
        every = rivals(plan.base, plan.budget, plan.seeds, nfe, cfg)
        return [cell for cell in every if cell.method == method]
    return [learned(plan.base, method, plan.budget, nfe=nfe, cfg=cfg, seed=s) for s in plan.seeds]
