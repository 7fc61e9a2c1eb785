"""The mutation check tells failed tests from everything else, and loses no verdict; what is
published of it is of these sources."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def check(monkeypatch):
    """tools/mutation_check.py, with copies of the checkout that are empty."""
    path = ROOT / "tools" / "mutation_check.py"
    spec = importlib.util.spec_from_file_location("mutation_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.shutil, "copytree", lambda *args, **options: None)
    return module


def call(check, monkeypatch, out, count):
    monkeypatch.setattr(sys, "argv", ["check", "--count", str(count), "--out", str(out)])
    return check.main()


def entry(mutant, by="its own tests"):
    return {"mutant": mutant[-1], "caught": by is not None, "by": by, "seconds": 1}


@pytest.mark.parametrize("code, caught", [(0, False), (1, True), (2, True)])
def test_failed_tests_and_those_that_cannot_be_collected_are_caught(
    check, monkeypatch, tmp_path, code, caught
):
    done = subprocess.CompletedProcess([], code, b"", b"")
    monkeypatch.setattr(check.subprocess, "run", lambda *args, **options: done)
    assert check.run(tmp_path, ["test_x"], 9) is caught


@pytest.mark.parametrize("code", [3, 4, 5, -9])
def test_what_says_nothing_of_the_mutant_ends_the_check(check, monkeypatch, tmp_path, code):
    done = subprocess.CompletedProcess([], code, b"file not found", b"")
    monkeypatch.setattr(check.subprocess, "run", lambda *args, **options: done)
    with pytest.raises(SystemExit, match="file not found"):
        check.run(tmp_path, ["test_x"], 9)


def test_tests_that_fail_without_a_mutant_end_the_check(check, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "run", lambda *args: True)
    with pytest.raises(SystemExit, match="without a mutant"):
        call(check, monkeypatch, tmp_path / "found", 2)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_check_keeps_its_verdicts_and_judges_survivors_again(
    check, monkeypatch, tmp_path
):
    out, before, judged = tmp_path / "found", check.draw(3, 7), []
    mutants = check.draw(4, 1, {mutant[-1] for mutant in before})
    assert {m[-1] for m in mutants[:3]} == {m[-1] for m in before}  # a new draw begins with them
    first = [entry(mutants[0]), entry(mutants[1], by=None), entry(mutants[2])]
    out.with_suffix(".json").write_text(json.dumps(first))
    monkeypatch.setattr(check, "run", lambda *args: False)

    def judge(mutant, folder, limit):
        judged.append(mutant)
        if mutant == mutants[3]:
            raise KeyboardInterrupt
        return entry(mutant)

    monkeypatch.setattr(check, "judge", judge)
    with pytest.raises(KeyboardInterrupt):
        call(check, monkeypatch, out, 4)
    kept = json.loads(out.with_suffix(".json").read_text())
    assert judged == [mutants[1], mutants[3]]
    assert kept == [entry(mutant) for mutant in mutants[:3]]


@pytest.mark.parametrize(
    "source, mutated",
    [
        ("a = b + c", "a = b - c"),
        ("a = b * c", "a = b / c"),
        ("if a < b: c", "if a <= b: c"),
        ("if a != b: c", "if a == b: c"),
        ("if a in b: c", "if a not in b: c"),
        ("if a not in b: c", "if a in b: c"),
        ("if not a: b", "if a: b"),
        ("a = -b", "a = b"),
        ("a = b[3]", "a = b[4]"),
    ],
)
def test_places_are_found(check, source, mutated):
    ((start, end, new),) = check.Places(source).found
    assert source[:start] + new + source[end:] == mutated


def test_the_turn_is_a_modules_that_has_the_fewest(check):
    """However many are known of one module, every other comes to its turn before it."""
    every = check.every_mutant()
    known = {mutant[-1] for mutant in every["spaces"][:9]}
    drawn = check.draw(9 + len(every) - 1, 1, known)
    assert {mutant[0] for mutant in drawn} == set(every)
    assert sum(mutant[0] == "spaces" for mutant in drawn) == 9


PUBLISHED = ROOT / "docs" / "benchmarks" / "mutation"
AGAIN = "run python tools/mutation_check.py, and put its table into docs/reliability.md"


def test_the_published_mutants_are_of_these_sources(check):
    """Lines may change between two runs of the check, but 48 mutants still stand."""
    every = {mutant[-1] for mutants in check.every_mutant().values() for mutant in mutants}
    assert len(every & set(check.verdicts(PUBLISHED))) >= 48, AGAIN


def test_the_published_mutants_are_caught(check):
    """At least 24 of 25."""
    caught = [entry["caught"] for entry in check.verdicts(PUBLISHED).values()]
    assert len(caught) >= 50 and sum(caught) >= 0.96 * len(caught)


@pytest.mark.parametrize("page", ["reliability.md", "benchmarks/mutation.md"])
def test_the_table_is_shown(check, page):
    table = "\n".join(check.summary(list(check.verdicts(PUBLISHED).values())))
    assert table in (ROOT / "docs" / page).read_text(encoding="utf-8"), AGAIN


def test_the_table_counts_survivors(check):
    results = [
        {"mutant": "training.fit: a -> b", "caught": True},
        {"mutant": "training.times: a -> b", "caught": False},
        {"mutant": "forms: a -> b", "caught": True},
    ]
    assert check.summary(results)[2:] == [
        "| `forms` | 1 | 1 |",
        "| `training` | 2 | 1 |",
        "| all | 3 | 2 |",
    ]
