"""The benchmark's tables as lists of cells; the order is that of importance.

Seeds of training are 0, 1, 2 (from --seed on); the noise that everything is scored on has a seed
of its own in `lab`.
"""

from dataclasses import dataclass, replace

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
"""The effort that `train` has by default."""


@dataclass(frozen=True)
class Plan:
    """Sections of cells by name; `seeds` and `budget` are what they were declared with."""

    sections: dict
    seeds: tuple
    budget: int
    frechet: int
    base: Cell

    @property
    def cells(self):
        """All cells, each once, the most important first."""
        return list(dict.fromkeys(c for part in self.sections.values() for c in part))


def best(cell, nfe, cfg):
    """The best classical solver on its best schedule."""
    return replace(cell, solver="best", schedule="all", order=0, method=UNLEARNED, nfe=nfe, cfg=cfg)


def learned(cell, method, budget, **changes):
    """A learned cell; `auto` lets training choose where it begins."""
    return replace(cell, method=method, budget=budget, **changes)


def with_options(cell, **options):
    """The same cell with some options of `fit`."""
    return replace(cell, options=tuple(sorted(options.items())))


def headline(base, budget, seeds, nfe, cfg):
    """Best classical, and every method at every seed."""
    cells = [best(base, nfe, cfg)]
    for seed in seeds:
        cells += [
            learned(base, method, budget, nfe=nfe, cfg=cfg, seed=seed)
            for method in reversed(METHODS)
        ]
    return cells


def rivals(base, budget, seeds, nfe, cfg):
    """Rivals under the same budget, from the start that a search like ours finds.

    GS takes that start's schedule only, and the solver whose theory follows the times;
    DPM-Solver-v3 has the schedule it is for.
    """
    at = replace(base, solver="auto", nfe=nfe, cfg=cfg)
    own = {
        "gs": replace(at, solver="dpmpp", schedule="auto"),
        "dpm-v3": replace(at, solver="dpm-v3", order=2, schedule="logsnr"),
    }
    return [
        learned(own.get(name, at), name, budget, seed=seed) for name in RIVALS for seed in seeds
    ]


def big_table(base, budget, cfg, nfes=NFES):
    """{solvers} x {schedules} x NFE: (unlearned, S4S); S4S-Alt and gauss-newton per NFE."""
    plain, trained = [], []
    for nfe in nfes:
        plain.append(best(base, nfe, cfg))
        trained += [learned(base, m, budget, nfe=nfe, cfg=cfg) for m in reversed(METHODS)]
        for solver, order in SOLVERS:
            for name in SCHEDULES:
                cell = replace(base, solver=solver, order=order, schedule=name, nfe=nfe, cfg=cfg)
                # LD3's schedule is itself learned, and costs its budget.
                start = replace(cell, budget=budget) if name == "ld3" else cell
                (trained if name == "ld3" else plain).append(start)
                trained.append(learned(cell, "s4s", budget))
    return plain, trained


def ablations(base, budget):
    """{name: [(label, cell)]}: what the paper varies, one at a time, from iPNDM on EDM at 5 NFE."""
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    s4s = learned(start, "s4s", budget)
    newton = learned(base, "gauss-newton", budget)
    sizes = (8, 16, 32, 64, 128)
    return {
        "single-step solvers": [
            (f"DPM-Solver 2S, {nfe} NFE, {method}", cell)
            for nfe in (4, 6, 8)
            for method, cell in _single_step(base, nfe, budget)
        ],
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


def _converged(base, solver, order, name):
    """Gauss-newton from one start, with an effort that leaves the family as the limit."""
    start = replace(base, solver=solver, order=order, schedule=name)
    return with_options(learned(start, "gauss-newton", NORMAL), samples=128)


def _single_step(base, nfe, budget):
    cell = replace(base, solver="dpm-solver", order=2, schedule="logsnr", nfe=nfe)
    yield UNLEARNED, cell
    for method in METHODS:
        yield method, learned(cell, method, budget)


def efforts(base, budget):
    """{method: cells} of longer and longer training, at one CFG and NFE."""
    budgets = (budget, NORMAL, 3 * NORMAL)
    return {m: [learned(base, m, calls) for calls in budgets] for m in METHODS}


def guidance(base, budget):
    """CFG 1 to 7 at 5 NFE."""
    return [
        cell for cfg in GUIDANCE for cell in headline(base, budget, (base.seed,), base.nfe, cfg)
    ]


def distribution(base, budget, count, cfg):
    """{label: cell} of Fréchet distances at 5 NFE; the teacher's own is the floor.

    In a consistent table the weights of a step sum to one, so that it leaves no noise of its own.
    """
    at = replace(base, cfg=cfg)
    newton = learned(at, "gauss-newton", budget)
    rows = {"teacher": replace(at, method="teacher"), "best": best(base, base.nfe, cfg)}
    rows |= {method: learned(at, method, budget) for method in METHODS}
    rows["consistent"] = with_options(newton, consistent=True)
    return {label: replace(cell, frechet=count) for label, cell in rows.items()}


def bundled(base):
    """[(best classical, the file's table)] of every NFE of the bundled solver, at its own CFG."""
    pack = load_solver(DEMO_SOLVER)
    cfg = float(pack.metadata["cfg"][0])
    own = with_options(replace(base, method=BUNDLED, cfg=cfg), pack=pack.digest)
    return [(best(base, nfe, cfg), replace(own, nfe=nfe)) for nfe in pack.nfes]


def full_plan(budget=BUDGET, frechet=2048, seed=0):
    """Everything that issue 4 asks for."""
    base = Cell(seed=seed)
    seeds = tuple(range(seed, seed + SEEDS))
    sections = {}
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


def quick_plan(budget=20_000, seed=0):
    """A few orderings on the analytic model, for continuous integration."""
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
