"""Training that is killed again and again ends with the bytes of an undisturbed run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLING = Path(__file__).parents[1] / "helpers" / "killing.py"
METHODS = ("gauss-newton", "s4s", "s4s-alt", "joint", "ld3")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills are made by forking")


def killed(method, kills, seed):
    """What the harness reports; it runs apart, so that pytest itself never forks."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, KILLING, method, str(kills), str(seed)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(report, kills):
    assert report["equal"]
    assert report["attempts"] <= 4 * kills, "too many finished: the kills come too late"
    assert report["left"] == []


def test_a_few_kills_change_no_byte():
    check(killed("gauss-newton", 4, seed=1), 4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_fifty_kills_change_no_byte(method):
    check(killed(method, 50, seed=2), 50)
