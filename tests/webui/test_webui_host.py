"""S4S in a real Forge on the CPU, over its web API, with a small random checkpoint.

WEBUI_PATH is Forge's folder (with its `repositories`), WEBUI_PYTHON the interpreter of its
environment. Everything that is written goes to a temporary data folder.
"""

import base64
import io
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from s4s_core import SolverPack, classical_table, save_solver
from s4s_core.spaces import DiscreteTimes

ROOT = Path(__file__).resolve().parents[2]
HOST = os.environ.get("WEBUI_PATH")
PYTHON = os.environ.get("WEBUI_PYTHON")

MULTIPLIERS = (0.0, 0.5, 1.0, 1.5)
HIRES = {
    "steps": 8,
    "enable_hr": True,
    "hr_scale": 2,
    "hr_upscaler": "Latent",
    "hr_additional_modules": ["Use same choices"],
    "denoising_strength": 0.7,
}

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not (HOST and PYTHON), reason="WEBUI_PATH and WEBUI_PYTHON are not set"),
]


def pack_of(solver="euler", order=1, guidance=None):
    """A classical solver at whole times, where the host's rounding changes nothing.

    `guidance` is the multiplier of every call.
    """
    times = DiscreteTimes.scaled_linear()
    tables = []
    for steps in (4, 8):
        whole = torch.linspace(999, 40, steps, dtype=torch.float64).round()
        nodes = torch.cat([times.sigma(whole), torch.zeros(1, dtype=torch.float64)])
        guided = None if guidance is None else [guidance] * steps
        tables.append(classical_table(solver, nodes, order, "ve").replace(guidance=guided))
    return SolverPack.of(*tables, metadata={"name": solver, "cfg": [5.0, 5.0]})


def pixels(found):
    """(the first picture of an answer, its text)."""
    assert "images" in found, found
    image = Image.open(io.BytesIO(base64.b64decode(found["images"][0])))
    return np.asarray(image.convert("RGB")).astype(int), image.info["parameters"]


class Forge:
    """A running host."""

    def __init__(self, data, log):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        flags = ["--skip-prepare-environment", "--skip-torch-cuda-test", "--skip-version-check"]
        flags += ["--always-cpu", "--api", "--data-dir", str(data), "--port", str(port)]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [PYTHON, "launch.py", *flags],
                cwd=HOST,
                env={**os.environ, "S4S_HOME": str(data / "s4s"), "HF_HUB_OFFLINE": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def wait(self, seconds=600):
        """Until the host says that it is up: it answers earlier, but not rightly."""
        deadline = time.monotonic() + seconds
        while "Startup time" not in (said := self.log.read_text()):
            assert self.process.poll() is None and time.monotonic() < deadline, said[-4000:]
            time.sleep(1)

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=600) as answer:
            return answer.read().decode()

    def ask(self, name, **body):
        """The API's answer, errors included."""
        request = urllib.request.Request(f"{self.url}/sdapi/v1/{name}")
        if body:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 500:
                raise
            return json.load(error)

    def draw(self, name="txt2img", sampler="S4S", steps=4, solver="euler.safetensors", **fields):
        """(pixels, the picture's text) of one 64x64 picture."""
        body = {
            "prompt": "a cat",
            "seed": 7,
            "width": 64,
            "height": 64,
            "cfg_scale": 5,
            "steps": steps,
            "sampler_name": sampler,
            "scheduler": "Automatic" if sampler == "S4S" else "S4S",
            "alwayson_scripts": {"S4S": {"args": [solver]}},
            **fields,
        }
        return pixels(self.ask(name, **body))


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    data = tmp_path_factory.mktemp("forge")
    tiny = data / "models" / "Stable-diffusion" / "tiny.safetensors"
    make = [PYTHON, str(ROOT / "tests" / "helpers" / "webui_tiny_checkpoint.py"), str(tiny)]
    subprocess.run(make, cwd=HOST, check=True, timeout=900)
    (data / "extensions").mkdir()
    (data / "extensions" / "s4s").symlink_to(ROOT, target_is_directory=True)
    solvers = data / "models" / "s4s_solvers"
    solvers.mkdir()
    save_solver(solvers / "euler.safetensors", pack_of())
    save_solver(solvers / "z, 2.safetensors", pack_of("dpmpp", 2))
    for each in MULTIPLIERS:
        save_solver(solvers / f"{each}.safetensors", pack_of(guidance=each))
    host = Forge(data, data / "log.txt")
    try:
        host.wait()
        yield host
    finally:
        host.process.terminate()
        try:
            host.process.wait(60)
        except subprocess.TimeoutExpired:
            host.process.kill()


@pytest.fixture(scope="module")
def start_image():
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def difference(a, b):
    return np.abs(a - b).max()


def test_the_host_lists_the_sampler_and_the_schedule(forge):
    assert "S4S" in [each["name"] for each in forge.ask("samplers")]
    assert "S4S" in [each["label"] for each in forge.ask("schedulers")]
    assert "s4s" in forge.ask("scripts")["txt2img"]


def test_the_page_has_the_section_and_the_tab(forge):
    config = forge.get("config")
    assert "Solver file" in config and "euler.safetensors" in config
    assert '"tab_s4s"' in config and "s4s-panel" in config
    assert "cannot be shown here" not in config


@pytest.mark.parametrize("steps", [4, 8])
def test_eulers_table_draws_the_hosts_own_picture(forge, steps):
    ours, text = forge.draw(steps=steps)
    theirs, _ = forge.draw(steps=steps, sampler="Euler")
    other, _ = forge.draw(steps=12 - steps)
    assert difference(ours, theirs) <= 1
    assert difference(ours, other) > 1
    assert f"S4S NFE: {steps}" in text


def test_img2img(forge, start_image):
    fields = {"init_images": [start_image], "denoising_strength": 0.6, "steps": 8}
    ours, text = forge.draw("img2img", **fields)
    theirs, _ = forge.draw("img2img", sampler="Euler", **fields)
    assert difference(ours, theirs) <= 1 and "S4S NFE: 5" in text


def test_inpainting_keeps_the_rest(forge, start_image):
    mask = Image.new("L", (64, 64))
    mask.paste(255, (0, 0, 64, 16))
    file = io.BytesIO()
    mask.save(file, "png")
    fields = {
        "init_images": [start_image],
        "mask": base64.b64encode(file.getvalue()).decode(),
        "mask_blur": 0,
        "denoising_strength": 0.8,
    }
    ours, _ = forge.draw("img2img", steps=8, **fields)
    original = np.asarray(Image.open(io.BytesIO(base64.b64decode(start_image)))).astype(int)
    assert difference(ours[32:], original[32:]) <= 1
    assert difference(ours[:16], original[:16]) > 10


def test_hires_fix(forge):
    ours, text = forge.draw(**HIRES)
    assert ours.shape == (128, 128, 3)
    assert "S4S NFE: 8" in text and "S4S hires NFE:" in text


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_multipliers_change_the_cfg(forge, multiplier):
    """All calls at 1 + m (5 - 1): the picture of the plain solver at that CFG."""
    ours, _ = forge.draw(solver=f"{multiplier}.safetensors")
    plain, _ = forge.draw(cfg_scale=1 + multiplier * 4)
    assert difference(ours, plain) <= (0 if multiplier == 1 else 1)
    assert (difference(ours, forge.draw()[0]) > 1) == (multiplier != 1)


def test_multipliers_change_the_cfg_of_hires_fix(forge):
    """The second pass has a CFG of its own: 1 + 0.5 (9 - 1)."""
    ours, text = forge.draw(solver="0.5.safetensors", hr_cfg=9, **HIRES)
    plain, _ = forge.draw(cfg_scale=3, hr_cfg=5, **HIRES)
    other, _ = forge.draw(cfg_scale=3, hr_cfg=9, **HIRES)
    assert difference(ours, plain) <= 1 < difference(ours, other)
    assert "Hires CFG Scale: 9" in text


def test_a_picture_brings_its_solver_back(forge):
    """The host itself reads the text: every setting comes from it, the solver's file too."""
    ours, text = forge.draw(solver="z, 2.safetensors")
    assert "Sampler: S4S" in text and 'S4S solver: "z, 2.safetensors"' in text
    assert f"S4S hash: {pack_of('dpmpp', 2).digest[:12]}" in text
    lists = {"styles": [], "hr_additional_modules": []}  # which the host cannot read from a text
    found = forge.ask("txt2img", infotext=text, **lists)
    assert difference(pixels(found)[0], ours) == 0
    assert difference(forge.draw()[0], ours) > 1


def test_other_steps_and_no_solver_are_refused(forge):
    body = {"prompt": "", "steps": 6, "width": 64, "height": 64, "sampler_name": "S4S"}
    said = json.dumps(forge.ask("txt2img", **body))
    assert "no table for 6 steps" in said and "4, 8" in said
    scripts = {"S4S": {"args": ["None"]}}
    said = json.dumps(forge.ask("txt2img", **{**body, "steps": 4, "alwayson_scripts": scripts}))
    assert "No S4S solver is chosen" in said
    assert forge.draw()[0].shape == (64, 64, 3)
