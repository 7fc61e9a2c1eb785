"""Efforts on the bundled model: error on fresh noise against all calls spent, before and after.

"Before" is version 0.1's accounting and training with its budgets of 6,000 and 20,000 calls for
training alone, measured once with the code of that time (commit 5d8a659) on the same starts and
seeds; its numbers are in docs/benchmarks/training-efforts-before.json.
"""

import argparse
import importlib.util
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from s4s_core import fit, sample
from s4s_core.demo import load_demo
from s4s_core.model import Model
from s4s_core.names import EFFORTS
from s4s_core.table import SolverTable
from s4s_core.teacher import TEACHER_NFE, Pairs, default_teacher, draw_pairs
from s4s_core.training.plan import plan_of
from s4s_core.training.settings import Settings
from s4s_core.training.task import SCORING, SEARCH, Event

from .paper.measures import measures
from .report import Report, Row, Table

BEFORE = Path(__file__).parents[2] / "docs" / "benchmarks" / "training-efforts-before.json"
CFGS = (1.0, 2.0, 4.0)
TEACHERS = {1.0: ("unipc-bh2", 2), 2.0: ("unipc-bh2", 2), 4.0: ("dpmpp", 2)}
"""What the fresh starts are compared with: the choice of `bench paper`."""
NAMES = ("quick", "normal")
SEEDS = (0, 1, 2)
ALLOWED = {"quick": 1.1, "normal": 1.05}
MEASURES = ("rmse", "median", "look", "specks")
FRESH, FRESH_SEED, BATCH = 256, 800_000_001, 64
GROWTH = 1.2
"""A point of a curve is measured when the calls have grown by this factor."""
SEVERAL = (4, 5, 6, 8)

Result = dict[str, Any]
"""{"key": [effort, cfg, seed], "calls": ..., "scores": {...}, "curve": [[calls, RMSE], ...]}."""


@lru_cache(maxsize=1)
def _fresh(cfg: float) -> tuple[Model, Pairs]:
    model = load_demo("ve", cfg)
    teacher = default_teacher(model, solver=TEACHERS[cfg])
    return model, draw_pairs(model, teacher, FRESH, FRESH_SEED, BATCH)


def _score(cfg: float, table: SolverTable) -> dict[str, float]:
    model, pairs = _fresh(cfg)
    with torch.inference_mode():
        parts = [sample(model.denoise, p.x, table, p.cond) for p in pairs.batches(BATCH)]
        found = measures(torch.cat(parts), pairs.target)
    return {name: found[name] for name in MEASURES}


def run(effort: str, cfg: float, seed: int) -> Result:
    """Train at 5 NFE, and score the result and what training had on the way."""
    curve: list[tuple[int, float]] = []

    def listen(event: Event) -> None:
        learned = event.nfe is not None and event.phase not in (SEARCH, SCORING)
        if learned and event.table and event.calls > GROWTH * (curve[-1][0] if curve else 0):
            curve.append((event.calls, _score(cfg, event.table)["rmse"]))

    model, _ = _fresh(cfg)
    result = fit(model, 5, seed=seed, budget=EFFORTS[effort], callback=listen, batch=BATCH)
    scores = _score(cfg, result.pack[5])
    return {
        "key": [effort, cfg, seed],
        "calls": result.calls,
        "scores": scores,
        "curve": [*curve, (result.calls, scores["rmse"])],
    }


def _named(results: Iterable[Result], effort: str, cfg: float) -> list[Result]:
    return [each for each in results if each["key"][:2] == [effort, cfg]]


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    return f"{mean(found):.4f} ± {stdev(found):.4f}"


def comparison(before: list[Result], after: list[Result]) -> Table:
    """Mean over the seeds, before and after, and whether the quality was kept."""
    rows: list[Row] = []
    for effort in NAMES:
        for cfg in CFGS:
            old, new = (_named(each, effort, cfg) for each in (before, after))
            calls = [max(each["calls"] for each in results) for results in (old, new)]
            row: Row = [effort, f"{cfg:g}", *(f"{count:,}" for count in calls)]
            ratios = {}
            for name in MEASURES:
                olds, news = ([each["scores"][name] for each in rs] for rs in (old, new))
                ratios[name] = mean(news) / mean(olds)
                if name in ("rmse", "look"):
                    row += [_spread(olds), _spread(news)]
            row += [f"{ratios[name]:.3f}" for name in MEASURES]
            kept = max(ratios["rmse"], ratios["look"]) <= ALLOWED[effort]
            rows.append([*row, "yes" if kept else "no"])
    head = ["effort", "CFG", "calls before", "calls after"]
    head += [f"{name} {when}" for name in ("RMSE", "look") for when in ("before", "after")]
    head += [f"{name} ratio" for name in ("RMSE", "median", "look", "specks")]
    note = (
        f"Calls are all that a run made, at most over the seeds. Mean and standard deviation of "
        f"{len(SEEDS)} training seeds, {FRESH} fresh starts, 5 NFE. Kept: RMSE and look within "
        "10 % (quick) and 5 % (normal) of before."
    )
    return Table("Quick and normal, before and after", [*head, "kept"], rows, note)


def counts() -> Table:
    """What the meter counted, for one step count and for four, at CFG 4."""
    model, rows = _fresh(4.0)[0], []
    for effort in NAMES:
        for nfes in ((5,), SEVERAL):
            settings = Settings(nfes=nfes, budget=EFFORTS[effort])
            planned = plan_of(settings, TEACHER_NFE).total
            result = fit(model, nfes, budget=EFFORTS[effort], batch=BATCH)
            errors = {nfe: result.scores[str(nfe)] for nfe in nfes}
            ratios = (
                f"{nfe}: {each['rmse'] / each['classical']:.2f}" for nfe, each in errors.items()
            )
            text = ", ".join(map(str, nfes))
            rows.append([effort, text, f"{planned:,}", f"{result.calls:,}", ", ".join(ratios)])
    head = ["effort", "steps", "calls planned", "calls made", "RMSE to best classical, held out"]
    return Table("Calls by the meter, CFG 4", head, rows)


def plot(before: list[Result], after: list[Result], path: Path) -> None:
    """Plot error against all calls, one panel per CFG; does nothing without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(CFGS), figsize=(4 * len(CFGS), 4))
    for panel, cfg in zip(panels, CFGS, strict=True):
        for results, colour, label in ((before, "grey", "before"), (after, "C0", "after")):
            for number, each in enumerate(_named(results, "normal", cfg)):
                calls, errors = zip(*each["curve"], strict=True)
                panel.step(calls, errors, colour, where="post", label=label if not number else None)
        panel.set(title=f"CFG {cfg:g}", xscale="log", xlabel="all model calls spent")
        panel.legend(fontsize=8)
    panels[0].set_ylabel("RMSE to the teacher, fresh noise")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def measure(args: argparse.Namespace) -> Report:
    """Train with quick and normal effort, and compare with before."""
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    after: list[Result] = []
    for cfg in CFGS:  # the pairs of one CFG are drawn once
        for effort in NAMES:
            after += [run(effort, cfg, seed) for seed in SEEDS]
            print(f"CFG {cfg:g}, {effort} done", flush=True)
    if args.out:
        plot(before, after, Path(args.out) / "training-efforts.png")
    return Report(
        "training-efforts",
        "Efforts on the bundled model",
        "python s4s.py bench training --efforts --out docs/benchmarks",
        [comparison(before, after), counts()],
    )
