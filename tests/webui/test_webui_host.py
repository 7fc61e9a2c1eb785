"""S4S in a real Forge on the CPU, over its web API, with a small random checkpoint.

WEBUI_PATH is Forge's folder (with its `repositories`), WEBUI_PYTHON the interpreter of its
environment. Everything that is written goes to a temporary data folder.
"""

import base64
import io
import json
import os
import re
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

TIMES = DiscreteTimes.scaled_linear()
PARTIAL = [(steps, strength) for steps in (6, 20) for strength in (0.2, 0.4, 0.7)]
"""Steps and denoise of runs below full strength."""

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
    tables = []
    for steps in (4, 8):
        whole = torch.linspace(999, 40, steps, dtype=torch.float64).round()
        guided = None if guidance is None else [guidance] * steps
        table = classical_table(solver, levels_at(whole), order, "ve")
        tables.append(table.replace(guidance=guided))
    return SolverPack.of(*tables, metadata={"name": solver, "cfg": [5.0, 5.0]})


def levels_at(times):
    return torch.cat([TIMES.sigma(times), torch.zeros(1, dtype=torch.float64)])


def automatic(steps, calls):
    """Euler's method on the last levels of the host's schedule type Automatic."""
    times = torch.linspace(999, 0, steps, dtype=torch.float64)[-calls:]
    return classical_table("euler", levels_at(times), 1, "ve")


def parts_pack():
    """The host's own Euler, in img2img and in the second pass of hires fix."""
    parts = [automatic(steps, int(strength * steps) + 1) for steps, strength in PARTIAL]
    second = [automatic(int(steps / strength), steps) for steps, strength in PARTIAL]
    return SolverPack.of(automatic(4, 4), parts=parts + second)


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
        self.said_before = len(self.log.read_text())
        return pixels(self.ask(name, **body))

    def progress(self):
        """(done, announced) model calls of the last picture."""
        said = self.log.read_text()[self.said_before :]
        *_, last = re.findall(r"Total progress.*?(\d+)/(\d+)", said)
        return tuple(map(int, last))


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
    save_solver(solvers / "parts.safetensors", parts_pack())
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


@pytest.mark.parametrize("steps, strength", PARTIAL)
@pytest.mark.parametrize("hires", [False, True])
def test_below_full_strength_it_runs_where_euler_does(forge, start_image, steps, strength, hires):
    """Parts that hold Euler's method from the host's own levels on draw its own picture."""
    fields = {"denoising_strength": strength, "scheduler": "Automatic"}
    if hires:
        fields = HIRES | fields | {"steps": 4, "hr_second_pass_steps": steps}
    else:
        fields |= {"init_images": [start_image], "steps": steps}
    name, calls = ("txt2img", steps) if hires else ("img2img", int(strength * steps) + 1)
    theirs, _ = forge.draw(name, sampler="Euler", **fields)
    announced = forge.progress()
    ours, text = forge.draw(name, solver="parts.safetensors", **fields)
    assert f"S4S {'hires ' if hires else ''}NFE: {calls}" in text
    assert difference(ours, theirs) <= 1
    assert forge.progress() == announced == (announced[1], announced[1])


@pytest.mark.parametrize("steps", [6, 20])
def test_img2img_changes_a_picture_as_much_as_euler(forge, start_image, steps):
    """Compared with the picture at strength 0.01, which only the VAE changes visibly."""
    fields = {"init_images": [start_image], "scheduler": "Automatic", "steps": steps}
    same, _ = forge.draw("img2img", sampler="Euler", denoising_strength=0.01, **fields)

    def change(**more):
        return np.abs(forge.draw("img2img", **fields, **more)[0] - same).mean()

    theirs = change(sampler="Euler", denoising_strength=0.4)
    ours = change(solver="z, 2.safetensors", denoising_strength=0.4)
    assert ours == pytest.approx(theirs, rel=0.2)
    assert change(sampler="Euler", denoising_strength=0.7) > 1.2 * theirs


def test_a_chosen_schedule_type_runs_as_given(forge):
    """Karras, with steps that the file lacks: nearly the host's own DPM++ 2M Karras."""
    fields = {"steps": 12, "scheduler": "Karras"}
    ours, text = forge.draw(solver="z, 2.safetensors", **fields)
    theirs, _ = forge.draw(sampler="DPM++ 2M", **fields)
    other, _ = forge.draw(sampler="DPM++ 2M", steps=12, scheduler="Exponential")
    assert difference(ours, theirs) <= 1 < difference(ours, other)
    assert "S4S NFE: 12" in text and "Schedule type: Karras" in text


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
    """The second pass has a CFG of its own: 1 + 0.5 (9 - 1). It is a full run."""
    fields = HIRES | {"denoising_strength": 1}
    ours, text = forge.draw(solver="0.5.safetensors", hr_cfg=9, **fields)
    plain, _ = forge.draw(cfg_scale=3, hr_cfg=5, **fields)
    other, _ = forge.draw(cfg_scale=3, hr_cfg=9, **fields)
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
