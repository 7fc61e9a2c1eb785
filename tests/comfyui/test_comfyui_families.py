"""Small checkpoints of three model families in a real ComfyUI."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WANTED = {"sd15": ("ve", "SD15", 4), "edm": ("ve", "SD15", 4), "sd3": ("flow", "SD3", 16)}


@pytest.mark.host
@pytest.mark.slow
def test_families_load_train_and_sample(tmp_path):
    comfyui = os.environ.get("COMFYUI_PATH")
    if not comfyui:
        pytest.skip("COMFYUI_PATH is not set")
    (tmp_path / "models").mkdir()
    home = {"S4S_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    script = ROOT / "tests" / "helpers" / "comfyui_families.py"
    done = subprocess.run(
        [sys.executable, str(script), comfyui, str(ROOT), str(tmp_path)],
        env=os.environ | home,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = {(r := json.loads(line.removeprefix("RESULT ")))["family"]: r for line in lines}
    assert set(found) == set(WANTED), done.stderr[-3000:]
    for family, (space, name, channels) in WANTED.items():
        result = found[family]
        assert (result["space"], result["model"]) == (space, name)
        assert result["finite"] and result["shape"] == [1, channels, 4, 4]
        assert result["rmse"] < 1.05 * result["initial"]
