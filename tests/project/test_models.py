"""The trainer's models: choices as data, bundled models, and models of researchers."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from learners import message_of

from s4s_core.errors import ModelError, S4SError
from s4s_core.model import takes_guidance
from s4s_core.teacher import draw_noise
from trainer.models import ModelChoice, bundled_solver, open_model
from trainer.models.contract import file_digest, fingerprint, folder_digest
from trainer.results import to_pictures

ROOT = Path(__file__).resolve().parents[2]
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system makes no pipes")
BUNDLED = ("demo", "demo-vp", "demo-flow", "mixture", "mixture-flow")

MINE = """
import torch

class Model:
    space, sigma_min, sigma_max, shape = "ve", 0.01, 10.0, (3, 4, 4)

    def __init__(self, **other):
        vars(self).update(other)

    def denoise(self, x, sigma, cond=None):
        return torch.zeros_like(x)

class Guided(Model):
    takes_guidance = True

    def denoise(self, x, sigma, cond=None, guidance=None):
        return x * guidance.reshape(-1, 1, 1, 1)

class Stubborn(Model):
    def __setattr__(self, name, value):
        raise AttributeError(f"cannot set {name}")

def model(choice): return Model()
def odd(choice): return Model(sigma_min=20.0)
def endless(choice): return Model(sigma_min=0)
def spaceless(choice): return Model(space="vp")
def stubborn(choice): return Stubborn()
def guided(choice): return Guided()
def unguided(choice): return Model(takes_guidance=True)
def number(choice): return 5
def forgotten(choice): Model()
def nameless(choice): return Model(name=5)
def unknown(choice): return Model(about={"cfg": 7})
def blind(choice): return Model(decode="vae")
def grey(choice): return Model(decode=lambda x: x.mul_(0)[:, :1])
def lines(choice): return Model(decode=lambda x: ["text"])
def broken(choice): return 1 / 0
def unhandy(): return Model()
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return lambda name: ModelChoice("python", f"{path}:{name}")


@pytest.mark.parametrize("kind", BUNDLED)
def test_bundled_models_fulfil_the_contract(kind):
    model = open_model(ModelChoice(kind))
    x, cond = draw_noise(model, 2, 0)
    x0 = model.denoise(x, torch.full((2,), float(model.sigma_max)), cond)
    assert x0.shape == x.shape and bool(x0.isfinite().all())
    assert model.name == kind and model.about["model"]["name"] == kind
    assert model.fingerprint and torch.device(model.device).type in ("cpu", "cuda", "mps")
    pictures = model.decode(x0)
    if kind.startswith("mixture"):
        assert pictures is None
    else:
        assert pictures.shape == (2, 3, 32, 32) and 0 <= pictures.min() <= pictures.max() <= 1
        assert model.about["resolution"] == [32, 32] and model.about["cfg"] == [4.0, 4.0]


def test_the_demo_follows_the_choice():
    model = open_model(ModelChoice("demo", cfg=3.5, device="cpu"))
    assert model.cfg == 3.5 and model.about["cfg"] == [3.5, 3.5]
    assert takes_guidance(model) and not takes_guidance(open_model(ModelChoice("demo", cfg=1)))
    assert model.fingerprint != open_model(ModelChoice("demo", device="cpu")).fingerprint
    first, second = fingerprint("a" * 64, 7.5, ["x"]), fingerprint("a" * 64, 7.5, ["y"])
    assert first != second and first[:16] == second[:16] == "a" * 16
    assert bundled_solver("demo").is_file()
    code = "import sys, trainer.models; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"kind": "sdxl"}, "Unknown model 'sdxl'. Choose one of demo, "),
        ({"kind": "diffusers"}, "need a path: a pipeline folder"),
        ({"kind": "python"}, "need a path: module:function"),
        ({"dtype": "fp8"}, "Unknown precision 'fp8'"),
        ({"cfg": -1}, "cfg must be between 0 and 1000"),
        ({"cfg": float("nan")}, "cfg must be a finite number"),
        ({"cfg": "7"}, "cfg must be a number"),
        ({"width": 512.5}, "width must be a whole number"),
        ({"height": -8}, "height must be between 0 and 16384"),
        ({"offload": 1}, "offload must be true or false"),
        ({"prompts": ("a", 1)}, "every entry of prompts must be text"),
        ({"prompts": 5}, "prompts must be a list"),
        ({"device": "\x1b[2Jcuda"}, "device must be auto, or a torch device such as cuda:1"),
        ({"device": "cuda:" + "9" * 5000}, "device must be auto"),
        ({"path": "a\nb"}, "path must be a path without control characters"),
    ],
)
def test_bad_choices_are_refused_in_a_sentence(fields, sentence):
    with pytest.raises(ModelError, match=sentence):
        ModelChoice(**fields)


def test_choices_from_text():
    assert ModelChoice.parse("demo", cfg=2) == ModelChoice("demo", cfg=2.0)
    windows = ModelChoice.parse(r"python:C:\mine.py:model")
    assert windows.path == r"C:\mine.py:model" and windows.label == "mine.py:model"
    assert ModelChoice.parse("diffusers:/models/sd xl/").label == "sd xl"
    assert ModelChoice(prompts=["a", "b"]).prompts == ("a", "b")
    assert ModelChoice(prompts="one").prompts == ("one",)


def test_a_function_of_the_users_from_a_file_or_a_module(mine, tmp_path, monkeypatch):
    model = open_model(mine("model"))
    assert draw_noise(model, 2, 0)[1] is None
    assert model.decode(torch.zeros(1, *model.shape)).unique().tolist() == [0.5]  # grey pixels
    assert model.fingerprint is None and model.name.endswith("mine.py:model")
    guided, x = open_model(mine("guided")), torch.ones(2, 3, 4, 4)
    assert takes_guidance(guided) and not takes_guidance(model)
    told = guided.denoise(x, torch.ones(2), None, torch.tensor([0.0, 2.0]))
    assert told.flatten(1).unique(dim=1).tolist() == [[0.0], [2.0]]
    (tmp_path / "my_package.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    assert open_model(ModelChoice("python", "my_package:model")).shape == (3, 4, 4)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("nothing", "has no function 'nothing'"),
        (
            "number",
            "mine.py:number: A int without space, .* is no model: it needs space, sigma_min",
        ),
        ("forgotten", "A NoneType without space, .* is no model"),
        ("broken", "raised ZeroDivisionError: division by zero"),
        ("unhandy", "raised TypeError: unhandy"),
        ("odd", "sigma_max must be > sigma_min \\(20\\), not 10"),
        ("endless", "sigma_min must be a number > 0 and at most 1e9, not 0"),
        ("spaceless", "space must be one of ve, flow, not 'vp'"),
        ("nameless", "name must be text, not 5"),
        ("unknown", "about must be a mapping .*, not {'cfg': 7}"),
        ("blind", "decode must be a function of x, not 'vae'"),
        ("unguided", "takes_guidance, but its denoise has no fourth argument"),
        ("stubborn", "has no 'name' and it cannot be set"),
    ],
)
def test_bad_functions_are_refused_in_a_sentence(mine, name, sentence):
    with pytest.raises(S4SError, match=sentence):
        open_model(mine(name))


@pipes
def test_only_files_are_digested(tmp_path):
    """Behind links too, as in the Hugging Face cache; what may never end is passed over."""
    blob, part = tmp_path / "blob", tmp_path / "pipeline" / "unet"
    blob.write_bytes(b"weights")
    part.mkdir(parents=True)
    (part / "a.safetensors").write_bytes(b"weights")
    digest = folder_digest(tmp_path / "pipeline")
    (part / "a.safetensors").unlink()
    (part / "a.safetensors").symlink_to(blob)
    (part / "b.safetensors").symlink_to("/dev/zero")
    (part / "c.safetensors").symlink_to("nothing")
    os.mkfifo(part / "d.json")
    assert folder_digest(tmp_path / "pipeline") == digest
    assert file_digest(part / "a.safetensors") == file_digest(blob)
    for name in ("b.safetensors", "d.json"):
        with pytest.raises(ModelError, match="Could not read .* is not a file"):
            file_digest(part / name)


def test_comfyuis_folder_is_absolute_before_it_is_imported_from(tmp_path, monkeypatch):
    """Wherever the process goes later."""
    (tmp_path / "app" / "comfy").mkdir(parents=True)
    (tmp_path / "app" / "comfy" / "sd.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    monkeypatch.setitem(sys.modules, "comfy.cli_args", None)
    with pytest.raises(ModelError, match="Run this with ComfyUI's Python"):
        open_model(ModelChoice("comfyui", "x", host="app"))
    assert before[0] == str(tmp_path / "app")


@pytest.mark.parametrize("name", ["grey", "lines"])
def test_what_is_no_picture_is_refused_in_a_sentence(mine, name):
    model, x = open_model(mine(name)), torch.ones(2, 3, 4, 4)
    with pytest.raises(ModelError, match="decode must return None or pictures") as error:
        to_pictures(model, x)
    assert message_of(error) and bool(x.all())


@pytest.mark.parametrize(
    "choice, sentence",
    [
        (ModelChoice("python", "mine"), "is not module:function"),
        (ModelChoice("python", "mine:"), "is not module:function"),
        (ModelChoice("python", "no_such_module_of_ours:model"), "ModuleNotFoundError"),
        (ModelChoice("python", "/no/such/file.py:model"), "Could not import .*: FileNotFoundError"),
        *(
            (ModelChoice("demo", device=name), f"The device '{name}' is not available: .*[.]$")
            for name in ("cuda:99", "hpu", "privateuseone", "nonsense")
        ),
        (ModelChoice("demo", device="meta"), "The device 'meta' computes nothing"),
    ],
)
def test_models_that_are_not_there_are_refused_in_a_sentence(choice, sentence):
    with pytest.raises(ModelError, match=sentence):
        open_model(choice)


def test_a_decoder_may_reuse_its_picture():
    buffer = torch.zeros(1, 3, 4, 4)
    model = SimpleNamespace(device="cpu", decode=lambda x: buffer.copy_(x))
    x = torch.rand(4, 3, 4, 4)
    assert torch.equal(to_pictures(model, x), x)
