"""Tables, claims and plots of the cells that are finished; the others are marked as not run."""

import importlib.util
import io
import statistics
from dataclasses import replace
from pathlib import Path

from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError

from ..report import Report, Table
from .cells import RIVALS
from .plans import (
    CFGS,
    GUIDANCE,
    METHODS,
    NFES,
    NORMAL,
    SCHEDULES,
    SOLVERS,
    ablations,
    best,
    bundled,
    distribution,
    efforts,
    learned,
    rivals,
    with_options,
)

NOT_RUN = "not run"
BELOW_ONE = 1 - 1e-9
NAMES = {
    "s4s": "S4S (coefficients)",
    "s4s-alt": "S4S-Alt (times and coefficients)",
    "gauss-newton": "S4S-GN (gauss-newton, with times)",
    "bns": "BNS (maximal order, joint)",
    "gs": "GS-style (theory at the current times + offsets)",
    "trajectory": "trajectory matching (local)",
    "dpm-v3": "DPM-Solver-v3 (measured statistics)",
    "dpmpp": "DPM-Solver++ 3M",
    "ipndm": "iPNDM 3",
    "unipc-bh2": "UniPC 3",
}
MEASURE = (
    "RMSE and PSNR (pictures in [-1, 1]) are to the 20-call teacher's picture from the same noise, "
    "on {fresh} fresh starts whose seed no training uses. A ratio is to the best classical solver "
    "on its best schedule at the same NFE and CFG; that one is chosen on the very pictures it is "
    "scored on, which favours it. Few pictures that change to another mode of the model rule the "
    "RMSE, so the ratio of the medians of the pictures' own errors stands beside it. NFE-eq counts "
    "everything that was spent: teacher pairs, the search for a start, validation, gits' costs and "
    "LD3's training where a start is theirs; a forward with its backward pass counts two, because "
    "weights are frozen. Rivals begin where a search like ours takes them. DPM-Solver-v3 has one "
    "statistic for all pixels, where its authors have one for each. Seconds are wall-clock time "
    "of one process on a busy machine, and of a resumed cell only those of its last part."
)


class Findings:
    """Results by cell, with what tables ask of them."""

    def __init__(self, results):
        self.results = results

    def value(self, cell, key="rmse"):
        """One number of a cell, or None where it is not finished."""
        found = self.results.get(cell)
        return None if found is None else found.get(key)

    def values(self, cells, key="rmse"):
        return [v for v in (self.value(cell, key) for cell in cells) if v is not None]

    def mean(self, cells, key="rmse"):
        """Mean over the cells that are finished, or None."""
        found = self.values(cells, key)
        return statistics.fmean(found) if found else None

    def ratio(self, cells, classical, key="rmse"):
        ours, theirs = self.mean(cells, key), self.value(classical, key)
        return None if ours is None or theirs is None else ours / theirs


def number(value, digits=4):
    """A number as text; what was not measured says so."""
    return NOT_RUN if value is None else f"{value:.{digits}g}"


def spread(values):
    """Mean and the half range of several, the count where some are missing."""
    if not values:
        return NOT_RUN
    text = f"{statistics.fmean(values):.4g}"
    return f"{text} ± {(max(values) - min(values)) / 2:.2g}" if len(values) > 1 else text


def headline_rows(plan, findings, nfe, cfg):
    """Best classical, ours and the rivals: a row each, over all seeds that are finished."""
    classical = best(plan.base, nfe, cfg)
    label = findings.value(classical, "name") or "?"
    rows = [_headline_row(findings, f"best classical ({label})", [classical], classical)]
    for method in (*METHODS, *RIVALS):
        cells = _cells_of(plan, method, nfe, cfg)
        rows.append(_headline_row(findings, NAMES[method], cells, classical))
    return rows


def _cells_of(plan, method, nfe, cfg):
    """A method's or a rival's cells at all seeds."""
    if method in RIVALS:
        every = rivals(plan.base, plan.budget, plan.seeds, nfe, cfg)
        return [cell for cell in every if cell.method == method]
    return [learned(plan.base, method, plan.budget, nfe=nfe, cfg=cfg, seed=s) for s in plan.seeds]


HEADLINE = [
    "solver",
    "RMSE",
    "RMSE ratio",
    "median ratio",
    "PSNR",
    "seeds",
    "NFE-eq",
    "seconds",
]


def _headline_row(findings, label, cells, classical):
    return [
        label,
        spread(findings.values(cells)),
        number(findings.ratio(cells, classical), 3),
        number(findings.ratio(cells, classical, "median"), 3),
        number(findings.mean(cells, "psnr")),
        len(findings.values(cells)),
        number(findings.mean(cells, "calls"), 6),
        number(findings.mean(cells, "seconds")),
    ]


def headline_tables(plan, findings, reasons, cfgs=CFGS):
    nfe = plan.base.nfe
    for cfg in cfgs:
        title = f"{nfe} NFE, CFG {cfg:g}: the headline, and rivals under the same budget"
        cells = [c for m in (*METHODS, *RIVALS) for c in _cells_of(plan, m, nfe, cfg)]
        rows = headline_rows(plan, findings, nfe, cfg)
        yield Table(title, HEADLINE, rows, _reasons(cells, reasons))


def _reasons(cells, reasons):
    """Why some of the cells could not be measured, in sentences."""
    return " ".join(sorted({reasons[cell] for cell in cells if cell in reasons}))


def big_tables(plan, findings):
    """Solvers x schedules x NFE at CFG 1, unlearned / S4S."""
    head = ["solver", "schedule", *(f"{n} NFE" for n in NFES), *(f"{n}, S4S" for n in NFES)]
    rows = []
    for solver, order in SOLVERS:
        for name in SCHEDULES:
            start = replace(plan.base, solver=solver, order=order, schedule=name, cfg=CFGS[0])
            plain = replace(start, budget=plan.budget) if name == "ld3" else start
            trained = learned(start, "s4s", plan.budget)
            cells = [replace(c, nfe=n) for c in (plain, trained) for n in NFES]
            rows.append([NAMES[solver], name, *(number(findings.value(c)) for c in cells)])
    yield Table(f"Solvers x schedules, RMSE, CFG {CFGS[0]:g}", head, rows)
    rows = [
        [
            "best classical",
            *(number(findings.value(best(plan.base, n, CFGS[0]))) for n in NFES),
        ]
    ]
    for method in METHODS:
        cells = [learned(plan.base, method, plan.budget, nfe=n, cfg=CFGS[0]) for n in NFES]
        rows.append([NAMES[method], *(number(findings.value(c)) for c in cells)])
    yield Table(
        f"Methods that choose their own start, RMSE, CFG {CFGS[0]:g}",
        ["method", *(f"{n} NFE" for n in NFES)],
        rows,
    )


def bundled_table(plan, findings):
    """The solver file in the box against the best classical solver, at every NFE it holds."""
    rows = []
    for classical, own in bundled(plan.base):
        name = findings.value(classical, "name") or NOT_RUN
        values = [findings.value(cell) for cell in (classical, own)]
        ratios = [findings.ratio([own], classical, key) for key in ("rmse", "median")]
        rows.append([own.nfe, name, *map(number, values), *(number(r, 3) for r in ratios)])
    head = ["NFE", "best classical", "its RMSE", "S4S", "RMSE ratio", "median ratio"]
    return Table(f"The bundled solver, CFG {own.cfg:g}", head, rows)


def ablation_tables(plan, findings, reasons):
    for title, cells in ablations(plan.base, plan.budget).items():
        rows = [
            [
                label,
                number(findings.value(cell)),
                number(findings.value(cell, "median")),
                number(findings.value(cell, "psnr")),
                number(findings.value(cell, "calls"), 6),
            ]
            for label, cell in cells
        ]
        note = _reasons([cell for _, cell in cells], reasons)
        head = [title, "RMSE", "median", "PSNR", "NFE-eq"]
        yield Table(f"Ablation: {title}", head, rows, note)


def effort_table(plan, findings):
    """What more training buys, as ratios to the best classical solver."""
    rows, head = [], ["CFG", "method"]
    for cfg in CFGS:
        classical = best(plan.base, plan.base.nfe, cfg)
        for method, cells in efforts(replace(plan.base, cfg=cfg), plan.budget).items():
            row = [f"{cfg:g}", NAMES[method]]
            for cell in cells:
                ratios = (findings.ratio([cell], classical, key) for key in ("rmse", "median"))
                row.append(" / ".join(number(r, 3) for r in ratios))
            rows.append(row)
    head += [f"{cell.budget:,} NFE-eq" for cell in cells]
    title = f"Longer training, {plan.base.nfe} NFE: RMSE ratio / median ratio"
    return Table(title, head, rows, "The teacher's pairs come on top of the budget.")


def guidance_table(plan, findings):
    rows = []
    for cfg in GUIDANCE:
        classical = best(plan.base, plan.base.nfe, cfg)
        cells = [learned(plan.base, method, plan.budget, cfg=cfg) for method in METHODS]
        values = [findings.value(c) for c in (classical, *cells)]
        rows.append([f"{cfg:g}", *map(number, values), number(_ratio(values[-1], values[0]), 3)])
    head = ["CFG", "best classical", *(NAMES[m] for m in METHODS), "S4S-GN / classical"]
    return Table(f"Guidance, {plan.base.nfe} NFE, RMSE", head, rows)


def _ratio(first, second):
    return None if first is None or second is None else first / second


DISTRIBUTIONS = NAMES | {
    "teacher": "teacher, other noise (the floor)",
    "best": "best classical",
    "consistent": "S4S-GN, weights of a step summing to one",
}


def distribution_table(plan, findings, reasons):
    rows, missing = [], []
    for cfg in CFGS:
        cells = distribution(plan.base, plan.budget, plan.frechet, cfg)
        missing += [cell for cell in cells.values() if cell in reasons]
        floor = findings.value(cells["teacher"], "to_teacher")
        for label, cell in cells.items():
            near, images = (findings.value(cell, key) for key in ("to_teacher", "to_images"))
            above = None if None in (near, floor) else near - floor
            found = [number(value) for value in (near, above, images)]
            rows.append([f"{cfg:g}", DISTRIBUTIONS[label], *found])
    head = ["CFG", f"{plan.base.nfe} NFE", "to the teacher", "above the floor", "to the pictures"]
    note = (
        f"{plan.frechet} pictures each, on EfficientNet-Lite0 features; the reference is the "
        "teacher's from other noise, so that even the teacher has a distance: the floor. The model "
        "draws its classes evenly, its training pictures are not even over them. "
    )
    return Table("Fréchet distances", head, rows, note + _reasons(missing, reasons))


def claims_table(plan, findings):
    """What issue 4 sets as targets, and what is reached."""
    rows = []
    for cfg in CFGS:
        newton = [
            learned(plan.base, "gauss-newton", plan.budget, cfg=cfg, seed=s) for s in plan.seeds
        ]
        longer = [learned(plan.base, "gauss-newton", NORMAL, cfg=cfg)]
        rows += _classical_claims(plan, findings, newton, cfg, f"{plan.budget:,} NFE-eq")
        rows += _classical_claims(plan, findings, longer, cfg, f"{NORMAL:,} NFE-eq")
        if plan.frechet:
            ratio = _frechet_ratio(plan, findings, cfg)
            claim = f"CFG {cfg:g}: S4S-GN has at most half its Fréchet distance above the floor"
            rows.append([claim, number(ratio, 3), "0.5", _holds(ratio, 0.5)])
        rows += _rival_claims(plan, findings, newton, cfg)
    return Table("What must be shown, and what is", ["claim", "ratio", "target", "reached"], rows)


def _classical_claims(plan, findings, newton, cfg, effort):
    """S4S-GN against the best classical solver at the same NFE, and at one more."""
    where = f"CFG {cfg:g}, {plan.base.nfe} NFE, {effort}: S4S-GN has"
    classical, more = (best(plan.base, plan.base.nfe + k, cfg) for k in (0, 1))
    for key, name in (("rmse", "RMSE"), ("median", "median error")):
        half, same = (findings.ratio(newton, other, key) for other in (classical, more))
        claim = f"{where} at most half the {name} of the best classical solver"
        yield [claim, number(half, 3), "0.5", _holds(half, 0.5)]
        claim = f"{where} no more {name} than the best classical solver at {plan.base.nfe + 1} NFE"
        yield [claim, number(same, 3), "1", _holds(same, 1.0)]


def _rival_claims(plan, findings, newton, cfg):
    """S4S-GN against every other learned solver, as a ratio of mean RMSEs."""
    ours = findings.mean(newton)
    for method in (*METHODS[:-1], *RIVALS):
        ratio = _ratio(ours, findings.mean(_cells_of(plan, method, plan.base.nfe, cfg)))
        claim = f"CFG {cfg:g}: S4S-GN is better than {NAMES[method]}"
        yield [claim, number(ratio, 3), "below 1", _holds(ratio, BELOW_ONE)]


def _frechet_ratio(plan, findings, cfg):
    cells = distribution(plan.base, plan.budget, plan.frechet, cfg)
    names = ("teacher", "best", "gauss-newton")
    floor, classical, newton = (findings.value(cells[name], "to_teacher") for name in names)
    if None in (floor, classical, newton):
        return None
    return (newton - floor) / (classical - floor)


def _holds(ratio, target):
    return NOT_RUN if ratio is None else "yes" if ratio <= target else "no"


def orderings(plan):
    """[(claim, better cell, worse cell, at most this ratio)] that every quick run must show."""
    base, budget = plan.base, plan.budget
    start = replace(base, solver="ipndm", order=3, schedule="edm")
    newton, classical = learned(base, "gauss-newton", budget), best(base, base.nfe, 1.0)
    alternating, s4s = (learned(start, method, budget) for method in ("s4s-alt", "s4s"))
    return [
        ("S4S is better than its start", s4s, start, 0.95),
        ("S4S-Alt is better than its start", alternating, start, 0.95),
        ("S4S-GN has at most 0.7 of the best classical error", newton, classical, 0.7),
        ("S4S-GN beats one more call", newton, best(base, base.nfe + 1, 1.0), BELOW_ONE),
        ("S4S-GN is better than S4S-Alt", newton, alternating, BELOW_ONE),
        ("times help S4S-GN", newton, with_options(newton, times=False), BELOW_ONE),
    ] + [
        (f"S4S-GN is better than {NAMES[cell.method]}", newton, cell, BELOW_ONE)
        for cell in rivals(base, budget, plan.seeds, base.nfe, 1.0)
    ]


def ordering_rows(plan, results):
    findings = Findings(results)
    rows = []
    for claim, better, worse, most in orderings(plan):
        ratio = _ratio(findings.value(better), findings.value(worse))
        rows.append([claim, number(ratio, 3), f"{most:g}", _holds(ratio, most)])
    return rows


def check_orderings(plan, results, hurried=False):
    """S4SError, naming it, for an ordering that does not hold, or was not measured unhurried."""
    for claim, ratio, most, holds in ordering_rows(plan, results):
        if holds == "no" or (holds == NOT_RUN and not hurried):
            raise S4SError(f"An ordering does not hold: {claim} (ratio {ratio}, at most {most}).")


def _has_numbers(table):
    """Was anything of a table measured? Its first two columns may be labels, the rest is not."""
    return any(NOT_RUN not in str(cell) for row in table.rows for cell in row[2:] if cell)


def build(plan, results, reasons, args):
    """The report of a plan, with its plots where --out is given."""
    findings = Findings(results)
    done = [found for found in results.values() if found]
    note = MEASURE.format(fresh=plan.base.fresh)
    status = Table(
        "How much of it was run", ["cells", "finished"], [[len(results), len(done)]], note
    )
    if args.quick:
        head = ["claim", "ratio of RMSE", "at most", "holds"]
        tables = [status, Table("Orderings", head, ordering_rows(plan, results))]
        tables += headline_tables(plan, findings, reasons, (1.0,))
        return Report("paper-quick", "Quick orderings", "bench paper --quick", tables)
    tables = [*headline_tables(plan, findings, reasons), bundled_table(plan, findings)]
    tables += big_tables(plan, findings)
    tables += [*ablation_tables(plan, findings, reasons), effort_table(plan, findings)]
    tables.append(guidance_table(plan, findings))
    if plan.frechet:
        tables.insert(len(CFGS), distribution_table(plan, findings, reasons))
    empty = [table for table in tables if not _has_numbers(table)]
    if empty:
        status.note += "\n\nNothing was run yet of: " + "; ".join(t.title for t in empty) + "."
    tables = [status, claims_table(plan, findings), *(t for t in tables if t not in empty)]
    if args.out and _plots(plan, findings, Path(args.out)):
        tables[1].note = "![Headline at 5 NFE](paper-headline.png)\n\n![By NFE](paper-nfe.png)"
    command = "python s4s.py bench paper --out docs/benchmarks"
    return Report("paper", "The paper's tables on the bundled model", command, tables)


def _bars(plan, findings, cfg):
    """(name, RMSE ratio, median ratio) of the headline rows that have them."""
    rows = headline_rows(plan, findings, plan.base.nfe, cfg)
    return [
        (row[0].partition(" (")[0], float(row[2]), float(row[3]))
        for row in rows
        if NOT_RUN not in row[2:4]
    ]


def _plots(plan, findings, folder):
    """Bars of the headline and lines over the NFE; False where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    charts = {cfg: _bars(plan, findings, cfg) for cfg in CFGS}
    charts = {cfg: bars for cfg, bars in charts.items() if bars}
    size = (6.5 * max(1, len(charts)), 4)
    figure, panels = pyplot.subplots(1, max(1, len(charts)), figsize=size, squeeze=False)
    for panel, (cfg, bars) in zip(panels[0], charts.items(), strict=False):
        places = range(len(bars))
        panel.barh([p - 0.2 for p in places], [b[1] for b in bars], 0.4, label="RMSE")
        panel.barh([p + 0.2 for p in places], [b[2] for b in bars], 0.4, label="median error")
        panel.set(title=f"{plan.base.nfe} NFE, CFG {cfg:g}", yticks=places)
        panel.set_yticklabels([b[0] for b in bars])
        panel.invert_yaxis()
        panel.axvline(0.5, color="grey", linestyle=":")
        panel.set_xlabel("ratio to the best classical solver")
        panel.legend()
    _save(figure, folder / "paper-headline.png")
    figure, panel = pyplot.subplots(figsize=(6, 4))
    lines = {"best classical": [best(plan.base, n, CFGS[0]) for n in NFES]}
    for method in METHODS:
        lines[NAMES[method]] = [learned(plan.base, method, plan.budget, nfe=n) for n in NFES]
    for label, cells in lines.items():
        points = [(c.nfe, findings.value(c)) for c in cells if findings.value(c) is not None]
        if points:
            panel.plot(*zip(*points, strict=True), marker="o", label=label)
    panel.set(xlabel="NFE", ylabel="RMSE to the teacher", title=f"CFG {CFGS[0]:g}", yscale="log")
    if panel.lines:
        panel.legend()
    _save(figure, folder / "paper-nfe.png")
    return True


def _save(figure, path):
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write_atomic(path, data.getvalue())
