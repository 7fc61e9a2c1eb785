"""Every test that docs/reliability.md names exists, and runs when its line says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = [
    (line.split("|")[1].strip(), re.findall(r"`(test_\w+)::(test_\w+)`", line))
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    if "::" in line
]
MARKERS = {"slow": "*long*", "host": "*host*"}


@cache
def markers_of(file):
    """{name: its markers} of the tests of a file, with those that the whole file has."""
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shared = [n for n in tree.body if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n)]
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            texts = [ast.unparse(part) for part in [*shared, *node.decorator_list]]
            found[node.name] = set(re.findall(r"pytest\.mark\.(\w+)", " ".join(texts)))
    return found


def test_promises_are_made():
    assert sum(len(tests) for _, tests in PROMISES) > 40


@pytest.mark.parametrize("promise, tests", PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_a_promise_is_held_by_tests_that_run_when_it_says(promise, tests):
    assert tests and all(test in markers_of(file) for file, test in tests)
    marked = set().union(*(markers_of(file)[test] for file, test in tests))
    for marker, words in MARKERS.items():
        assert (marker in marked) == (words in promise), f"{promise}: {words}"
