"""Strengths below 1 on the bundled model: trained parts and the untrained fallback against stock.

The model counts its times as Stable Diffusion does, so a strength means what it means there.
Starts are held-out pictures (results of the whole way from fresh noise), noised to the level of a
strength; errors are to 20 calls of the teacher from the same start.
"""

import argparse
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean, mean

import torch

from s4s_core import classical_table, fit, load_solver, sample, save_solver
from s4s_core.app import pictures
from s4s_core.app.estimate import IMG2IMG_STRENGTHS
from s4s_core.demo import DemoModel, load_demo
from s4s_core.names import EFFORTS
from s4s_core.parts import part_table
from s4s_core.schedules.closed import edm_levels
from s4s_core.strength import Below, level_of
from s4s_core.table import SolverPack, SolverTable
from s4s_core.teacher import (
    TEACHER_NFE,
    Drawing,
    Pairs,
    default_teacher,
    draw_pairs,
    draw_pairs_below,
)

from .paper.measures import measures
from .report import Report, Row, Table

CFGS = (1.0, 4.0)
TEACHERS = {1.0: ("unipc-bh2", 2), 4.0: ("dpmpp", 2)}
"""What `bench paper` chose at these scales."""
STRENGTHS, NFES = (0.2, 0.4, 0.6, 0.8), (3, 4, 5, 6, 7, 8)
TRAINED = {"trained there": STRENGTHS, "trained by the switch": IMG2IMG_STRENGTHS}
FALLBACK = "untrained"
STOCK = {
    "Euler": ("euler", 1),
    "DPM++ 2M": ("dpmpp", 2),
    "UniPC": ("unipc-bh2", 3),
}
SCHEDULES = ("simple", "karras")
FRESH, FRESH_SEED, BATCH = 128, 800_000_017, 64
SHOWN, SHOWN_NFE = 8, 4

Scores = dict[str, dict[str, float]]
"""{solver: {"rmse": ..., "look": ...}} at one strength and NFE."""


def stock_nodes(model: DemoModel, level: float, schedule: str, nfe: int) -> torch.Tensor:
    """Return the nodes of a host's schedule from a level on; both end with a step to 0."""
    if schedule == "karras":
        nodes = edm_levels("ve", level, model.sigma_min, nfe - 1)
    else:
        assert model.times is not None
        first = float(model.times.time(torch.tensor(level)))
        nodes = model.times.sigma(torch.linspace(first, 0, nfe + 1, dtype=torch.float64)[:-1])
    return torch.cat([nodes, nodes.new_zeros(1)])


def stock_tables(model: DemoModel, level: float, nfe: int) -> dict[str, SolverTable]:
    """Return what artists would choose, by name."""
    return {
        f"{title} {schedule}": classical_table(
            name, stock_nodes(model, level, schedule, nfe), order, "ve"
        )
        for title, (name, order) in STOCK.items()
        for schedule in SCHEDULES
    }


def trained(cfg: float, strengths: tuple[float, ...], seed: int, work: Path) -> SolverPack:
    """Train with normal effort, or load what was trained; an interrupted run goes on."""
    stem = f"strength-cfg{cfg:g}-{'-'.join(f'{s:g}' for s in strengths)}-seed{seed}"
    path = work / f"{stem}.safetensors"
    if not path.exists():
        result = fit(
            load_demo("vp", cfg),
            NFES,
            seed=seed,
            budget=EFFORTS["normal"],
            state=work / f"{stem}.run",
            cache=work,
            batch=BATCH,
            strengths=strengths,
        )
        save_solver(path, result.pack)
    return load_solver(path)


@lru_cache(maxsize=1)
def _pictures(cfg: float) -> Pairs:
    model = load_demo("vp", cfg)
    teacher = default_teacher(model, TEACHER_NFE, solver=TEACHERS[cfg])
    return draw_pairs(model, teacher, FRESH, FRESH_SEED, BATCH)


@lru_cache(maxsize=len(STRENGTHS))
def held_out(cfg: float, strength: float) -> Pairs:
    """Return the held-out starts of a strength, with the teacher's results."""
    model = load_demo("vp", cfg)
    view = Below(model, level_of(model, strength))
    whole, rest = (default_teacher(m, TEACHER_NFE, solver=TEACHERS[cfg]) for m in (model, view))
    seed = FRESH_SEED + round(100 * strength)
    return draw_pairs_below(view, rest, _pictures(cfg), whole, seed, Drawing(BATCH))


def results(cfg: float, table: SolverTable, pairs: Pairs) -> torch.Tensor:
    """Run a table from held-out starts."""
    model = load_demo("vp", cfg)
    with torch.inference_mode():
        return torch.cat([sample(model.denoise, p.x, table, p.cond) for p in pairs.batches(BATCH)])


def score(cfg: float, tables: dict[str, SolverTable], pairs: Pairs) -> Scores:
    """Measure tables against the teacher."""
    return {name: measures(results(cfg, t, pairs), pairs.target) for name, t in tables.items()}


def learned_tables(
    model: DemoModel, packs: dict[str, list[SolverPack]], level: float, nfe: int
) -> dict[str, list[SolverTable]]:
    """Return what each pack of each seed runs; without parts, that is the fallback."""
    first = next(iter(packs.values()))
    bare = [SolverPack(pack.tables) for pack in first]
    return {
        name: [part_table(pack, level, 0.0, nfe, model.sigma_min) for pack in seeds]
        for name, seeds in (packs | {FALLBACK: bare}).items()
    }


def measure_cfg(cfg: float, packs: dict[str, list[SolverPack]]) -> tuple[list[Row], list[Row]]:
    """Return the rows of the table of RMSE and of the table of ratios."""
    model, errors, ratios = load_demo("vp", cfg), list[Row](), list[Row]()
    for strength in STRENGTHS:
        level, pairs = level_of(model, strength), held_out(cfg, strength)
        for nfe in NFES:
            stock = score(cfg, stock_tables(model, level, nfe), pairs)
            ours = {
                name: [score(cfg, {name: table}, pairs)[name] for table in tables]
                for name, tables in learned_tables(model, packs, level, nfe).items()
            }
            best = min(stock, key=lambda name: stock[name]["rmse"])
            key: Row = [f"{strength:g}", f"{level:.3g}", str(nfe)]
            values = [stock[name]["rmse"] for name in stock]
            values += [mean(each["rmse"] for each in found) for found in ours.values()]
            errors.append([*key, *values])
            row: Row = [*key, best]
            for found in ours.values():
                row.append(_ratio([each["rmse"] for each in found], stock, "rmse"))
                row.append(_ratio([each["look"] for each in found], stock, "look"))
            ratios.append(row)
    return errors, ratios


def _ratio(ours: list[float], stock: Scores, name: str) -> str:
    """Return the mean ratio to the best stock choice by a measure, and its spread over seeds."""
    best = min(found[name] for found in stock.values())
    found = [value / best for value in ours]
    spread = f" ({min(found):.2f}-{max(found):.2f})" if len(found) > 1 else ""
    return f"{mean(found):.2f}{spread}"


def _summary(cfg: float, ratios: Iterable[Row], names: list[str]) -> list[Row]:
    """Return the geometric mean and the worst of each column of ratios."""
    rows, listed = [], list(ratios)
    for column, name in enumerate(names, 4):
        values = [float(str(row[column]).split()[0]) for row in listed]
        rows.append([f"{cfg:g}", name, geometric_mean(values), max(values)])
    return rows


def draw(cfg: float, packs: dict[str, list[SolverPack]], path: Path) -> None:
    """Draw consecutive held-out starts at strength 0.6 with few calls, a row for each solver."""
    model, strength = load_demo("vp", cfg), 0.6
    level, pairs = level_of(model, strength), held_out(cfg, strength)[:SHOWN]
    stock = stock_tables(model, level, SHOWN_NFE)
    tables = {name: stock[name] for name in ("Euler simple", "DPM++ 2M karras", "UniPC karras")}
    learned = learned_tables(model, packs, level, SHOWN_NFE)
    tables |= {f"S4S, {name}": found[0] for name, found in learned.items()}
    shown = {"the picture": _pictures(cfg).target[:SHOWN], "20 calls": pairs.target}
    shown |= {f"{name}, {SHOWN_NFE}": results(cfg, t, pairs) for name, t in tables.items()}
    rows = [pictures.Row(title, (x + 1) / 2) for title, x in shown.items()]
    pictures.save_png(path, pictures.sheet(rows))


def measure(args: argparse.Namespace) -> Report:
    """Train, measure and tabulate; what was trained is kept in --work."""
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    tables, summary = [], list[Row]()
    for cfg in CFGS:
        packs = {
            name: [trained(cfg, strengths, seed, work) for seed in range(args.seeds)]
            for name, strengths in TRAINED.items()
        }
        errors, ratios = measure_cfg(cfg, packs)
        names = [*packs, FALLBACK]
        columns = [f"{name}, {what}" for name in names for what in ("RMSE", "look")]
        summary += _summary(cfg, ratios, columns)
        key = ["strength", "level", "calls"]
        stock = [f"{title} {schedule}" for title in STOCK for schedule in SCHEDULES]
        tables += [
            Table(f"CFG {cfg:g}: ratio to the best stock choice", [*key, "best", *columns], ratios),
            Table(f"CFG {cfg:g}: RMSE", [*key, *stock, *names], errors),
        ]
        if args.out:
            draw(cfg, packs, Path(args.out) / f"strength-cfg{cfg:g}.png")
    head = ["CFG", "solver and measure", "geometric mean", "worst cell"]
    return Report(
        "strength",
        "Strengths below 1 on the bundled model",
        "python s4s.py bench strength --out docs/benchmarks",
        [Table("Summary: ratio to the best stock choice", head, summary, NOTE), *tables],
    )


NOTE = (
    f"{FRESH} held-out pictures, noised to the level of each strength; errors to 20 calls from the "
    "same start. The best stock choice is the best of six in each cell, by each measure: a host's "
    "user would have to know which. RMSE is in the pictures' units, where white is 1 and black -1: "
    "differences of less than 0.01 cannot be seen. Trained there: parts for 0.2, 0.4, 0.6, 0.8; by "
    "the switch: for 0.3, 0.5, 0.75, moved to the level. Untrained: the same solvers without their "
    "parts. Normal effort; mean over training seeds, with the lowest and the highest. Consecutive "
    "held-out starts at strength 0.6 with 4 calls: [CFG 1](strength-cfg1.png), "
    "[CFG 4](strength-cfg4.png)."
)
