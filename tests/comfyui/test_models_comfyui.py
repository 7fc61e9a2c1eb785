"""Models opened through ComfyUI give what its own sampler gives; set COMFYUI_PATH to its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from s4s_core.app.comfyui import Prompts
from s4s_core.errors import ModelError
from trainer.models import ModelChoice, open_model
from trainer.models.contract import file_digest

COMFYUI = os.environ.get("COMFYUI_PATH")


def test_a_folder_without_comfyui_is_refused(tmp_path):
    for host in (str(tmp_path), "~nosuchuser/x", "x" * 4000):
        with pytest.raises(ModelError, match="There is no ComfyUI in .*Name the folder"):
            open_model(ModelChoice("comfyui", "model.safetensors", host=host))


class Part:
    """A part of a prepared condition, as ComfyUI holds it."""

    def __init__(self, cond):
        self.cond = cond


def prompt(length, value, constant=1):
    parts = {"c_crossattn": Part(torch.full((1, length, 2), value)), "flag": Part(constant)}
    return [{"model_conds": parts, "strength": 1.0}]


def test_prompts_of_one_shape_share_a_call():
    prompts = Prompts(
        [
            prompt(77, 0.0),
            prompt(154, 1.0),
            prompt(77, 2.0),
            prompt(77, 3.0, constant=2),
            prompt(77, 4.0) + prompt(77, 9.0),
            [prompt(77, 5.0)[0] | {"mask": torch.ones(1)}],
            prompt(77, 6.0, constant=[torch.ones(1)]),
        ]
    )
    assert len(prompts) == 7 and len(prompts.groups) == 6
    numbers, found = torch.tensor([2, 1, 0, 2, 3, 4, 5, 6]), {}
    for rows, entries in prompts.calls(numbers):
        stack = entries[0]["model_conds"]["c_crossattn"].cond
        assert len(stack) in (1, len(rows)) and entries[0]["strength"] == 1.0
        stack = stack.expand(len(rows), -1, -1)
        found |= {row: float(each.mean()) for row, each in zip(rows.tolist(), stack, strict=True)}
    assert found == dict(enumerate(numbers.double().tolist()))


def test_prompts_of_one_group_take_one_call():
    prompts = Prompts([prompt(77, 0.0), prompt(77, 1.0)])
    ((rows, [entry]),) = prompts.calls(torch.tensor([1, 0, 1]))
    assert rows == slice(None)
    assert entry["model_conds"]["c_crossattn"].cond[:, 0, 0].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.host
@pytest.mark.skipif(not COMFYUI, reason="COMFYUI_PATH is not set")
def test_a_small_checkpoint_matches_comfyuis_own_sampler(tmp_path):
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
    assert found["guided"] < 1e-4 and found["takes_guidance"], "each row has its own multiplier"
    assert found["times"][0] != found["times"][1]
    shape, low, high = found["pictures"]
    assert shape == [1, 3, 64, 64] and 0 <= low <= high <= 1
    assert found["shape"] == [4, 8, 8] and found["space"] == "ve" and found["nfes"] == [2]
    assert found["sigma_max"] == pytest.approx(14.6146, rel=1e-3)
    assert found["uniform"][1:3] == pytest.approx(found["own"], rel=1e-4)
    assert found["groups"] == 2, "the long prompt has its own shape"
    about = found["about"]
    assert about["cfg"] == [3.0, 3.0] and about["resolution"] == [64, 64]
    assert about["model"]["name"] == "tiny.safetensors"
    assert about["model"]["hash"] == file_digest(tmp_path / "tiny.safetensors")
    assert about["model"]["comfy"].startswith("comfy:")
    missing, nowhere, odd = found["refused"]
    assert "no checkpoint 'no-such.safetensors'" in missing
    assert "There is no ComfyUI" in nowhere and "multiples of 8" in odd
