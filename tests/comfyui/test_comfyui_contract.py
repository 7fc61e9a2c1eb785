"""The nodes' contract with ComfyUI: the same checks on a small double and on the real thing.

The double always runs. For the real ComfyUI, set COMFYUI_PATH to its folder and run its Python.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = ROOT / "tests" / "comfyui" / "double"
CHECKER = ROOT / "tests" / "helpers" / "comfyui_checks.py"
CHECKS = [
    name
    for path in sorted(CHECKER.parent.glob("comfyui_checks_*.py"))
    for name in re.findall(r"^def (check_\w+)", path.read_text("utf-8"), re.MULTILINE)
]


def run_checks(host, base):
    """{check: its result} from a process in which that host loads the pack."""
    (base / "models").mkdir()
    environment = os.environ | {
        "S4S_HOME": str(base / "home"),
        "DOUBLE_BASE": str(base),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "",
    }
    environment.pop("S4S_SOLVERS", None)
    done = subprocess.run(
        [sys.executable, str(CHECKER), str(host), str(ROOT), str(base)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = [json.loads(line.removeprefix("RESULT ")) for line in lines]
    assert found, done.stdout + done.stderr
    return {result["name"]: result for result in found}


@pytest.fixture(scope="module")
def on_double(tmp_path_factory):
    return run_checks(DOUBLE, tmp_path_factory.mktemp("double"))


@pytest.fixture(scope="module")
def on_comfyui(tmp_path_factory):
    path = os.environ.get("COMFYUI_PATH")
    if not path:
        pytest.skip("COMFYUI_PATH is not set")
    return run_checks(path, tmp_path_factory.mktemp("comfyui"))


def assert_passed(found, check):
    assert check in found, "the process ended before this check"
    if "skip" in found[check]:
        pytest.skip(found[check]["skip"])
    assert found[check]["fault"] is None, found[check]["fault"]


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_double(on_double, check):
    assert_passed(on_double, check)


@pytest.mark.host
@pytest.mark.parametrize("check", CHECKS)
def test_on_comfyui(on_comfyui, check):
    assert_passed(on_comfyui, check)
