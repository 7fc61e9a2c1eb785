"""Every test that docs/reliability.md names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.findall(
    r"`(test_\w+)::(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
)


def test_promises_are_made():
    assert len(NAMED) > 40


@pytest.mark.parametrize("file, test", NAMED, ids=lambda name: name)
def test_a_promise_is_held_by_a_test(file, test):
    source = (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {test}\(", source, re.MULTILINE)
