"""Break the core in many places, one at a time, and see whether the fast tests notice.

    python tools/mutation_check.py --count 60 --seed 1 --out docs/benchmarks/mutation

Places are drawn at random, evenly over the modules: a sign turned, an index or a count moved by
one, a factor turned into a divisor, a comparison shifted, a condition turned round. Each mutant
lives in a copy of the checkout and faces first the tests of its module, then all fast tests of the
core, which have to pass without a mutant. Mutants that change nothing that can be observed are
named in EQUIVALENT, with the reason. Resumes from the JSON file that it writes: mutants that were
judged before and still exist come first, those that were caught stay so, and survivors are judged
again. Takes about half a minute a mutant.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns(".git", ".venv", "__pycache__")
SKIPPED = ("demo", "__init__", "names", "errors", "folders", "jobs", "processes", "starting")
"""Modules without mathematics: their tests are of another kind."""

NEAR = {
    "atomic": ["test_solver_file"],
    "classical": ["test_formulas", "test_convergence", "test_against_diffusers"],
    "evaluation": ["test_evaluation", "test_gauss_newton", "test_fit"],
    "families": ["test_sampling", "test_formulas", "test_gradients"],
    "foreign": ["test_foreign"],
    "forms": ["test_table"],
    "hosting": ["test_hosting"],
    "identity": ["test_identity"],
    "metadata": ["test_solver_file", "test_malformed"],
    "mixture": ["test_convergence", "test_sampling"],
    "objectives": ["test_objectives", "test_gauss_newton", "test_fit", "test_gradient_methods"],
    "precision": ["test_devices"],
    "program": ["test_sampling", "test_gradients"],
    "sampling": ["test_sampling"],
    "schedules": ["test_schedules"],
    "solver_file": ["test_solver_file", "test_malformed"],
    "spaces": ["test_formulas", "test_parameters"],
    "summary": ["test_folders"],
    "table": ["test_table"],
    "tail": ["test_sampling", "test_hosting"],
    "teacher": ["test_fit", "test_gauss_newton"],
    "training": [
        "test_jacobian",
        "test_parameters",
        "test_gauss_newton",
        "test_gradient_methods",
        "test_faults",
        "test_fit",
    ],
}
CORE_TESTS = sorted({name for names in NEAR.values() for name in names} | {"test_distributed"})

# pytest's exit codes. Collected without a mutant, tests that cannot be collected are its doing.
PASSED, CAUGHT = 0, (1, 2)

SWAPS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
}

# Mutants that no test could catch, as "module:line text -> mutated text": reason.
EQUIVALENT = {
    'training.state: tensors = tensors or {"empty": torch.zeros(0)} -> '
    'tensors = tensors or {"empty": torch.zeros(1)}': "a placeholder that nobody reads",
    'atomic: flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) -> '
    'flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 1)': "1 is O_WRONLY",
    "metadata: pair = about.get(key, [1, 1]) -> pair = about.get(key, [2, 1])": "any pair does",
    "training.parameters: rows = index.reshape(-1, index.shape[-1]) -> "
    "rows = index.reshape(-1, index.shape[1])": "the last two sides of such an array are equal",
}


class Places(ast.NodeVisitor):
    """Every place of a module where a small change of a number or an operator is possible."""

    def __init__(self, source):
        self.source, self.lines, self.found = source, source.splitlines(), []
        self.visit(ast.parse(source))

    def _offset(self, line, column):
        return sum(len(text) + 1 for text in self.lines[: line - 1]) + column

    def _swap(self, left, right, operator):
        start = self._offset(left.end_lineno, left.end_col_offset)
        end = self._offset(right.lineno, right.col_offset)
        new, gap = SWAPS[type(operator)], self.source[start:end]
        old = gap.strip(" ()\n")
        if old and "\n" not in gap:
            at = start + gap.index(old)
            self.found.append((at, at + len(old), new))

    def visit_BinOp(self, node):
        text = isinstance(node.left, ast.JoinedStr | ast.Constant) and isinstance(
            getattr(node.left, "value", ""), str
        )
        if type(node.op) in SWAPS and not text:
            self._swap(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_Compare(self, node):
        if len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            self._swap(node.left, node.comparators[0], node.ops[0])
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        removed = {ast.USub: "-", ast.Not: "not "}.get(type(node.op))
        if removed:
            at = self._offset(node.lineno, node.col_offset)
            self.found.append((at, at + len(removed), ""))
        self.generic_visit(node)

    def visit_Constant(self, node):
        if type(node.value) is int and abs(node.value) < 10:
            start = self._offset(node.lineno, node.col_offset)
            end = self._offset(node.end_lineno, node.end_col_offset)
            self.found.append((start, end, str(node.value + 1)))

    def visit_JoinedStr(self, node):
        """Texts are not mutated."""


def modules():
    """Module name -> path, of the modules of the core that compute something."""
    found = {}
    for path in sorted((ROOT / "s4s_core").rglob("*.py")):
        parts = path.relative_to(ROOT / "s4s_core").with_suffix("").parts
        if parts[0] not in SKIPPED and parts[-1] not in SKIPPED:
            found[".".join(parts)] = path
    return found


def draw(count, seed, known=()):
    """`count` mutants (module, start, end, new, label), spread evenly over the modules.

    Those whose labels are known, from an earlier draw, come first as long as they exist; then it
    is always the turn of a module that has the fewest.
    """
    chooser, pools, chosen = random.Random(seed), {}, []
    for name, pool in every_mutant().items():
        chooser.shuffle(pool)
        chosen += [m for m in pool if m[-1] in known][: count - len(chosen)]
        pools[name] = [m for m in pool if m[-1] not in known]
    held, names = Counter(m[0] for m in chosen), list(pools)
    chooser.shuffle(names)
    while len(chosen) < count and any(pools.values()):
        name = min((n for n in names if pools[n]), key=held.__getitem__)
        chosen.append(pools[name].pop())
        held[name] += 1
    return chosen


def every_mutant():
    """{module: all its mutants (module, start, end, new, label)}, but for the equivalent ones."""
    found = {}
    for name, path in modules().items():
        source = path.read_text(encoding="utf-8")
        places = {label(name, source, place): place for place in Places(source).found}
        found[name] = [(name, *p, text) for text, p in places.items() if text not in EQUIVALENT]
    return found


def label(name, source, place):
    """The mutant as people read it: the line before and after."""
    start, end, new = place
    head, tail = source.rfind("\n", 0, start) + 1, source.find("\n", end)
    old = source[head:tail].strip()
    return f"{name}: {old} -> {(source[head:start] + new + source[end:tail]).strip()}"


def run(folder, tests, limit):
    """True if tests fail or cannot be collected, or take so long that it would be noticed.

    Whatever else may end pytest (a missing file, a signal) is no verdict, and ends the check.
    """
    files = [f"tests/{name}.py" for name in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (PASSED, *CAUGHT):
        last = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()[-1:]
        sys.exit(f"pytest ended with {done.returncode}, which says nothing: {' '.join(last)}")
    return done.returncode in CAUGHT


def judge(mutant, folder, limit):
    """{"label", "caught", "by", "seconds"} of one mutant."""
    name, start, end, new, text = mutant
    path = folder / "s4s_core" / (name.replace(".", "/") + ".py")
    source, began = path.read_text(encoding="utf-8"), time.monotonic()
    path.write_text(source[:start] + new + source[end:], encoding="utf-8")
    near = NEAR.get(name.split(".")[0], [])
    try:
        caught = near and run(folder, near, limit)
        by = "its own tests" if caught else None
        if not caught and run(folder, [t for t in CORE_TESTS if t not in near], limit):
            by = "other tests of the core"
    finally:
        path.write_text(source, encoding="utf-8")
    seconds = round(time.monotonic() - began)
    return {"mutant": text, "caught": by is not None, "by": by, "seconds": seconds}


def summary(results):
    """The lines of a table: the mutants of every part of the core, and how many were caught."""
    parts = [(re.match(r"\w+", entry["mutant"])[0], entry["caught"]) for entry in results]
    tried, missed = Counter(p for p, _ in parts), Counter(p for p, caught in parts if not caught)
    rows = [f"| `{part}` | {count} | {count - missed[part]} |" for part, count in tried.items()]
    total = f"| all | {sum(tried.values())} | {sum((tried - missed).values())} |"
    return ["| part of the core | mutants | caught |", "|---|---|---|", *sorted(rows), total]


def report(results, out):
    """Write out.json and out.md."""
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Mutation check of the tests",
        "",
        "Mutants of the core that the fast tests catch (`python tools/mutation_check.py`):",
        "",
        *summary(results),
        "",
        "| mutant | caught by |",
        "|---|---|",
    ]
    for entry in results:
        text = entry["mutant"].replace("|", "\\|")
        lines.append(f"| `{text}` | {entry['by'] or '**nothing**'} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def verdicts(out):
    """What out.json says: {label: entry}."""
    path = out.with_suffix(".json")
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {entry["mutant"]: entry for entry in entries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="how many mutants (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--workers", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument("--limit", type=int, default=600, help="seconds of a run of tests")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "mutation")
    args = parser.parse_args()
    results = verdicts(args.out)
    mutants = draw(args.count, args.seed, results)
    waiting = [m for m in reversed(mutants) if not results.get(m[-1], {"caught": False})["caught"]]

    def work(folder):
        while waiting:
            mutant = waiting.pop()
            try:
                entry = results[mutant[-1]] = judge(mutant, folder, args.limit)
            except BaseException:
                waiting.clear()  # the other workers stop as well
                raise
            print(f"{entry['by'] or 'SURVIVED'}  {mutant[-1]}  ({len(waiting)} left)")
            report([results[m[-1]] for m in mutants if m[-1] in results], args.out)

    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(args.workers) as pool:
        folders = [Path(place) / f"checkout-{number}" for number in range(args.workers)]
        for folder in folders:
            shutil.copytree(ROOT, folder, ignore=IGNORED)
        if waiting and run(folders[0], CORE_TESTS, args.limit):
            sys.exit("The tests fail, or take longer than --limit, without a mutant: mend them.")
        list(pool.map(work, folders))
    report([results[mutant[-1]] for mutant in mutants], args.out)
    return 0 if all(results[mutant[-1]]["caught"] for mutant in mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
