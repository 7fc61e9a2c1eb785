"""Models through a ComfyUI install: the same as its own sampler. COMFYUI_PATH names its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from s4s_core.errors import ModelError
from trainer.models import ModelChoice, open_model
from trainer.models.comfyui import Texts
from trainer.models.contract import file_digest

COMFYUI = os.environ.get("COMFYUI_PATH")


def test_no_comfyui_in_a_folder(tmp_path):
    with pytest.raises(ModelError, match="There is no ComfyUI in .*name its folder"):
        open_model(ModelChoice("comfyui", "model.safetensors", host=str(tmp_path)))


class Part:
    """A part of a prepared condition, as ComfyUI holds it."""

    def __init__(self, cond):
        self.cond = cond


def prompt(length, value, constant=1):
    parts = {"c_crossattn": Part(torch.full((1, length, 2), value)), "flag": Part(constant)}
    return [{"model_conds": parts, "strength": 1.0}]


def test_prompts_of_one_shape_share_a_call():
    texts = Texts([prompt(77, 0.0), prompt(154, 1.0), prompt(77, 2.0), prompt(77, 3.0, constant=2)])
    assert len(texts) == 4 and len(texts.groups) == 3
    found = {}
    for rows, [entry] in texts.batches(torch.tensor([2, 1, 0, 2, 3])):
        stack = entry["model_conds"]["c_crossattn"].cond
        assert len(stack) == len(rows) and entry["strength"] == 1.0
        found |= {row: float(each.mean()) for row, each in zip(rows.tolist(), stack, strict=True)}
    assert found == {0: 2.0, 1: 1.0, 2: 0.0, 3: 2.0, 4: 3.0}


@pytest.mark.host
@pytest.mark.skipif(not COMFYUI, reason="COMFYUI_PATH names no ComfyUI")
def test_a_small_checkpoint(tmp_path):
    script = Path(__file__).parents[1] / "helpers" / "comfyui_checkpoint.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, COMFYUI, tmp_path],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-4 and found["rows"] < 1e-4
    assert found["times"][0] != found["times"][1]
    shape, low, high = found["pictures"]
    assert shape == [1, 3, 64, 64] and 0 <= low <= high <= 1
    assert found["shape"] == [4, 8, 8] and found["space"] == "ve" and found["nfes"] == [2]
    assert found["sigma_max"] == pytest.approx(14.6146, rel=1e-3)
    assert found["uniform"][1:3] == pytest.approx(found["own"], rel=1e-4)
    assert found["groups"] == 2, "the long prompt has a shape of its own"
    about = found["about"]
    assert about["cfg"] == [3.0, 3.0] and about["resolution"] == [64, 64]
    assert about["model"]["name"] == "tiny.safetensors"
    assert about["model"]["hash"] == file_digest(tmp_path / "tiny.safetensors")
    assert about["model"]["comfy"].startswith("comfy:")
    missing, nowhere, odd = found["refused"]
    assert "no checkpoint 'no-such.safetensors'" in missing
    assert "There is no ComfyUI" in nowhere and "multiples of 8" in odd
