"""Tables of how results look: what artists would pick, S4S-GN, its causes and its objectives."""

from collections.abc import Iterator

from s4s_core.teacher import TEACHER_NFE

from ..report import Row, Table
from . import plans
from .cells import Cell
from .plans import CFGS, Plan, Rows
from .results import NOT_RUN, Reasons, Results, number, percent, ratio, reasons_of, spread

MENDED = (
    "Each row names what is mended. Objective: look and weights that keep their sums (of all steps "
    "where guidance is learned, else of the last), instead of L2 and free weights. Guidance: "
    "learned for each call, instead of fixed. Teacher: the chosen one, instead of UniPC 3. All "
    "rows are scored against the chosen teacher."
)
OPTIONAL = {"LPIPS", "specks", "look", "bands", "Fréchet above floor"}
"""Columns that are left out where no row has them."""


def teachers_table(plan: Plan, results: Results) -> Table:
    """The teacher at each CFG of the plan."""
    rows: list[Row] = []
    for cell in plan.sections["teachers"]:
        solver, order = (results.value(cell, key) for key in ("solver", "order"))
        rows.append([f"{cell.cfg:g}", TEACHER_NFE, f"{solver} {order}" if solver else NOT_RUN])
    return Table("Teachers", ["CFG", "calls", "solver"], rows)


def headline_tables(plan: Plan, results: Results, reasons: Reasons) -> Iterator[Table]:
    """One table per CFG or NFE: classical solvers, artists' picks and S4S-GN."""
    for rows in plan.headlines:
        cell = rows["S4S-GN"][0]
        title = f"{cell.model}, {cell.nfe} NFE, CFG {cell.cfg:g}"
        yield _table(title, plan, results, reasons, rows)


def cause_tables(plan: Plan, results: Results, reasons: Reasons) -> Iterator[Table]:
    """One table per CFG: what each mended cause does, alone and together."""
    for cfg in CFGS:
        title = f"Causes mended, {plan.base.nfe} NFE, CFG {cfg:g}"
        table = _table(title, plan, results, reasons, plans.causes(plan.base, cfg))
        table.note = f"{MENDED} {table.note}".strip()
        yield table


def objective_tables(plan: Plan, results: Results, reasons: Reasons) -> Iterator[Table]:
    """One table per CFG: objectives of S4S-GN."""
    for cfg in CFGS:
        title = f"Objectives, {plan.base.nfe} NFE, CFG {cfg:g}"
        yield _table(title, plan, results, reasons, plans.objectives(plan.base, cfg))


def _table(title: str, plan: Plan, results: Results, reasons: Reasons, rows: Rows) -> Table:
    """A table of all measures."""
    cfg, nfe = next((c.cfg, c.nfe) for cells in rows.values() for c in cells)
    classical = rows.get("best classical", [plans.best(plan.base, nfe, cfg)])[0]
    lines = [_line(plan, results, label, cells, classical) for label, cells in rows.items()]
    head = [
        column
        for column in lines[0]
        if column not in OPTIONAL or any(line[column] != NOT_RUN for line in lines)
    ]
    table: list[Row] = [[line[column] for column in head] for line in lines]
    return Table(title, head, table, reasons_of([c for r in rows.values() for c in r], reasons))


def _line(
    plan: Plan, results: Results, label: str, cells: list[Cell], classical: Cell
) -> dict[str, str]:
    """{column: text} of one row, over all finished seeds."""
    name = results.value(cells[0], "name") if label == "best classical" else None
    bands = [results.value(cell, "bands") for cell in cells]
    known = [b for b in bands if b is not None]
    means = [sum(values) / len(known) for values in zip(*known, strict=True)]
    return {
        "solver": f"{label} ({name})" if name else label,
        "RMSE": spread(results.values(cells)),
        "RMSE ratio": number(results.ratio(cells, classical), 3),
        "median": spread(results.values(cells, "median")),
        "median ratio": number(results.ratio(cells, classical, "median"), 3),
        "LPIPS": spread(results.values(cells, "lpips"), 3),
        "specks": percent(results.mean(cells, "specks")),
        "look": number(results.mean(cells, "look"), 3),
        "bands": " ".join(f"{value:.2f}" for value in means) or NOT_RUN,
        "Fréchet above floor": number(above_floor(plan, results, cells)),
        "PSNR": number(results.mean(cells, "psnr")),
        "NFE-eq": number(results.mean(cells, "calls"), 6),
        "seeds": str(len(results.values(cells)) or NOT_RUN),
    }


def above_floor(plan: Plan, results: Results, cells: list[Cell]) -> float | None:
    """Mean Fréchet distance to the teacher's pictures, minus that of the teacher itself."""
    if not plan.frechet:
        return None
    count, cfg = plan.frechet, cells[0].cfg
    least = results.value(plans.floor(plan.base, cfg, count), "to_teacher")
    near = results.mean([plans.pictured(cell, count) for cell in cells], "to_teacher")
    return None if least is None or near is None else near - least


TARGETS = {
    1.0: {"rmse": 0.68, "median": 0.55, "frechet": 0.4, "specks": 1.0},
    2.0: {"rmse": 0.75, "median": 0.75, "frechet": 0.8, "specks": 1.0},
    4.0: {"rmse": 0.78, "median": 0.75, "frechet": 0.9, "specks": 1.2},
    7.5: {"rmse": 0.85, "median": 0.85, "frechet": 1.0, "specks": 1.2},
}
"""The most that S4S-GN may have of the best classical solver's, by CFG."""
MEASURES = {
    "rmse": "RMSE",
    "median": "median error",
    "frechet": "Fréchet distance above the floor",
    "specks": "specks",
}


def targets_table(plan: Plan, results: Results) -> Table:
    """Whether S4S-GN reaches its targets against the best classical solver, and at what cost."""
    rows: list[Row] = []
    for cfg, targets in TARGETS.items():
        shown = plans.headline(plan.base, plan.seeds, cfg)
        pair = [shown[name] for name in ("S4S-GN", "best classical")]
        for key, most in targets.items():
            ours, theirs = (_measured(plan, results, cells, key) for cells in pair)
            reached = ratio(ours, theirs)
            numbers = [number(ours), number(theirs), number(reached, 3), f"{most:g}"]
            rows.append([f"{cfg:g}", MEASURES[key], *numbers, verdict(reached, most)])
        calls = max(results.values(pair[0], "calls"), default=None)
        spent = [number(calls, 6), "", "", f"{plans.TOTAL:,}", verdict(calls, plans.TOTAL)]
        rows.append([f"{cfg:g}", "calls in all, at most", *spent])
    head = ["CFG", "measure", "S4S-GN", "best classical", "ratio", "at most", "target"]
    return Table(f"Targets at {plan.base.nfe} NFE", head, rows)


def _measured(plan: Plan, results: Results, cells: list[Cell], key: str) -> float | None:
    return above_floor(plan, results, cells) if key == "frechet" else results.mean(cells, key)


def verdict(reached: float | None, most: float) -> str:
    return NOT_RUN if reached is None else "reached" if reached <= most else "missed"
