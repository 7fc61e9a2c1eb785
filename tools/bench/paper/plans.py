"""The benchmark's tables as lists of cells, most important first.

The headline, the causes and the objectives are trained as artists would train: with the default
objective and at most TOTAL calls for everything. The paper's tables give each method
the same budget for training alone, and come after them.

Training seeds are 0, 1 and 2 (counted from --seed). The noise for scoring has its own seed in
`measuring`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from s4s_core import load_solver
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.errors import S4SError

from .cells import BUNDLED, RIVALS, UNLEARNED, Cell, choice

NFES = (4, 5, 6, 8)
CFGS = (1.0, 2.0, 4.0, 7.5)
IMPORTANT_FIRST = (4.0, 2.0, 7.5, 1.0)
PAPER_CFGS = (1.0, 2.0)
GUIDANCE = (1.0, 2.0, 3.0, 5.0, 7.0)
SOLVERS = (("dpmpp", 3), ("ipndm", 3), ("unipc-bh2", 3))
SCHEDULES = ("uniform", "quadratic", "edm", "logsnr", "dmn", "gits", "ld3")
METHODS = ("s4s", "s4s-alt", "gauss-newton")
SEEDS = 3
BUDGET = 8_000
NORMAL = 20_000
"""The default budget of version 0.1, for training alone."""
TOTAL = 12_000
"""The most model calls of a headline cell, everything included."""
ARTISTS = {
    "DPM++ 2M Karras": ("dpmpp", 2, "edm"),
    "Euler": ("euler", 1, "edm"),
    "UniPC": ("unipc-bh2", 2, "edm"),
    "DDIM": ("ddim", 1, "logsnr"),
}
"""What an artist would pick: {name: (solver, order, schedule)}."""
OLD_OBJECTIVE = {"objective": "l2", "consistent": "free"}
OLD_TEACHER = "unipc-bh2:3"
SLOW_SIZES = {"samples": 24, "validation": 12, "held_out": 12}
SLOW_BUDGET = 500
"""Calls per NFE to train with on a model of a few calls a second, times the NFE."""
SLOW_FRESH = 32


Rows = dict[str, list[Cell]]
"""{label: the cells of a row, one per seed}."""


@dataclass(frozen=True)
class Plan:
    """Cells by section, and the seeds, budget and base cell that they were made from.

    `headlines` are the tables that compare S4S-GN with classical solvers, one per CFG or NFE.
    """

    sections: dict[str, list[Cell]]
    seeds: tuple[int, ...]
    budget: int
    frechet: int
    base: Cell
    headlines: tuple[Rows, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """All cells without duplicates, most important first."""
        return self.cells_of(self.sections)

    def cells_of(self, sections: Iterable[str]) -> list[Cell]:
        """The cells of some sections, without duplicates; raise S4SError for an unknown one."""
        names = list(sections)
        unknown = sorted(set(names) - set(self.sections))
        if unknown:
            known = ", ".join(self.sections)
            raise S4SError(f"There is no section '{unknown[0]}'. Choose some of {known}.")
        return list(dict.fromkeys(c for name in names for c in self.sections[name]))


def best(cell: Cell, nfe: int, cfg: float) -> Cell:
    """The best classical solver on its best schedule."""
    return replace(cell, solver="best", schedule="all", order=0, method=UNLEARNED, nfe=nfe, cfg=cfg)


def learned(cell: Cell, method: str, budget: int, **changes: Any) -> Cell:
    """The cell, trained with a method and a budget."""
    return replace(cell, method=method, budget=budget, **changes)


def with_options(cell: Cell, **options: Any) -> Cell:
    """The cell with these options of `fit`."""
    return replace(cell, options=tuple(sorted(options.items())))


def newton(base: Cell, cfg: float, seed: int, teacher: str = "", **options: Any) -> Cell:
    """S4S-GN as an artist would train it, with at most TOTAL calls."""
    cell = learned(base, "gauss-newton", TOTAL, cfg=cfg, seed=seed, teacher=teacher)
    return with_options(cell, inclusive=True, **options)


def artists(base: Cell, nfe: int, cfg: float) -> dict[str, Cell]:
    """{name: cell} of what an artist would pick."""
    return {
        name: replace(base, solver=solver, order=order, schedule=on, nfe=nfe, cfg=cfg)
        for name, (solver, order, on) in ARTISTS.items()
    }


def headline(base: Cell, seeds: Iterable[int], cfg: float) -> Rows:
    """The best classical solver, S4S-GN with every seed, and what an artist would pick."""
    return {
        "best classical": [best(base, base.nfe, cfg)],
        "S4S-GN": [newton(base, cfg, seed) for seed in seeds],
        **{name: [cell] for name, cell in artists(base, base.nfe, cfg).items()},
    }


def pictured(cell: Cell, count: int) -> Cell:
    """The Fréchet distance of a cell's pictures."""
    return replace(cell, frechet=count)


def floor(base: Cell, cfg: float, count: int) -> Cell:
    """The Fréchet distance of the teacher's own pictures from other noise."""
    return replace(base, cfg=cfg, method="teacher", frechet=count)


def causes(base: Cell, cfg: float) -> Rows:
    """S4S-GN with each of three causes of unclean pictures mended, alone and together.

    Without guidance there is none to learn, so some rows are the same cell.
    """
    rows = {}
    for look, guidance, teacher in product((True, False), repeat=3):
        mended = {"objective": look, "guidance": guidance, "teacher": teacher}
        names = [name for name, done in mended.items() if done]
        label = "all three" if len(names) == 3 else " and ".join(names) or "none"
        options: dict[str, Any] = {} if look else dict(OLD_OBJECTIVE)
        if not guidance and cfg != 1:
            options["guidance"] = False
        rows[label] = [newton(base, cfg, base.seed, "" if teacher else OLD_TEACHER, **options)]
    return dict(sorted(rows.items(), key=lambda row: (row[0] == "none", row[0] != "all three")))


def objectives(base: Cell, cfg: float) -> Rows:
    """S4S-GN with other objectives; the last step stays consistent, guidance is learned."""
    names = {"L2": "l2", "LPIPS (Alex)": "lpips-alex", "L2 and LPIPS (Alex)": "l2+lpips-alex"}
    rows = {"look (default)": [newton(base, cfg, base.seed)]}
    return rows | {
        label: [newton(base, cfg, base.seed, objective=name)] for label, name in names.items()
    }


def methods(base: Cell, budget: int, seeds: Iterable[int], nfe: int, cfg: float) -> list[Cell]:
    """The best classical solver, and every method with every seed."""
    cells = [best(base, nfe, cfg)]
    for seed in seeds:
        cells += [
            learned(base, method, budget, nfe=nfe, cfg=cfg, seed=seed)
            for method in reversed(METHODS)
        ]
    return cells


def rivals(base: Cell, budget: int, seeds: tuple[int, ...], nfe: int, cfg: float) -> list[Cell]:
    """Rivals with the same budget, from the start that a search like ours finds.

    GS takes only the schedule of that start, and the solver whose theory follows the times.
    DPM-Solver-v3 uses the schedule it was made for.
    """
    at = replace(base, solver="auto", nfe=nfe, cfg=cfg)
    own = {
        "gs": replace(at, solver="dpmpp", schedule="auto"),
        "dpm-v3": replace(at, solver="dpm-v3", order=2, schedule="logsnr"),
    }
    return [
        learned(own.get(name, at), name, budget, seed=seed) for name in RIVALS for seed in seeds
    ]


def big_table(
    base: Cell, budget: int, cfg: float, nfes: Iterable[int] = NFES
) -> tuple[list[Cell], list[Cell]]:
    """(unlearned, learned) cells of solvers x schedules x NFEs, and of every method per NFE."""
    plain: list[Cell] = []
    trained: list[Cell] = []
    for nfe in nfes:
        plain.append(best(base, nfe, cfg))
        trained += [learned(base, m, budget, nfe=nfe, cfg=cfg) for m in reversed(METHODS)]
        for solver, order in SOLVERS:
            for name in SCHEDULES:
                cell = replace(base, solver=solver, order=order, schedule=name, nfe=nfe, cfg=cfg)
                # LD3 learns the schedule, so even the unlearned solver costs a budget.
                start = replace(cell, budget=budget) if name == "ld3" else cell
                (trained if name == "ld3" else plain).append(start)
                trained.append(learned(cell, "s4s", budget))
    return plain, trained


Ablations = dict[str, list[tuple[str, Cell]]]
"""{title: [(label, cell)]}."""


def ablations(base: Cell, budget: int) -> Ablations:
    """What the paper varies, one thing at a time, from iPNDM on EDM at 5 NFE; then our own."""
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    s4s = learned(start, "s4s", budget)
    newton = learned(base, "gauss-newton", budget)
    single_step = [
        (f"DPM-Solver 2S, {nfe} NFE, {method}", cell)
        for nfe in (4, 6, 8)
        for method, cell in _single_step(base, nfe, budget)
    ]
    return {
        "single-step solvers": single_step,
        **_paper_ablations(s4s),
        **_newton_ablations(base, s4s, newton),
    }


def _paper_ablations(s4s: Cell) -> Ablations:
    """Variations of S4S."""
    return {
        "order": [(f"iPNDM {k}", replace(s4s, order=k)) for k in (1, 2, 3, 4)],
        "alternating against joint": [
            ("coefficients only", s4s),
            ("alternating", replace(s4s, method="s4s-alt")),
            ("joint", replace(s4s, method="joint")),
            ("times only (LD3)", replace(s4s, method="ld3")),
        ],
        "initialisation": [
            ("iPNDM", s4s),
            ("DPM-Solver++", replace(s4s, solver="dpmpp")),
            ("UniPC", replace(s4s, solver="unipc-bh2")),
            ("Gaussian", replace(s4s, solver="gaussian")),
        ],
        "consistency": [
            ("last step", s4s),
            ("all steps", with_options(s4s, consistent="all")),
            ("free", with_options(s4s, consistent="free")),
        ],
        "time dependence": [("time-dependent", s4s), ("fixed", with_options(s4s, fixed=True))],
        "objective": [
            ("look", s4s),
            ("L2", with_options(s4s, objective="l2")),
            ("LPIPS", with_options(s4s, objective="lpips-alex")),
        ],
        "relaxed objective": [
            ("hard, r = 0", with_options(s4s, relax=0.0)),
            ("relaxed, r as in the paper", s4s),
            ("relaxed, 4 r", with_options(s4s, relax=4.0)),
        ],
    }


def _newton_ablations(base: Cell, s4s: Cell, newton: Cell) -> Ablations:
    """Training-set sizes, and variations of gauss-newton."""
    sizes = (8, 16, 32, 64, 128)
    return {
        "training-set size": [
            (f"gauss-newton, {n} pairs", with_options(newton, samples=n)) for n in sizes
        ]
        + [(f"S4S, {n} pairs", with_options(s4s, samples=n)) for n in sizes],
        "history of gauss-newton": [
            ("noise, three calls", _converged(base, "ipndm", 3, "edm")),
            ("noise, all calls", _converged(base, "adams-bashforth", base.nfe, "edm")),
            ("data, three calls", _converged(base, "dpmpp", 3, "logsnr")),
            ("data, all calls", _converged(base, "exp-lagrange", base.nfe, "logsnr")),
        ],
        "times of gauss-newton": [
            ("coefficients and times", newton),
            ("coefficients only", with_options(newton, times=False)),
        ],
    }


def _converged(base: Cell, solver: str, order: int, name: str) -> Cell:
    """Gauss-newton from one start, trained until only the family limits it."""
    start = replace(base, solver=solver, order=order, schedule=name)
    return with_options(learned(start, "gauss-newton", NORMAL), samples=128)


def _single_step(base: Cell, nfe: int, budget: int) -> Iterator[tuple[str, Cell]]:
    """(method, cell) of DPM-Solver 2S, unlearned and learned."""
    cell = replace(base, solver="dpm-solver", order=2, schedule="logsnr", nfe=nfe)
    yield UNLEARNED, cell
    for method in METHODS:
        yield method, learned(cell, method, budget)


def efforts(base: Cell, budget: int) -> dict[str, list[Cell]]:
    """{method: cells with growing budgets}."""
    budgets = (budget, NORMAL, 3 * NORMAL)
    return {m: [learned(base, m, calls) for calls in budgets] for m in METHODS}


def guidance(base: Cell, budget: int) -> list[Cell]:
    """CFG 1 to 7 at 5 NFE."""
    return [cell for cfg in GUIDANCE for cell in methods(base, budget, (base.seed,), base.nfe, cfg)]


def distribution(base: Cell, budget: int, count: int, cfg: float) -> dict[str, Cell]:
    """{label: cell} of Fréchet distances at 5 NFE; the teacher's own distance is the floor.

    In a consistent table the weights of each step sum to one, so it adds no noise of its own.
    """
    at = replace(base, cfg=cfg)
    trained = learned(at, "gauss-newton", budget)
    rows = {"best": best(base, base.nfe, cfg)}
    rows |= {method: learned(at, method, budget) for method in METHODS}
    rows["consistent"] = with_options(trained, consistent="all")
    pictures = {label: pictured(cell, count) for label, cell in rows.items()}
    return {"teacher": floor(base, cfg, count), **pictures}


def bundled(base: Cell) -> list[tuple[Cell, Cell]]:
    """[(best classical, bundled solver)] at every NFE in the file and the CFG of the file."""
    pack = load_solver(DEMO_SOLVER)
    cfg = float(pack.metadata["cfg"][0])
    own = with_options(replace(base, method=BUNDLED, cfg=cfg), pack=pack.digest)
    return [(best(base, nfe, cfg), replace(own, nfe=nfe)) for nfe in pack.nfes]


def full_plan(budget: int = BUDGET, frechet: int = 2048, seed: int = 0) -> Plan:
    """The whole benchmark on the bundled model."""
    base = Cell(seed=seed)
    seeds = tuple(range(seed, seed + SEEDS))
    sections = {"teachers": [choice(base.model, cfg) for cfg in sorted({*CFGS, *GUIDANCE})]}
    sections |= _headline_sections(base, seeds, frechet)
    sections |= _paper_sections(base, budget, seeds, frechet)
    headlines = tuple(headline(base, seeds, cfg) for cfg in CFGS)
    return Plan(sections, seeds, budget, frechet, base, headlines)


def _flat(rows: Iterable[Rows]) -> list[Cell]:
    return [cell for each in rows for cells in each.values() for cell in cells]


def _headline_sections(base: Cell, seeds: tuple[int, ...], frechet: int) -> dict[str, list[Cell]]:
    """The sections whose targets are the project's own."""
    rows = [headline(base, each, cfg) for each in (seeds[:1], seeds) for cfg in IMPORTANT_FIRST]
    sections = {"headline": _flat(rows)}
    if frechet:
        ours = [{name: row[name] for name in row if name not in ARTISTS} for row in rows]
        sections["headline-frechet"] = [floor(base, cfg, frechet) for cfg in IMPORTANT_FIRST]
        cells = [*_flat(ours), *_flat(rows)]  # what artists would pick comes last
        sections["headline-frechet"] += [pictured(cell, frechet) for cell in cells]
    sections["causes"] = _flat(causes(base, cfg) for cfg in IMPORTANT_FIRST)
    sections["objectives"] = _flat(objectives(base, cfg) for cfg in IMPORTANT_FIRST)
    for name in ("causes", "objectives") if frechet else ():
        sections[f"{name}-frechet"] = [pictured(cell, frechet) for cell in sections[name]]
    return sections


def _paper_sections(
    base: Cell, budget: int, seeds: tuple[int, ...], frechet: int
) -> dict[str, list[Cell]]:
    """The sections with the paper's tables."""
    sections: dict[str, list[Cell]] = {"methods": [], "rivals": []}
    for chosen in (seeds[:1], seeds):
        for cfg in PAPER_CFGS:
            sections["methods"] += methods(base, budget, chosen, base.nfe, cfg)
            sections["rivals"] += rivals(base, budget, chosen, base.nfe, cfg)
    for cfg in PAPER_CFGS:
        sections["methods"] += [
            best(base, base.nfe + 1, cfg),
            learned(base, "gauss-newton", NORMAL, cfg=cfg),
        ]
    plain, trained = big_table(base, budget, CFGS[0])
    sections["unlearned"] = plain
    if frechet:
        sections["distribution"] = [
            c for cfg in PAPER_CFGS for c in distribution(base, budget, frechet, cfg).values()
        ]
    sections["bundled"] = [cell for pair in bundled(base) for cell in pair]
    sections["ablations"] = [c for rows in ablations(base, budget).values() for _, c in rows]
    sections["big-table"] = trained
    sections["guidance"] = guidance(base, budget)
    sections["efforts"] = [
        c
        for cfg in PAPER_CFGS
        for cells in efforts(replace(base, cfg=cfg), budget).values()
        for c in cells
    ]
    return sections


def slow_rows(base: Cell, nfe: int) -> Rows:
    """The rows of one NFE for a model of a few calls a second: few candidates, few pairs."""
    few = replace(base, solver="few", order=0, schedule="few", nfe=nfe)
    trained = learned(few, "gauss-newton", SLOW_BUDGET * nfe)
    return {
        "best classical": [few],
        "S4S-GN": [with_options(trained, **SLOW_SIZES)],
        **{name: [cell] for name, cell in artists(base, nfe, base.cfg).items()},
    }


def slow_plan(model: str, seed: int = 0) -> Plan:
    """The headline at several NFEs, for a model of a few calls a second without guidance."""
    base = Cell(model=model, seed=seed, fresh=SLOW_FRESH)
    headlines = tuple(slow_rows(base, nfe) for nfe in NFES)
    first = sorted(headlines, key=lambda rows: rows["S4S-GN"][0].nfe != base.nfe)
    sections = {"teachers": [choice(model, base.cfg)], "headline": _flat(first)}
    return Plan(sections, (seed,), SLOW_BUDGET, 0, base, headlines)


def quick_plan(budget: int = 20_000, seed: int = 0) -> Plan:
    """A few orderings on the analytic model, for tests."""
    base = Cell(model="mixture", seed=seed, fresh=128)
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    cells = [
        *methods(base, budget, (seed,), base.nfe, 1.0),
        best(base, base.nfe + 1, 1.0),
        start,
        learned(start, "s4s", budget),
        learned(start, "s4s-alt", budget),
        with_options(learned(base, "gauss-newton", budget), times=False),
        *rivals(base, budget, (seed,), base.nfe, 1.0),
    ]
    return Plan({"methods": cells}, (seed,), budget, 0, base)
