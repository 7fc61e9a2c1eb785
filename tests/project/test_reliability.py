"""Every test named in docs/reliability.md exists and carries the marks that its line shows."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = [
    (line.split("|")[1].strip(), re.findall(r"`(test_\w+)::(test_\w+)`", line))
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    if "::" in line
]
MARKERS = {"slow": "*long*", "host": "*host*"}


@cache
def markers_of(file: str) -> dict[str, set[str]]:
    """Map the tests of a file to their markers, including those of the whole file."""
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shared = [n for n in tree.body if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n)]
    markers = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            texts = [ast.unparse(part) for part in [*shared, *node.decorator_list]]
            markers[node.name] = set(re.findall(r"pytest\.mark\.(\w+)", " ".join(texts)))
    return markers


@pytest.mark.parametrize("guarantee, tests", GUARANTEES, ids=[text[:60] for text, _ in GUARANTEES])
def test_a_guarantee_names_existing_tests_with_its_marks(guarantee, tests):
    assert tests and all(test in markers_of(file) for file, test in tests)
    marked = set().union(*(markers_of(file)[test] for file, test in tests))
    for marker, words in MARKERS.items():
        assert (marker in marked) == (words in guarantee), f"{guarantee}: {words}"


def test_guarantees_are_found():
    assert sum(len(tests) for _, tests in GUARANTEES) > 40
