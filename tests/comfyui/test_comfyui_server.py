"""The nodes in a real ComfyUI process, over its own HTTP interface."""

import json
import math
import os
import shutil
import time

import pytest
import torch
from comfyui_graphs import (
    CATEGORY,
    CFG,
    DEMO,
    PROMPTS,
    TEACHER,
    by_core,
    graph,
    ksampler,
    latents,
    node,
    own_sampler,
    saving,
    training,
)
from comfyui_server import PATIENCE, Server
from PIL import Image

from s4s_core import sample, save_solver
from s4s_core.demo import SOLVERS, load_demo
from s4s_core.solver_file import load_solver
from s4s_core.strength import Below
from s4s_core.table import SolverPack
from s4s_core.teacher import default_teacher
from tools import example_workflows

pytestmark = pytest.mark.host

PAGE = {"X-S4S": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = os.environ.get("COMFYUI_PATH")
    if not path:
        pytest.skip("COMFYUI_PATH is not set")
    running = Server(path, tmp_path_factory.mktemp("comfyui"))
    yield running
    running.stop()


def test_it_loads_without_warnings(server):
    log = server.log.read_text(errors="replace")
    about = [line for line in log.splitlines() if "s4s" in line.lower()]
    assert not [line for line in about if "FAILED" in line or "warn" in line.lower()], about
    assert "custom_nodes/s4s" in log and "custom_nodes/s4s/" not in log  # no traceback into it
    info = server.get("/object_info")
    assert sum(name.startswith("S4S") for name in info) == 10
    choices = info["KSampler"]["input"]["required"]
    assert "s4s" in choices["sampler_name"][0] and "s4s" in choices["scheduler"][0]


def test_every_way_to_sample_gives_what_the_core_gives(server):
    drawn = {"sampler": ["b", 0], "sigmas": ["b", 1], "latent_image": ["1", 3]}
    custom = {"model": ["1", 0], "cfg": CFG, "add_noise": True, "noise_seed": 11} | PROMPTS
    outputs = server.run(
        graph(
            a=ksampler(11),
            b=node("S4SSampler", solver=["2", 0], steps=5, denoise=1.0),
            c=node("SamplerCustom", **custom, **drawn),
            d=node("RandomNoise", noise_seed=11),
            e=node("CFGGuider", model=["1", 0], cfg=CFG, **PROMPTS),
            f=node("SamplerCustomAdvanced", noise=["d", 0], guider=["e", 0], **drawn),
            g=own_sampler(11),
            n=node("PrimitiveInt", value=5),
            h=own_sampler(11, steps=["n", 0]),
            **saving(*"acfgh"),
        )
    )
    for name in "acfgh":
        gap = (latents(server, outputs, name) - by_core(11)).abs().max()
        assert gap < 1e-4, (name, gap)


def test_the_quick_start_gives_what_the_core_gives(server):
    prompt = example_workflows.build("demo-quick-start").prompt()
    (name,) = (k for k, e in prompt.items() if e["inputs"].get("sampler_name") == "s4s")
    given = prompt[name]["inputs"]
    (demo,) = (e["inputs"] for e in prompt.values() if e["class_type"] == "S4SDemoModel")
    assert given["cfg"] == CFG
    drawn = latents(server, server.run(prompt | saving(name)), name)
    chosen = {"batch": demo["batch_size"], "category": demo["category"]}
    assert (drawn - by_core(given["seed"], given["steps"], **chosen)).abs().max() < 1e-4


def test_images_record_their_solver_even_when_cached(server):
    for prefix in ("first", "second"):
        outputs = server.run(
            graph(
                k=ksampler(21),
                v=node("VAEDecode", samples=["k", 0], vae=["1", 4]),
                s=node("SaveImage", images=["v", 0], filename_prefix=prefix),
            )
        )
        file = server.base / "output" / outputs["s"]["images"][0]["filename"]
        with Image.open(file) as image:
            noted = json.loads(image.text["s4s"])
            pixels = torch.tensor(list(image.convert("RGB").getdata())).view(32, 32, 3) / 255
        digest = load_solver(SOLVERS["ve"]).digest
        assert [(n["hash"], n["nfe"]) for n in noted] == [(digest[:12], 5)]
        want = (by_core(21)[0].movedim(0, -1) / 2 + 0.5).clamp(0, 1)
        assert (pixels - want).abs().max() < 1.01 / 255


def test_a_changed_file_is_loaded_again(server):
    folder = server.base / "models" / "s4s_solvers"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "changing.safetensors"
    shutil.copy(SOLVERS["ve"], file)
    wanted = graph("changing.safetensors", k=ksampler(31), **saving("k"))
    before = latents(server, server.run(wanted), "k")
    ended = server.wait(server.queue(wanted))
    assert set(dict(ended["status"]["messages"])["execution_cached"]["nodes"]) >= {"2", "3", "k"}
    pack = load_solver(SOLVERS["ve"])
    save_solver(file, SolverPack({5: pack[5].replace(b=pack[5].coefficients["b"] * 1.01)}))
    after = latents(server, server.run(wanted), "k")
    assert (after - before).abs().max() > 1e-3
    assert (after - by_core(31, pack=load_solver(file))).abs().max() < 1e-4


def test_img2img_and_inpainting(server):
    picture = graph(k=ksampler(41, 10))
    for denoise in (0.3, 0.6, 1.0):
        again = {"l": ksampler(42, latent=("k", 0), denoise=denoise), **saving("l")}
        assert latents(server, server.run(picture | again), "l").isfinite().all()
    both = {"destination": ["m", 0], "source": ["z", 0], "x": 0, "y": 0, "operation": "multiply"}
    masked = {
        "m": node("SolidMask", value=1.0, width=32, height=32),
        "z": node("SolidMask", value=0.0, width=32, height=16),
        "c": node("MaskComposite", **both),
        "n": node("SetLatentNoiseMask", samples=["k", 0], mask=["c", 0]),
        "l": ksampler(43, latent=("n", 0)),
    }
    outputs = server.run(picture | masked | saving("k", "l"))
    new, old = latents(server, outputs, "l"), latents(server, outputs, "k")
    assert torch.equal(new[..., :16, :], old[..., :16, :])
    assert (new[..., 16:, :] - old[..., 16:, :]).abs().max() > 0.1


def test_invalid_prompts_are_refused_with_a_message(server):
    save, misplaced = saving("k"), own_sampler(1)
    misplaced["inputs"]["model"] = ["1", 3]
    for prompt, words in (
        (graph("none.safetensors", k=ksampler(1)), b""),
        (graph("none.safetensors", k=ksampler(1), **save), b"no solver file 'none.safetensors'"),
        (graph(k=misplaced, **save), b"The input model takes MODEL, not LATENT."),
    ):
        status, body = server.ask("/prompt", {"prompt": prompt, "client_id": "tests"})
        assert status == 400 and words in body
    for prompt, words in (
        (graph(k=ksampler(1, model="1")), "Apply Solver"),
        (graph(k=ksampler(1, 17)), "no table for 17 steps"),
        (graph(kind="flow", k=ksampler(1)), "flow"),
    ):
        assert words in server.fault(prompt | save)
    wrong = node("EmptySD3LatentImage", width=256, height=256, batch_size=1)
    assert server.run(graph(l=wrong, k=ksampler(1, latent=("l", 0)), **save))  # it is made to fit


def test_routes(server):
    listed = server.get("/s4s/solvers")
    demo = next(s for s in listed["solvers"] if s["file"] == "demo.safetensors")
    assert demo["error"] is None and demo["nfes"] == list(load_solver(SOLVERS["ve"]).nfes)
    assert listed["folder"] == str(server.base / "models" / "s4s_solvers")
    table = server.get("/s4s/table?file=demo.safetensors&nfe=5")
    assert table["nfe"] == 5 and len(table["sigmas"]) == 6
    assert server.get("/s4s/jobs") == {"jobs": []}
    for path, status in (
        ("table?file=demo.safetensors&nfe=99", 400),
        ("thumbnail?file=%2Fetc", 404),
    ):
        got, body = server.ask(f"/s4s/{path}")
        assert got == status and json.loads(body)["error"].endswith("."), (path, body)


def test_a_thousand_files_are_listed(server):
    many = server.base / "models" / "s4s_solvers" / "many"
    many.mkdir(parents=True)
    data = SOLVERS["ve"].read_bytes()
    for number in range(1000):
        (many / f"{number:04}.safetensors").write_bytes(data)
    listed = server.get("/s4s/solvers")["solvers"]
    shutil.rmtree(many)
    assert sum(s["file"].startswith("many") and s["error"] is None for s in listed) == 1000


def test_only_the_hosts_own_page_may_change_things(server):
    """In the host's own server; the checks of the routes have all attacks."""
    own = f"http://127.0.0.1:{server.port}"
    for headers in (
        {"Origin": own},
        PAGE | {"Origin": "http://evil.example"},
        PAGE | {"Origin": own, "Sec-Fetch-Site": "cross-site"},
    ):
        for path in ("/s4s/jobs/cancel", "/s4s/panel"):
            status, body = server.ask(path, {"id": "graph"}, headers)
            assert status == 403, (path, headers, body)
    status, body = server.ask("/s4s/jobs/cancel", {"id": "graph"}, PAGE | {"Origin": own})
    assert status == 404 and "No training is running" in json.loads(body)["error"]
    assert server.get("/s4s/panel")["url"] is None


def running_job(server, least=0.0):
    """Return the view of the training in the graph once its progress is `least`."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        jobs = server.get("/s4s/jobs")["jobs"]
        if jobs and jobs[0]["progress"] >= least:
            return jobs[0]
        time.sleep(0.05)
    raise AssertionError("no training is running")


@pytest.mark.slow
def test_training_is_cancelled_and_resumes_after_a_restart(server):
    wanted = training("trained")
    first = server.queue(wanted)
    job = running_job(server, 0.3)
    assert job["id"] == "graph" and job["status"] == "running" and job["nfes"] == [5]
    own = PAGE | {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.ask("/s4s/jobs/cancel", {"id": "graph"}, own)[0] == 200
    ended = server.wait(first)
    assert "execution_interrupted" in dict(ended["status"]["messages"])
    assert server.get("/s4s/jobs") == {"jobs": []}
    states = list((server.base / "home" / "comfyui").glob("*/state.safetensors"))
    assert len(states) == 1

    server.stop()
    server.start()
    second = server.queue(wanted)
    resumed = running_job(server, 0.11)  # after the teacher's part
    assert resumed["progress"] >= 0.3
    outputs = server.wait(second)["outputs"]
    assert "trained.safetensors" in outputs["s"]["text"][0]
    assert not list((server.base / "home" / "comfyui").iterdir())
    listed = {s["file"]: s for s in server.get("/s4s/solvers")["solvers"]}
    made = listed["trained.safetensors"]
    assert made["ratios"]["5"] < 1 and made["thumbnail"]
    status, body = server.ask(made["thumbnail"])
    assert status == 200 and body[:2] == b"\xff\xd8"


@pytest.mark.slow
def test_training_beats_every_stock_sampler(server):
    """At 5 calls on new noise, against the stock samplers with one call per step."""
    if not (server.base / "models" / "s4s_solvers" / "trained.safetensors").exists():
        server.run(training("trained"))
    names = "euler, dpmpp_2m, ddim, uni_pc, uni_pc_bh2, ipndm, ipndm_v, deis, res_multistep, lms"
    given = {"solver": ["2", 0], "seed": 77, "steps": 5, "cfg": CFG, "samplers": names}
    for scheduler in ("karras", "simple", "beta", "kl_optimal"):
        compare = node("S4SCompare", scheduler=scheduler, **given, **DEMO, **TEACHER)
        show = node("PreviewImage", images=["c", 0])
        outputs = server.run(graph("trained.safetensors", batch=16, c=compare, p=show))
        lines = outputs["c"]["text"][0].splitlines()[2:]
        assert lines[0].startswith("S4S"), "\n".join([scheduler, *lines])


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.6, 0.8])
def test_img2img_is_no_worse_than_dpmpp_2m(server, strength):
    """At equal calls from the same noised image, by RMSE to the core's teacher."""
    model, count, steps = load_demo("ve", CFG), 16, 5
    label = torch.full((count,), model.classes.index(CATEGORY))
    given = {"latent": ("k", 0), "denoise": strength}
    stock = {"model": "1", "sampler_name": "dpmpp_2m", "scheduler": "simple"}
    runs = {"k": ksampler(51, 10), "a": ksampler(52, **given), "b": ksampler(52, **given, **stock)}
    outputs = server.run(graph(batch=count, **runs, **saving(*"kab")))
    start, ours, theirs = (latents(server, outputs, k) for k in "kab")
    whole = int(steps / strength)
    ends = math.log10(model.sigma_min), math.log10(model.sigma_max)
    level = float(torch.logspace(*ends, 1000)[-(1 + int((whole - steps) * 1000 / whole))])
    noise = torch.randn(count, 3, 32, 32, generator=torch.manual_seed(52))
    teacher = default_teacher(Below(model, level), 40)
    target = sample(model.denoise, start + noise * level, teacher, label)
    errors = [float((result - target).square().mean().sqrt()) for result in (ours, theirs)]
    assert errors[0] <= errors[1], errors
