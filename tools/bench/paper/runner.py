"""Measures a plan's cells until all are done or time is up, then reports whatever is finished."""

import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

import torch

from s4s_core.app.folders import data_home
from s4s_core.errors import S4SError, TrainingCancelled
from trainer.progress import ProgressLine, clock

from .cells import Shelf
from .measuring import Lab
from .plans import full_plan, quick_plan
from .report import build, check_orderings

LEDGER = "paper-cells.jsonl"

_lab = None


def measure(args):
    """What `bench paper` does: (Report, with the plots written where --out says)."""
    for option in ("workers", "budget"):
        if getattr(args, option) < 1:
            raise S4SError(f"--{option} takes a whole number from 1 on.")
    if args.quick:
        plan = quick_plan(seed=args.seed)
    else:
        plan = full_plan(args.budget, args.frechet, args.seed)
    work = Path(args.work) if args.work else data_home() / "bench" / "paper"
    deadline = time.time() + 60 * args.minutes if args.minutes is not None else None
    shelf = Shelf(work)
    ledger = Path(args.out) / LEDGER if args.out and not args.quick else None
    if ledger:
        shelf.adopt(ledger)
    reasons = run_cells(plan.cells, work, args.images, args.workers, deadline)
    if ledger:
        shelf.publish(ledger, plan.cells)
    results = {cell: shelf.load(cell) for cell in plan.cells}
    if args.quick:
        check_orderings(plan, results, hurried=deadline is not None)
    return build(plan, results, reasons, args)


def run_cells(cells, work, images, workers, deadline):
    """Measure what is not finished; {cell: why it cannot be measured}."""
    shelf = Shelf(work)
    left = [cell for cell in cells if shelf.load(cell) is None]
    line = _Line(len(cells), len(left))
    reasons = {}
    for cell, reason in _measured(left, work, images, workers, deadline):
        if reason:
            reasons[cell] = reason
        line.tell(cell)
    line.close()
    return reasons


def _measured(cells, work, images, workers, deadline):
    """Yield (cell, reason or None) as cells are done, in this process or in several."""
    if workers == 1:
        _begin(work, images, deadline)
        for cell in cells:
            reason = _attempt(cell)
            if reason == _TIME_IS_UP:
                return
            yield cell, reason
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    begin = (work, images, deadline, threads)
    with ProcessPoolExecutor(workers, context, _begin, begin) as pool:
        waiting, queue = {}, list(reversed(cells))
        while queue or waiting:
            while queue and len(waiting) < workers and not _late(deadline):
                cell = queue.pop()
                waiting[pool.submit(_attempt, cell)] = cell
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                cell, reason = waiting.pop(future), future.result()
                if reason != _TIME_IS_UP:
                    yield cell, reason


_TIME_IS_UP = ""


def _late(deadline):
    return deadline is not None and time.time() >= deadline


def _begin(work, images, deadline, threads=None):
    """Make this process's instruments."""
    global _lab
    if threads is not None:
        torch.set_num_threads(threads)
    _lab = Lab(work, images, stop=lambda: _late(deadline))


def _attempt(cell):
    """Measure one cell: None, or why it cannot be; an empty reason where time is up."""
    try:
        _lab.result(cell)
    except TrainingCancelled:
        return _TIME_IS_UP
    except S4SError as error:
        return str(error)
    return None


class _Line:
    """Progress over cells, with the time that is left."""

    def __init__(self, total, left):
        self.line, self.total, self.left = ProgressLine(), total, left
        self.done, self.began = 0, time.monotonic()
        self.line.show(1 - left / max(total, 1), f"{left} of {total} cells to measure")

    def tell(self, cell):
        self.done += 1
        rate = (time.monotonic() - self.began) / self.done
        share = (self.total - self.left + self.done) / self.total
        text = f"{clock(rate * (self.left - self.done))} left  {cell.label}"
        self.line.show(share, text)

    def close(self):
        self.line.close()
