"""The report of a plan: tables, claims and plots of the finished cells."""

import argparse
from pathlib import Path

from ..report import Report, Table
from . import headline, tables
from .claims import claims_table, ordering_rows
from .plans import Plan
from .plots import draw_plots
from .results import NOT_RUN, Reasons, Results, ResultsByCell

MEASURE = (
    "RMSE and PSNR (pictures in [-1, 1]) compare with the 20-call teacher's picture from the same "
    "noise, on {fresh} fresh starts whose seed no training uses. The teacher is the solver that "
    "moves least when its calls are doubled. LPIPS is that of AlexNet. Specks are the share of "
    "the teacher's plain white (3x3 pixels) that is darker than white by more than 12 of 255. "
    "Bands are the RMS in seven frequency bands, low to high, relative to the teacher's: less "
    "than 1 is blur, more is grain; look is the root mean square of the differences in single "
    "pictures. Fréchet distances are reported above the teacher's own with other noise, the "
    "floor. Ratios are to the best classical solver on its best schedule at the same NFE and CFG. "
    "That solver is chosen on the same pictures it is scored on, which favours it. A few pictures "
    "that change to another mode of the model dominate the RMSE, so the ratio of the medians of "
    "the per-picture errors is shown as well. NFE-eq counts everything that was spent: teacher "
    "pairs, the search for a start, validation, and the costs of gits or the training of LD3 if "
    "the start uses them. A forward pass with its backward pass counts as two, because weights "
    "are frozen. Rivals start from the result of a search like ours. DPM-Solver-v3 has one "
    "statistic for all pixels here; its authors use one per pixel. Seconds are wall-clock time of "
    "one process on a busy machine; for a resumed cell, only of its last part."
)


def build(plan: Plan, by_cell: ResultsByCell, reasons: Reasons, args: argparse.Namespace) -> Report:
    """Build the report of a plan, and write its plots to --out if it is given."""
    results = Results(by_cell)
    finished = [result for result in by_cell.values() if result]
    note = MEASURE.format(fresh=plan.base.fresh)
    status = Table("Progress", ["cells", "finished"], [[len(by_cell), len(finished)]], note)
    if args.quick:
        head = ["claim", "ratio of RMSE", "at most", "holds"]
        quick = [status, Table("Orderings", head, ordering_rows(plan, by_cell))]
        quick += tables.method_tables(plan, results, reasons, (1.0,))
        return Report("paper-quick", "Quick orderings", "bench paper --quick", quick)
    own = plan.base.model == "demo"
    every = [
        headline.teachers_table(plan, results),
        *headline.headline_tables(plan, results, reasons),
        *(_all_tables(plan, results, reasons) if own else ()),
    ]
    empty = [table for table in every if not _has_numbers(table)]
    if empty:
        status.note += "\n\nNot run yet: " + "; ".join(t.title for t in empty) + "."
    shown = [table for table in every if table not in empty]
    if not own:
        name = plan.base.model
        command = f"python s4s.py bench paper --model {name}.py:NAME"
        return Report(f"paper-{name}", f"The headline on {name}", command, [status, *shown])
    claims = claims_table(plan, results)
    if args.out and draw_plots(plan, results, Path(args.out)):
        claims.note = "![Headline at 5 NFE](paper-headline.png)\n\n![By NFE](paper-nfe.png)"
    command = f"python s4s.py bench paper --frechet {plan.frechet} --out docs/benchmarks"
    parts = [status, headline.targets_table(plan, results), *shown, claims]
    return Report("paper", "The paper's tables on the bundled model", command, parts)


def _all_tables(plan: Plan, results: Results, reasons: Reasons) -> list[Table]:
    """The tables that only the bundled model has."""
    every = [
        *headline.cause_tables(plan, results, reasons),
        *headline.objective_tables(plan, results, reasons),
        *tables.method_tables(plan, results, reasons),
        tables.bundled_table(plan, results),
        tables.big_table(plan, results),
        tables.methods_table(plan, results),
        *tables.ablation_tables(plan, results, reasons),
        tables.effort_table(plan, results),
        tables.guidance_table(plan, results),
    ]
    if plan.frechet:
        every.append(tables.distribution_table(plan, results, reasons))
    return every


def _has_numbers(table: Table) -> bool:
    """Whether a table has any result; its first two columns may be labels."""
    return any(NOT_RUN not in str(cell) for row in table.rows for cell in row[2:] if cell)
