"""The benchmark's tables as lists of cells, most important first.

Training seeds are 0, 1 and 2 (counted from --seed). The noise for scoring has its own seed in
`measuring`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from s4s_core import load_solver
from s4s_core.app.folders import DEMO_SOLVER

from .cells import BUNDLED, RIVALS, UNLEARNED, Cell

NFES = (4, 5, 6, 8)
CFGS = (1.0, 2.0)
GUIDANCE = (1.0, 2.0, 3.0, 5.0, 7.0)
SOLVERS = (("dpmpp", 3), ("ipndm", 3), ("unipc-bh2", 3))
SCHEDULES = ("uniform", "quadratic", "edm", "logsnr", "dmn", "gits", "ld3")
METHODS = ("s4s", "s4s-alt", "gauss-newton")
SEEDS = 3
BUDGET = 8_000
NORMAL = 20_000
"""The default budget of `train`."""


@dataclass(frozen=True)
class Plan:
    """Cells by section, and the seeds, budget and base cell that they were made from."""

    sections: dict[str, list[Cell]]
    seeds: tuple[int, ...]
    budget: int
    frechet: int
    base: Cell

    @property
    def cells(self) -> list[Cell]:
        """All cells without duplicates, most important first."""
        return list(dict.fromkeys(c for part in self.sections.values() for c in part))


def best(cell: Cell, nfe: int, cfg: float) -> Cell:
    """The best classical solver on its best schedule."""
    return replace(cell, solver="best", schedule="all", order=0, method=UNLEARNED, nfe=nfe, cfg=cfg)


def learned(cell: Cell, method: str, budget: int, **changes: Any) -> Cell:
    """The cell, trained with a method and a budget."""
    return replace(cell, method=method, budget=budget, **changes)


def with_options(cell: Cell, **options: Any) -> Cell:
    """The cell with these options of `fit`."""
    return replace(cell, options=tuple(sorted(options.items())))


def headline(base: Cell, budget: int, seeds: Iterable[int], nfe: int, cfg: float) -> list[Cell]:
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
        "consistency": [("free", s4s), ("consistent", with_options(s4s, consistent=True))],
        "time dependence": [("time-dependent", s4s), ("fixed", with_options(s4s, fixed=True))],
        "objective": [("L2", s4s), ("LPIPS", with_options(s4s, objective="lpips-alex"))],
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
    return [
        cell for cfg in GUIDANCE for cell in headline(base, budget, (base.seed,), base.nfe, cfg)
    ]


def distribution(base: Cell, budget: int, count: int, cfg: float) -> dict[str, Cell]:
    """{label: cell} of Fréchet distances at 5 NFE; the teacher's own distance is the floor.

    In a consistent table the weights of each step sum to one, so it adds no noise of its own.
    """
    at = replace(base, cfg=cfg)
    newton = learned(at, "gauss-newton", budget)
    rows = {"teacher": replace(at, method="teacher"), "best": best(base, base.nfe, cfg)}
    rows |= {method: learned(at, method, budget) for method in METHODS}
    rows["consistent"] = with_options(newton, consistent=True)
    return {label: replace(cell, frechet=count) for label, cell in rows.items()}


def bundled(base: Cell) -> list[tuple[Cell, Cell]]:
    """[(best classical, bundled solver)] at every NFE in the file and the CFG of the file."""
    pack = load_solver(DEMO_SOLVER)
    cfg = float(pack.metadata["cfg"][0])
    own = with_options(replace(base, method=BUNDLED, cfg=cfg), pack=pack.digest)
    return [(best(base, nfe, cfg), replace(own, nfe=nfe)) for nfe in pack.nfes]


def full_plan(budget: int = BUDGET, frechet: int = 2048, seed: int = 0) -> Plan:
    """The whole benchmark."""
    base = Cell(seed=seed)
    seeds = tuple(range(seed, seed + SEEDS))
    sections: dict[str, list[Cell]] = {}
    for cfg in CFGS:
        sections[f"headline {cfg:g}"] = [
            *headline(base, budget, seeds[:1], base.nfe, cfg),
            best(base, base.nfe + 1, cfg),
        ]
        sections[f"rivals {cfg:g}"] = rivals(base, budget, seeds[:1], base.nfe, cfg)
    sections["normal effort"] = [learned(base, "gauss-newton", NORMAL, cfg=cfg) for cfg in CFGS]
    plain, trained = big_table(base, budget, CFGS[0])
    sections["unlearned"] = plain
    if frechet:
        sections["distribution"] = [
            c for cfg in CFGS for c in distribution(base, budget, frechet, cfg).values()
        ]
    sections["bundled"] = [cell for pair in bundled(base) for cell in pair]
    for cfg in CFGS:
        sections[f"seeds {cfg:g}"] = headline(base, budget, seeds, base.nfe, cfg)
    sections["ablations"] = [c for rows in ablations(base, budget).values() for _, c in rows]
    sections["big table"] = trained
    sections["guidance"] = guidance(base, budget)
    for cfg in CFGS:
        sections[f"rival seeds {cfg:g}"] = rivals(base, budget, seeds, base.nfe, cfg)
    sections["efforts"] = [
        c
        for cfg in CFGS
        for cells in efforts(replace(base, cfg=cfg), budget).values()
        for c in cells
    ]
    return Plan(sections, seeds, budget, frechet, base)


def quick_plan(budget: int = 20_000, seed: int = 0) -> Plan:
    """A few orderings on the analytic model, for tests."""
    base = Cell(model="mixture", seed=seed, fresh=128)
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    cells = [
        *headline(base, budget, (seed,), base.nfe, 1.0),
        best(base, base.nfe + 1, 1.0),
        start,
        learned(start, "s4s", budget),
        learned(start, "s4s-alt", budget),
        with_options(learned(base, "gauss-newton", budget), times=False),
        *rivals(base, budget, (seed,), base.nfe, 1.0),
    ]
    return Plan({"headline 1": cells}, (seed,), budget, 0, base)
