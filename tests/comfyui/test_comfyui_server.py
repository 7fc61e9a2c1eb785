"""The nodes in a real ComfyUI process, over its own HTTP interface."""

import json
import os
import shutil
import time

import pytest
import torch
from comfyui_graphs import CATEGORY, CFG, by_core, graph, ksampler, latents, node, training
from comfyui_server import PATIENCE, Server
from PIL import Image

from s4s_core import classical_table, sample, save_solver
from s4s_core.demo import SOLVERS, load_demo
from s4s_core.hosting import host_sigmas
from s4s_core.solver_file import load_solver
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
    seed = 11
    prompts = {"positive": ["1", 1], "negative": ["1", 2]}
    outputs = server.run(
        graph(
            a=ksampler(seed),
            b=node("S4SSampler", solver=["2", 0], steps=5, denoise=1.0),
            c=node(
                "SamplerCustom",
                model=["1", 0],
                add_noise=True,
                noise_seed=seed,
                cfg=CFG,
                sampler=["b", 0],
                sigmas=["b", 1],
                latent_image=["1", 3],
                **prompts,
            ),
            d=node("RandomNoise", noise_seed=seed),
            e=node("CFGGuider", model=["1", 0], cfg=CFG, **prompts),
            f=node(
                "SamplerCustomAdvanced",
                noise=["d", 0],
                guider=["e", 0],
                sampler=["b", 0],
                sigmas=["b", 1],
                latent_image=["1", 3],
            ),
            g=node(
                "S4SKSampler",
                model=["1", 0],
                solver=["2", 0],
                seed=seed,
                steps=5,
                cfg=CFG,
                latent_image=["1", 3],
                denoise=1.0,
                **prompts,
            ),
            **{f"save {k}": node("SaveLatent", samples=[k, 0], filename_prefix=k) for k in "acfg"},
        )
    )
    want = by_core(seed)
    for name in "acfg":
        gap = (latents(server, outputs, f"save {name}") - want).abs().max()
        assert gap < 1e-4, (name, gap)


def test_steps_may_be_linked_and_other_links_must_fit(server):
    own = node(
        "S4SKSampler",
        model=["1", 0],
        solver=["2", 0],
        seed=11,
        steps=["n", 0],
        cfg=CFG,
        latent_image=["1", 3],
        denoise=1.0,
        positive=["1", 1],
        negative=["1", 2],
    )
    wired = graph(k=own, n=node("PrimitiveInt", value=5))
    outputs = server.run(wired | {"s": node("SaveLatent", samples=["k", 0], filename_prefix="w")})
    assert (latents(server, outputs, "s") - by_core(11)).abs().max() < 1e-4
    own["inputs"]["model"] = ["1", 3]
    given = wired | {"s": node("SaveLatent", samples=["k", 0], filename_prefix="w")}
    status, body = server.ask("/prompt", {"prompt": given, "client_id": "tests"})
    assert status == 400 and b"The input model takes MODEL, not LATENT." in body


def test_the_quick_start_gives_what_the_core_gives(server):
    prompt = example_workflows.build("demo-quick-start").prompt()
    samplers = {
        name: entry["inputs"]
        for name, entry in prompt.items()
        if entry["inputs"].get("sampler_name") == "s4s"
    }
    ((name, given),) = samplers.items()
    (demo,) = (e["inputs"] for e in prompt.values() if e["class_type"] == "S4SDemoModel")
    assert given["cfg"] == CFG
    save = node("SaveLatent", samples=[name, 0], filename_prefix="quick")
    drawn = latents(server, server.run(prompt | {"save": save}), "save")
    chosen = {"batch": demo["batch_size"], "category": demo["category"]}
    want = by_core(given["seed"], given["steps"], **chosen)
    assert (drawn - want).abs().max() < 1e-4


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
    wanted = graph(
        "changing.safetensors",
        k=ksampler(31),
        s=node("SaveLatent", samples=["k", 0], filename_prefix="changing"),
    )
    before = latents(server, server.run(wanted), "s")
    ended = server.wait(server.queue(wanted))
    assert set(dict(ended["status"]["messages"])["execution_cached"]["nodes"]) >= {"2", "3", "k"}
    pack = load_solver(SOLVERS["ve"])
    save_solver(file, SolverPack({5: pack[5].replace(b=pack[5].coefficients["b"] * 1.01)}))
    after = latents(server, server.run(wanted), "s")
    assert (after - before).abs().max() > 1e-3
    assert (after - by_core(31, pack=load_solver(file))).abs().max() < 1e-4


def test_img2img_and_inpainting(server):
    picture = graph(k=ksampler(41, 10))
    for denoise in (0.3, 0.6, 1.0):
        steps = {"k2": ksampler(42, latent=("k", 0), denoise=denoise)}
        save = {"s": node("SaveLatent", samples=["k2", 0], filename_prefix="again")}
        assert latents(server, server.run(picture | steps | save), "s").isfinite().all()
    masked = {
        "m": node("SolidMask", value=1.0, width=32, height=32),
        "z": node("SolidMask", value=0.0, width=32, height=16),
        "c": node(
            "MaskComposite", destination=["m", 0], source=["z", 0], x=0, y=0, operation="multiply"
        ),
        "n": node("SetLatentNoiseMask", samples=["k", 0], mask=["c", 0]),
        "k2": ksampler(43, latent=("n", 0)),
        "s": node("SaveLatent", samples=["k2", 0], filename_prefix="inpainted"),
        "o": node("SaveLatent", samples=["k", 0], filename_prefix="original"),
    }
    outputs = server.run(picture | masked)
    new, old = latents(server, outputs, "s"), latents(server, outputs, "o")
    assert torch.equal(new[..., :16, :], old[..., :16, :])
    assert (new[..., 16:, :] - old[..., 16:, :]).abs().max() > 0.1


def test_invalid_prompts_are_refused_with_a_message(server):
    status, body = server.ask("/prompt", {"prompt": graph("none.safetensors", k=ksampler(1))})
    assert status == 400
    save = {"s": node("SaveLatent", samples=["k", 0], filename_prefix="bad")}
    status, body = server.ask(
        "/prompt", {"prompt": graph("none.safetensors", k=ksampler(1), **save)}
    )
    assert status == 400 and b"There is no solver file 'none.safetensors'" in body
    assert "Apply Solver" in server.fault(graph(k=ksampler(1, model="1"), **save))
    assert "no table for 17 steps" in server.fault(graph(k=ksampler(1, 17), **save))
    flow = graph(kind="flow", k=ksampler(1), **save)
    assert "flow" in server.fault(flow)
    wrong = {"l": node("EmptySD3LatentImage", width=256, height=256, batch_size=1)}
    noisy = {"n": node("LatentAdd", samples1=["l", 0], samples2=["l", 0])}
    small = ksampler(1, latent=("l", 0))
    assert server.run(graph(k=small, **wrong, **noisy, **save))  # an empty latent is made to fit


def test_routes(server):
    listed = server.get("/s4s/solvers")
    demo = next(s for s in listed["solvers"] if s["file"] == "demo.safetensors")
    assert demo["error"] is None and demo["nfes"] == list(load_solver(SOLVERS["ve"]).nfes)
    assert listed["folder"] == str(server.base / "models" / "s4s_solvers")
    table = server.get("/s4s/table?file=demo.safetensors&nfe=5")
    assert table["nfe"] == 5 and len(table["sigmas"]) == 6
    assert server.get("/s4s/jobs") == {"jobs": []}
    assert server.get("/s4s/panel")["url"] is None
    for path, status in (
        ("/s4s/table?file=demo.safetensors&nfe=99", 400),
        ("/s4s/table?file=demo.safetensors&nfe=x", 400),
        ("/s4s/table?file=../demo.safetensors&nfe=5", 404),
        ("/s4s/thumbnail?file=%2Fetc%2Fpasswd", 404),
    ):
        got, body = server.ask(path)
        assert got == status and json.loads(body)["error"].endswith("."), (path, body)


def test_a_thousand_files_are_listed_within_a_second(server):
    many = server.base / "models" / "s4s_solvers" / "many"
    many.mkdir(parents=True)
    data = SOLVERS["ve"].read_bytes()
    for number in range(1000):
        (many / f"{number:04}.safetensors").write_bytes(data)
    server.get("/s4s/solvers")  # the first request reads them all
    began = time.monotonic()
    listed = server.get("/s4s/solvers")["solvers"]
    spent = time.monotonic() - began
    shutil.rmtree(many)
    assert sum(s["file"].startswith("many") and s["error"] is None for s in listed) == 1000
    assert spent < 1


def test_only_the_hosts_own_page_may_change_things(server):
    own = f"http://127.0.0.1:{server.port}"
    for headers in (
        {},
        {"Origin": own},
        PAGE | {"Origin": "http://evil.example"},
        PAGE | {"Origin": "null"},
        PAGE | {"Origin": own, "Sec-Fetch-Site": "cross-site"},
    ):
        for path in ("/s4s/jobs/cancel", "/s4s/panel"):
            status, body = server.ask(path, {"id": "graph"}, headers)
            assert status == 403, (path, headers, body)
    status, body = server.ask("/s4s/jobs/cancel", {"id": "graph"}, PAGE | {"Origin": own})
    assert status == 404 and "No training is running" in json.loads(body)["error"]
    for bad in ([], {"id": 3}, {"id": "../x"}):
        status, body = server.ask("/s4s/jobs/cancel", bad, PAGE)
        assert 400 <= status < 500 and "error" in json.loads(body)
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
    for scheduler in ("karras", "simple", "beta", "kl_optimal"):
        outputs = server.run(
            graph(
                "trained.safetensors",
                batch=16,
                c=node(
                    "S4SCompare",
                    model=["1", 0],
                    solver=["2", 0],
                    positive=["1", 1],
                    negative=["1", 2],
                    latent_image=["1", 3],
                    seed=77,
                    steps=5,
                    cfg=CFG,
                    samplers=names,
                    scheduler=scheduler,
                    teacher_sampler="auto",
                    teacher_scheduler="auto",
                    teacher_steps=20,
                    vae=["1", 4],
                ),
                p=node("PreviewImage", images=["c", 0]),
            )
        )
        lines = outputs["c"]["text"][0].splitlines()[2:]
        assert lines[0].startswith("S4S"), "\n".join([scheduler, *lines])


@pytest.mark.slow
def test_img2img_is_no_worse_than_dpmpp_2m(server):
    """At denoise 0.6 and equal calls, by RMSE to the core's teacher from the same noised image."""
    model, count, strength = load_demo("ve", CFG), 16, 0.6
    label = torch.full((count,), model.classes.index(CATEGORY))
    outputs = server.run(
        graph(
            batch=count,
            k=ksampler(51, 10),
            a=ksampler(52, latent=("k", 0), denoise=strength),
            b=ksampler(
                52,
                model="1",
                latent=("k", 0),
                denoise=strength,
                sampler_name="dpmpp_2m",
                scheduler="karras",
            ),
            **{f"save {k}": node("SaveLatent", samples=[k, 0], filename_prefix=k) for k in "kab"},
        )
    )
    start, ours, theirs = (latents(server, outputs, f"save {k}") for k in "kab")
    noise = torch.randn(count, 3, 32, 32, generator=torch.manual_seed(52))
    errors = {}
    for name, result, sigma in (
        ("s4s", ours, first_sigma(load_solver(SOLVERS["ve"]), strength)),
        ("dpmpp_2m", theirs, karras_sigma(model, strength)),
    ):
        nodes = torch.tensor(default_teacher(model, 40).sigmas)
        rest = torch.cat([nodes.new_tensor([sigma]), nodes[nodes < sigma]])
        table = classical_table("unipc-bh2", rest, 3, "ve")
        target = sample(model.denoise, start + noise * sigma, table, label)
        errors[name] = float((result - target).square().mean().sqrt())
    assert errors["s4s"] <= errors["dpmpp_2m"], errors


def first_sigma(pack, strength, steps=5):
    return float(host_sigmas(pack, int(steps / strength))[-(steps + 1)])


def karras_sigma(model, strength, steps=5):
    count = int(steps / strength)
    ends = model.sigma_max ** (1 / 7), model.sigma_min ** (1 / 7)
    return float((torch.linspace(*ends, count) ** 7)[count - steps])
