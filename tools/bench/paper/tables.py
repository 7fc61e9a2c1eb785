"""Tables of the report; a cell that is not finished shows as "not run"."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..report import Row, Table
from .cells import RIVALS, Cell
from .plans import (
    CFGS,
    GUIDANCE,
    METHODS,
    NFES,
    PAPER_CFGS,
    SCHEDULES,
    SOLVERS,
    Plan,
    ablations,
    best,
    bundled,
    distribution,
    efforts,
    learned,
)
from .results import (
    NAMES,
    NOT_RUN,
    Reasons,
    Results,
    cells_of,
    number,
    ratio,
    reasons_of,
    spread,
)

METHOD_COLUMNS = [
    "solver",
    "RMSE",
    "RMSE ratio",
    "median ratio",
    "PSNR",
    "seeds",
    "NFE-eq",
    "seconds",
]
DISTRIBUTIONS = NAMES | {
    "teacher": "teacher, other noise (the floor)",
    "best": "best classical",
    "consistent": "S4S-GN, weights of each step sum to one",
}


def method_rows(plan: Plan, results: Results, nfe: int, cfg: float) -> list[Row]:
    """Rows of the best classical solver, our methods and the rivals, over all finished seeds."""
    classical = best(plan.base, nfe, cfg)
    label = results.value(classical, "name") or "?"
    rows = [_method_row(results, f"best classical ({label})", [classical], classical)]
    for method in (*METHODS, *RIVALS):
        cells = cells_of(plan, method, nfe, cfg)
        rows.append(_method_row(results, NAMES[method], cells, classical))
    return rows


def _method_row(results: Results, label: str, cells: list[Cell], classical: Cell) -> Row:
    return [
        label,
        spread(results.values(cells)),
        number(results.ratio(cells, classical), 3),
        number(results.ratio(cells, classical, "median"), 3),
        number(results.mean(cells, "psnr")),
        len(results.values(cells)),
        number(results.mean(cells, "calls"), 6),
        number(results.mean(cells, "seconds")),
    ]


def method_tables(
    plan: Plan, results: Results, reasons: Reasons, cfgs: Iterable[float] = PAPER_CFGS
) -> Iterator[Table]:
    """One table of methods and rivals per CFG."""
    nfe = plan.base.nfe
    for cfg in cfgs:
        title = f"{nfe} NFE, CFG {cfg:g}: our methods, and rivals with the same budget"
        cells = [c for m in (*METHODS, *RIVALS) for c in cells_of(plan, m, nfe, cfg)]
        rows = method_rows(plan, results, nfe, cfg)
        yield Table(title, METHOD_COLUMNS, rows, reasons_of(cells, reasons))


def big_table(plan: Plan, results: Results) -> Table:
    """Solvers x schedules x NFEs without guidance, unlearned and with S4S."""
    head = ["solver", "schedule", *(f"{n} NFE" for n in NFES), *(f"{n}, S4S" for n in NFES)]
    rows = []
    for solver, order in SOLVERS:
        for name in SCHEDULES:
            start = replace(plan.base, solver=solver, order=order, schedule=name, cfg=CFGS[0])
            plain = replace(start, budget=plan.budget) if name == "ld3" else start
            trained = learned(start, "s4s", plan.budget)
            cells = [replace(c, nfe=n) for c in (plain, trained) for n in NFES]
            rows.append([NAMES[solver], name, *(number(results.value(c)) for c in cells)])
    return Table(f"Solvers x schedules, RMSE, CFG {CFGS[0]:g}", head, rows)


def methods_table(plan: Plan, results: Results) -> Table:
    """Methods that search for their own start, at every NFE without guidance."""
    lines = {"best classical": [best(plan.base, n, CFGS[0]) for n in NFES]}
    for method in METHODS:
        cells = [learned(plan.base, method, plan.budget, nfe=n, cfg=CFGS[0]) for n in NFES]
        lines[NAMES[method]] = cells
    return Table(
        f"Methods that choose their own start, RMSE, CFG {CFGS[0]:g}",
        ["method", *(f"{n} NFE" for n in NFES)],
        [[label, *(number(results.value(c)) for c in cells)] for label, cells in lines.items()],
    )


def bundled_table(plan: Plan, results: Results) -> Table:
    """The bundled solver against the best classical solver, at every NFE in the file."""
    rows = []
    for classical, own in bundled(plan.base):
        name = results.value(classical, "name") or NOT_RUN
        values = [results.value(cell) for cell in (classical, own)]
        ratios = [results.ratio([own], classical, key) for key in ("rmse", "median")]
        rows.append([own.nfe, name, *map(number, values), *(number(r, 3) for r in ratios)])
    head = ["NFE", "best classical", "its RMSE", "S4S", "RMSE ratio", "median ratio"]
    return Table(f"The bundled solver, CFG {own.cfg:g}", head, rows)


def ablation_tables(plan: Plan, results: Results, reasons: Reasons) -> Iterator[Table]:
    """One table per ablation."""
    for title, cells in ablations(plan.base, plan.budget).items():
        rows: list[Row] = [
            [
                label,
                number(results.value(cell)),
                number(results.value(cell, "median")),
                number(results.value(cell, "psnr")),
                number(results.value(cell, "calls"), 6),
            ]
            for label, cell in cells
        ]
        note = reasons_of([cell for _, cell in cells], reasons)
        head = [title, "RMSE", "median", "PSNR", "NFE-eq"]
        yield Table(f"Ablation: {title}", head, rows, note)


def effort_table(plan: Plan, results: Results) -> Table:
    """What longer training gains, as ratios to the best classical solver."""
    rows: list[Row] = []
    head = ["CFG", "method"]
    for cfg in PAPER_CFGS:
        classical = best(plan.base, plan.base.nfe, cfg)
        for method, cells in efforts(replace(plan.base, cfg=cfg), plan.budget).items():
            row = [f"{cfg:g}", NAMES[method]]
            for cell in cells:
                ratios = (results.ratio([cell], classical, key) for key in ("rmse", "median"))
                row.append(" / ".join(number(r, 3) for r in ratios))
            rows.append(row)
    head += [f"{cell.budget:,} NFE-eq" for cell in cells]
    title = f"Longer training, {plan.base.nfe} NFE: RMSE ratio / median ratio"
    return Table(title, head, rows, "Teacher pairs are not part of the budget.")


def guidance_table(plan: Plan, results: Results) -> Table:
    """Our methods at growing CFG."""
    rows: list[Row] = []
    for cfg in GUIDANCE:
        classical = best(plan.base, plan.base.nfe, cfg)
        cells = [learned(plan.base, method, plan.budget, cfg=cfg) for method in METHODS]
        values = [results.value(c) for c in (classical, *cells)]
        rows.append([f"{cfg:g}", *map(number, values), number(ratio(values[-1], values[0]), 3)])
    head = ["CFG", "best classical", *(NAMES[m] for m in METHODS), "S4S-GN / classical"]
    return Table(f"Guidance, {plan.base.nfe} NFE, RMSE", head, rows)


def distribution_table(plan: Plan, results: Results, reasons: Reasons) -> Table:
    """Fréchet distances to the teacher's pictures and to the training pictures."""
    rows: list[Row] = []
    missing: list[Cell] = []
    for cfg in PAPER_CFGS:
        cells = distribution(plan.base, plan.budget, plan.frechet, cfg)
        missing += [cell for cell in cells.values() if cell in reasons]
        floor = results.value(cells["teacher"], "to_teacher")
        for label, cell in cells.items():
            near, images = (results.value(cell, key) for key in ("to_teacher", "to_images"))
            above = None if near is None or floor is None else near - floor
            numbers = [number(value) for value in (near, above, images)]
            rows.append([f"{cfg:g}", DISTRIBUTIONS[label], *numbers])
    head = ["CFG", f"{plan.base.nfe} NFE", "to the teacher", "above the floor", "to the pictures"]
    note = (
        f"{plan.frechet} pictures each, on EfficientNet-Lite0 features. The reference pictures are "
        "the teacher's from other noise, so even the teacher has a distance: the floor. The model "
        "draws all classes equally often; its training pictures are not balanced. "
    )
    return Table("Fréchet distances", head, rows, note + reasons_of(missing, reasons))
