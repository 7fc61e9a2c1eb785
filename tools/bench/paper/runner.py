"""Measure the cells of a plan until done or out of time, then report what is finished."""

import argparse
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import torch

from s4s_core.app.folders import CHECKOUT, data_home
from s4s_core.app.progress import duration
from s4s_core.errors import S4SError, TrainingCancelled
from trainer.progress import ProgressLine

from ..report import Report
from .cells import Cell, CellStore
from .claims import check_orderings
from .measuring import Inputs, Lab
from .pictures import draw_sheets
from .plans import Plan, full_plan, quick_plan, slow_plan
from .report import build

LPIPS = CHECKOUT.parent / "shared" / "models" / "lpips"
"""Weights of LPIPS next to the checkout, used if they are there."""
_TIME_IS_UP = ""

_lab: Lab


def measure(args: argparse.Namespace) -> Report:
    """Run `bench paper`: measure what is missing and build the report, with plots in --out."""
    for option in ("workers", "budget"):
        if getattr(args, option) < 1:
            raise S4SError(f"--{option} must be at least 1.")
    inputs = inputs_of(args)
    plan = plan_of(args, inputs)
    work = Path(args.work) if args.work else data_home() / "bench" / "paper"
    deadline = time.time() + 60 * args.minutes if args.minutes is not None else None
    store = CellStore(work)
    known = "paper-cells.jsonl" if args.model == "demo" else f"paper-{plan.base.model}-cells.jsonl"
    ledger = Path(args.out) / known if args.out and not args.quick else None
    if ledger:
        store.import_ledger(ledger)
    chosen = args.sections.split(",") if args.sections else plan.sections
    reasons = run_cells(plan.cells_of(chosen), work, inputs, args.workers, deadline)
    if ledger:
        store.export_ledger(ledger, plan.cells)
    if args.pictures:
        draw_sheets(plan, Lab(work, inputs), Path(args.pictures))
    results = {cell: store.load(cell) for cell in plan.cells}
    if args.quick:
        check_orderings(plan, results, partial=deadline is not None)
    return build(plan, results, reasons, args)


def inputs_of(args: argparse.Namespace) -> Inputs:
    """What measuring may read; a model in a file is known by the file's name."""
    file = args.model.rpartition(":")[0]
    models = ((Path(file).stem, args.model),) if file else ()
    beside = LPIPS.is_dir() and importlib.util.find_spec("lpips") is not None
    return Inputs(args.images, args.lpips or (str(LPIPS) if beside else None), models)


def plan_of(args: argparse.Namespace, inputs: Inputs) -> Plan:
    """The plan that the options ask for."""
    if args.quick:
        return quick_plan(seed=args.seed)
    if inputs.models:
        return slow_plan(inputs.models[0][0], args.seed)
    if args.model != "demo":
        raise S4SError(f"--model is demo or FILE.py:NAME, not '{args.model}'.")
    return full_plan(args.budget, args.frechet, args.seed)


def run_cells(
    cells: list[Cell], work: Path, inputs: Inputs, workers: int, deadline: float | None
) -> dict[Cell, str]:
    """Measure unfinished cells until the deadline; {cell: why it could not be measured}."""
    store = CellStore(work)
    left = [cell for cell in cells if store.load(cell) is None]
    progress = _CellProgress(len(cells), len(left))
    reasons = {}
    for cell, reason in _attempts(left, work, inputs, workers, deadline):
        if reason:
            reasons[cell] = reason
        progress.advance(cell)
    progress.close()
    return reasons


def _attempts(
    cells: list[Cell], work: Path, inputs: Inputs, workers: int, deadline: float | None
) -> Iterator[tuple[Cell, str | None]]:
    """Yield (cell, error or None) as cells finish, in this process or in worker processes."""
    if workers > 1:
        yield from _attempts_in_workers(cells, work, inputs, workers, deadline)
        return
    _set_up(work, inputs, deadline)
    for cell in cells:
        reason = _attempt(cell)
        if reason == _TIME_IS_UP:
            return
        yield cell, reason


def _attempts_in_workers(
    cells: list[Cell], work: Path, inputs: Inputs, workers: int, deadline: float | None
) -> Iterator[tuple[Cell, str | None]]:
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, context, _set_up, (work, inputs, deadline, threads)) as pool:
        waiting: dict[Future[str | None], Cell] = {}
        queue = list(reversed(cells))
        while queue or waiting:
            while queue and len(waiting) < workers and not _is_past(deadline):
                cell = queue.pop()
                waiting[pool.submit(_attempt, cell)] = cell
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                cell, reason = waiting.pop(future), future.result()
                if reason != _TIME_IS_UP:
                    yield cell, reason


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.time() >= deadline


def _set_up(work: Path, inputs: Inputs, deadline: float | None, threads: int | None = None) -> None:
    """Create this process's Lab."""
    global _lab
    if threads is not None:
        torch.set_num_threads(threads)
    _lab = Lab(work, inputs, stop=lambda: _is_past(deadline))


def _attempt(cell: Cell) -> str | None:
    """Measure one cell; return None, the error message, or _TIME_IS_UP."""
    try:
        _lab.result(cell)
    except TrainingCancelled:
        return _TIME_IS_UP
    except S4SError as error:
        return str(error)
    return None


class _CellProgress:
    """A progress line over cells, with the time left."""

    def __init__(self, total: int, left: int) -> None:
        self.line, self.total, self.left = ProgressLine(), total, left
        self.done, self.start = 0, time.monotonic()
        self.line.show(1 - left / max(total, 1), f"{left} of {total} cells to measure")

    def advance(self, cell: Cell) -> None:
        """Count one more cell as done and show it."""
        self.done += 1
        rate = (time.monotonic() - self.start) / self.done
        share = (self.total - self.left + self.done) / self.total
        self.line.show(share, f"{duration(rate * (self.left - self.done))} left  {cell.label}")

    def close(self) -> None:
        self.line.close()
