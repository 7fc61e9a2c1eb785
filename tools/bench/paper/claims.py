"""What the benchmark is expected to show, and whether it does."""

from collections.abc import Iterator
from dataclasses import replace

from s4s_core.errors import S4SError

from ..report import Row, Table
from .cells import RIVALS, Cell
from .plans import (
    METHODS,
    NORMAL,
    PAPER_CFGS,
    Plan,
    best,
    distribution,
    learned,
    rivals,
    with_options,
)
from .results import NAMES, NOT_RUN, Results, ResultsByCell, cells_of, number, ratio

BELOW_ONE = 1 - 1e-9


def claims_table(plan: Plan, results: Results) -> Table:
    """Claims about methods with the same budget, and the ratios that were reached."""
    rows: list[Row] = []
    for cfg in PAPER_CFGS:
        newton = cells_of(plan, "gauss-newton", plan.base.nfe, cfg)
        longer = [learned(plan.base, "gauss-newton", NORMAL, cfg=cfg)]
        rows += _classical_claims(plan, results, newton, cfg, f"{plan.budget:,} NFE-eq")
        rows += _classical_claims(plan, results, longer, cfg, f"{NORMAL:,} NFE-eq")
        if plan.frechet:
            reached = _frechet_ratio(plan, results, cfg)
            claim = f"CFG {cfg:g}: S4S-GN has at most half its Fréchet distance above the floor"
            rows.append([claim, number(reached, 3), "0.5", _holds(reached, 0.5)])
        rows += _rival_claims(plan, results, newton, cfg)
    return Table("Claims", ["claim", "ratio", "target", "reached"], rows)


def _classical_claims(
    plan: Plan, results: Results, newton: list[Cell], cfg: float, effort: str
) -> Iterator[Row]:
    """S4S-GN against the best classical solver at the same NFE, and at one more."""
    where = f"CFG {cfg:g}, {plan.base.nfe} NFE, {effort}: S4S-GN has"
    classical, more = (best(plan.base, plan.base.nfe + k, cfg) for k in (0, 1))
    for key, name in (("rmse", "RMSE"), ("median", "median error")):
        half, same = (results.ratio(newton, other, key) for other in (classical, more))
        claim = f"{where} at most half the {name} of the best classical solver"
        yield [claim, number(half, 3), "0.5", _holds(half, 0.5)]
        claim = f"{where} no more {name} than the best classical solver at {plan.base.nfe + 1} NFE"
        yield [claim, number(same, 3), "1", _holds(same, 1.0)]


def _rival_claims(plan: Plan, results: Results, newton: list[Cell], cfg: float) -> Iterator[Row]:
    """S4S-GN against every other learned solver, as a ratio of mean RMSEs."""
    ours = results.mean(newton)
    for method in (*METHODS[:-1], *RIVALS):
        reached = ratio(ours, results.mean(cells_of(plan, method, plan.base.nfe, cfg)))
        claim = f"CFG {cfg:g}: S4S-GN is better than {NAMES[method]}"
        yield [claim, number(reached, 3), "below 1", _holds(reached, BELOW_ONE)]


def _frechet_ratio(plan: Plan, results: Results, cfg: float) -> float | None:
    """S4S-GN's distance above the floor relative to the best classical solver's, or None."""
    cells = distribution(plan.base, plan.budget, plan.frechet, cfg)
    names = ("teacher", "best", "gauss-newton")
    floor, classical, newton = (results.value(cells[name], "to_teacher") for name in names)
    if None in (floor, classical, newton):
        return None
    return (newton - floor) / (classical - floor)


def _holds(reached: float | None, target: float) -> str:
    return NOT_RUN if reached is None else "yes" if reached <= target else "no"


def orderings(plan: Plan) -> list[tuple[str, Cell, Cell, float]]:
    """[(claim, better cell, worse cell, highest ratio)] that every quick run must show."""
    base, budget = plan.base, plan.budget
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    newton, classical = learned(base, "gauss-newton", budget), best(base, base.nfe, 1.0)
    alternating, s4s = (learned(start, method, budget) for method in ("s4s-alt", "s4s"))
    return [
        ("S4S is better than its start", s4s, start, 0.95),
        ("S4S-Alt is better than its start", alternating, start, 0.95),
        ("S4S-GN has at most 0.7 of the best classical error", newton, classical, 0.7),
        ("S4S-GN beats one more call", newton, best(base, base.nfe + 1, 1.0), BELOW_ONE),
        ("S4S-GN is better than S4S-Alt", newton, alternating, BELOW_ONE),
        ("times help S4S-GN", newton, with_options(newton, times=False), BELOW_ONE),
    ] + [
        (f"S4S-GN is better than {NAMES[cell.method]}", newton, cell, BELOW_ONE)
        for cell in rivals(base, budget, plan.seeds, base.nfe, 1.0)
    ]


def ordering_rows(plan: Plan, by_cell: ResultsByCell) -> list[Row]:
    """[claim, ratio, highest ratio, holds] of every ordering."""
    results = Results(by_cell)
    rows: list[Row] = []
    for claim, better, worse, most in orderings(plan):
        reached = ratio(results.value(better), results.value(worse))
        rows.append([claim, number(reached, 3), f"{most:g}", _holds(reached, most)])
    return rows


def check_orderings(plan: Plan, by_cell: ResultsByCell, partial: bool = False) -> None:
    """Raise S4SError if an ordering fails or, unless `partial`, was not measured."""
    for claim, reached, most, holds in ordering_rows(plan, by_cell):
        if holds == "no" or (holds == NOT_RUN and not partial):
            raise S4SError(f"Ordering failed: {claim} (ratio {reached}, must be at most {most}).")
