"""Checks of the nodes: what they accept and refuse, solver files, warnings and metadata."""

import json
import shutil
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from comfyui_bench import listings, refusal


def check_the_training_seed_does_not_change_by_itself(b):
    """The page draws a new value after each run for any input called seed, unless told not to."""
    given = {key: kind.INPUT_TYPES()["required"].get("seed") for key, kind in b.classes.items()}
    changing = {key: seed[1]["control_after_generate"] for key, seed in given.items() if seed}
    assert changing == {"S4SKSampler": True, "S4SCompare": True, "S4STrainSolver": False}


def check_refusals_say_what_to_do(b):
    import torch

    model, positive, negative, latent, *_ = b.demo()
    flow, wrong = b.demo("flow")[0], {"samples": torch.ones(1, 4, 32, 32)}
    pack, apply = b.solver(), b.node["S4SApplySolver"].apply
    (applied,) = apply(model, pack)
    own, train = b.node["S4SKSampler"].sample, b.node["S4STrainSolver"].train
    compare, info = b.node["S4SCompare"].compare, b.node["S4SSolverInfo"].show
    given = 2.0, "5", "quick", "auto", "auto", 20, 0
    compared = model, pack, positive, negative, latent, 0
    rest = "simple", "auto", "auto", 20

    def run(m, lat=latent, **more):
        return b.ksample(m, positive, negative, lat, **more)

    for action, *words in (
        (lambda: run(model), "Apply Solver"),
        (lambda: run(model, scheduler="simple"), "Apply Solver"),
        (lambda: run(applied, steps=17), "17 steps", "3, 4, 5"),
        (lambda: apply(flow, pack), "flow"),
        (lambda: apply(model, None), "Load Solver"),
        (lambda: b.node["S4SSampler"].build(None, 5, 1.0), "Load Solver"),
        (lambda: info(None, 5), "Load Solver"),
        (lambda: info(pack, 99), "99"),
        (lambda: run(applied, wrong), "4 channels", "3"),
        (lambda: own(model, pack, 0, 5, 2.0, positive, negative, wrong, 1.0), "4 channels"),
        (lambda: train(model, positive, negative, wrong, *given), "4 channels"),
        (lambda: train(model, positive, negative, latent, *given, prompts="a\nb"), "CLIP"),
        (lambda: compare(*compared, 5, 2.0, "eulr", *rest), "eulr", "Did you mean 'euler'?"),
        (lambda: compare(*compared, 77, 2.0, "euler", *rest), "77"),
    ):
        refusal(action, *words)
    for key in ("S4SLoadSolver", "S4SSaveSolver", "S4STrainSolver"):
        assert b.classes[key].VALIDATE_INPUTS(None) is True  # linked: not known yet
    check = b.classes["S4STrainSolver"].VALIDATE_INPUTS
    assert check("4, 5 6") is True
    for text in ("", "five", "0", "5.5", "-3", "101", "5,,x"):
        assert check(text).endswith("."), text


def check_steps_may_be_linked(b):
    """`steps` takes any whole number, from a list or an INT; other inputs keep their types."""
    links = {"solver": "S4S_SOLVER"}
    for key in ("S4SSampler", "S4SKSampler"):
        check = b.classes[key].VALIDATE_INPUTS
        assert check(5, links) is check("5", links) is True
        for steps in (0, -1, "x", "", 2.5, "\u00b2"):
            assert check(steps, links).endswith(".")
        for kind in ("INT", "*"):
            assert check(None, links | {"steps": kind}) is True
        for wrong in ({"solver": "MODEL"}, {"steps": "LATENT"}, {"denoise": "IMAGE"}):
            assert next(iter(wrong)) in check(5, links | wrong), wrong
    model, positive, negative, latent, *_ = b.demo()
    pack, build, own = b.solver(), b.node["S4SSampler"].build, b.node["S4SKSampler"].sample
    for steps in (0, -3, "x", None):
        refusal(partial(build, pack, steps, 1.0), "above 0")
        given = model, pack, 0, steps, 2.0, positive, negative, latent, 1.0
        refusal(partial(own, *given), "above 0")


def check_files_are_saved_loaded_and_reloaded(b):
    loader, saver = b.classes["S4SLoadSolver"], b.node["S4SSaveSolver"]
    pack = b.solver()
    shown = saver.save(pack, "faces/my solver", "by me")
    saved, name = shown["result"]
    assert name == "faces/my solver.safetensors" and name in shown["ui"]["text"][0]
    assert (b.base / "models" / "s4s_solvers" / name).is_file()
    assert name in loader.INPUT_TYPES()["required"]["solver"][0]
    assert loader.VALIDATE_INPUTS(name) is True
    assert loader().load(name)[0] == saved and saved.metadata["notes"] == "by me"
    assert saver.save(pack, "faces/my solver", "by me")["result"][1] == name
    other = saver.save(pack, "faces/my solver", "by you")["result"][1]
    assert other == "faces/my solver-2.safetensors"
    odd = [saver.save(pack, "faces/a,b")["result"][1] for _ in range(2)]
    assert odd == ["faces/a-b.safetensors"] * 2

    before, find = loader.IS_CHANGED(name), b.part("nodes.files").find
    path = find(name)
    assert loader.IS_CHANGED(name) == before
    path.write_bytes(find(other).read_bytes())
    assert loader.IS_CHANGED(name) != before

    path.write_bytes(b"no solver")
    assert "my solver" in loader.VALIDATE_INPUTS(name)
    refusal(lambda: loader().load(name), "my solver")
    loader.INPUT_TYPES()
    b.classes["S4SKSampler"].INPUT_TYPES()  # a damaged file does not break the lists
    assert "gone" in loader.VALIDATE_INPUTS("gone.safetensors")
    assert isinstance(loader.IS_CHANGED("../gone.safetensors"), str)
    for bad in ("../x", "a/../b", "", "a//b", "a:b", "nul\0", "..", "/ /"):
        assert saver.VALIDATE_INPUTS(bad) == refusal(partial(saver.save, pack, bad), "file name")
    assert saver.VALIDATE_INPUTS("faces/good") is True
    refusal(lambda: saver.save(pack, f"{other}/x"), "folder", "another name")
    path.unlink()


def check_each_node_lists_the_files_once(b):
    for number in range(3):
        b.node["S4SSaveSolver"].save(b.solver(), f"many/solver {number}")
    for key in ("S4SLoadSolver", "S4SKSampler", "S4SSampler"):
        with listings(b) as threads:
            b.classes[key].INPUT_TYPES()
        assert len(threads) == 1, key


def check_merging_needs_different_step_counts(b):
    table = b.part("s4s_core.table")
    pack, merge = b.solver(), b.node["S4SMergeSolvers"].merge
    low = table.SolverPack({n: pack[n] for n in (3, 4)}, pack.metadata)
    high = table.SolverPack({n: pack[n] for n in (5, 8)}, {})
    assert merge(high, low)[0].nfes == (3, 4, 5, 8)
    refusal(lambda: merge(pack, b.classical(b.core_model("EDM"), (4,))), "4")


def check_mismatches_only_warn(b):
    pack, sent = b.solver(), []
    about = dict(pack.metadata) | {"cfg": [2, 2], "resolution": [32, 32]}
    given = b.applied(pack=b.part("s4s_core.table").SolverPack(pack.tables, about))
    with patch.object(b.part("nodes.notices"), "send", lambda *event: sent.append(event)):
        b.ksample(*given)
        assert sent == []
        b.ksample(*given, cfg=5.0)
    ((event, data),) = sent
    assert event == "s4s.warning" and "CFG 2" in data["text"] and "CFG 5" in data["text"]
    sent.clear()
    half = {
        nfe: pack[nfe].replace(sigmas=pack[nfe].sigmas / 2, call_sigmas=pack[nfe].call_sigmas / 2)
        for nfe in pack.nfes
    }
    with patch.object(b.part("nodes.notices"), "send", lambda *event: sent.append(event)):
        b.ksample(*b.applied(pack=b.part("s4s_core.table").SolverPack(half, about)))
    ((event, data),) = sent
    assert "begins at noise level" in data["text"], data


def check_each_warning_appears_once_per_prompt(b):
    """Detailers and tiles sample many times in one prompt; the next prompt warns again."""
    notices, sent, running = b.part("nodes.notices"), [], {}
    host = SimpleNamespace(
        prompt_queue=SimpleNamespace(currently_running=running),
        last_node_id="3",
        send_sync=lambda event, data: sent.append((event, data["node"], data["text"])),
    )
    with patch.object(notices, "server", lambda: host):
        for prompt in ("a", "b"):
            running[0] = (1, prompt, {}, {}, [])
            for text in ("One.", "One.", "Two.", "One."):
                notices.warn(text)
            assert sent == [("s4s.warning", "3", text) for text in ("One.", "Two.")]
            sent.clear()


def check_images_record_their_solver(b):
    record, pack = b.part("nodes.notices").record_prompt, b.solver()
    names = {"sampler_name": "s4s", "scheduler": "s4s"}
    prompt = {
        "1": node("S4SLoadSolver", solver="demo.safetensors"),
        "2": node("S4SApplySolver", model=["9", 0], solver=["1", 0]),
        "3": node("KSampler", model=["2", 0], steps=5, **names),
        "4": node("KSampler", model=["9", 0], steps=20),
    }
    extra = record({"prompt": prompt})["extra_data"]["extra_pnginfo"]
    assert [(f["hash"], f["nfe"]) for f in extra["s4s"]] == [(pack.digest[:12], 5)]
    json.dumps(extra)
    b.node["S4SApplySolver"].apply(b.demo()[0], pack, extra)
    assert len(extra["s4s"]) == 1
    odd = {"1": node("S4SLoadSolver", solver={}), "2": node("S4SSampler", solver=["1", 0])}
    record({"prompt": odd})  # must not fail
    loop = {"1": node("S4SKSampler", solver=["1", 0])}
    for odd in (None, {"1": None, "2": {"inputs": []}}, loop):
        assert record({"prompt": odd}) == {"prompt": odd}
    assert record({}) == {}


def node(class_type, /, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def check_solver_info(b):
    pack = b.solver()
    text, plot = b.node["S4SSolverInfo"].show(pack, 0)["result"]
    assert pack.digest in text and "Steps: 3, 4" in text
    assert plot.shape[-1] == 3 and float(plot.std()) > 0.05
    b.node["S4SSolverInfo"].show(b.solver("flow"), 6)
    guided = type(pack)({5: pack[5].replace(guidance=[1, 0.5, 0, 2, 1])}, pack.metadata)
    plots = [b.node["S4SSolverInfo"].show(each, 5)["result"][1] for each in (pack, guided)]
    assert (plots[0] - plots[1]).abs().sum() > 100  # the multipliers are written on the plot


def check_hostile_metadata_is_harmless(b):
    """Whatever a valid file says about itself, nodes use it and the sidebar lists it."""
    from hostile import HOSTILE

    loader, save = b.classes["S4SLoadSolver"], b.part("s4s_core").save_solver
    with solver_folder(b, "hostile") as home:
        for what, about in HOSTILE.items():
            name = f"hostile/{what}.safetensors"
            save(home / f"{what}.safetensors", type(b.solver())(b.solver().tables, about))
            assert loader.VALIDATE_INPUTS(name) is True, what
            (pack,), extra = loader().load(name), {}
            shown = b.node["S4SSolverInfo"].show(pack, 0)["result"][0]
            model, *rest = b.demo(batch=1)[:4]
            b.ksample(*b.node["S4SApplySolver"].apply(model, pack, extra), *rest)
            json.dumps(extra)
            lines = shown.splitlines()
            assert len(shown) < 3000 and all(line.isprintable() for line in lines), (what, shown)
            hashes = [line for line in lines if line.startswith("SHA-256")]
            assert hashes == [f"SHA-256: {pack.digest}"], what
        listed = listed_files(b)
        for what in HOSTILE:
            entry = listed[f"hostile/{what}.safetensors"]
            assert entry["error"] is None and len(json.dumps(entry, allow_nan=False)) < 20_000


def check_hostile_entries_disable_no_list(b):
    """Whatever is in a solver folder, drop-downs and the sidebar list the good files."""
    from hostile import fill_with_hostile_entries

    with solver_folder(b, "entries") as home:
        demo = b.part("s4s_core.app.folders").DEMO_SOLVER
        names, bad = fill_with_hostile_entries(home, demo.read_bytes())
        names = {f"entries/{name}" for name in names}
        assert names <= set(b.classes["S4SLoadSolver"].INPUT_TYPES()["required"]["solver"][0])
        assert b.classes["S4SKSampler"].INPUT_TYPES()["required"]["steps"][0]
        listed = listed_files(b)
        faults = {name: e["error"] for name, e in listed.items() if e["error"] is not None}
        assert len(faults) == bad and names <= set(listed) - set(faults)
        assert json.dumps(listed, ensure_ascii=False).encode()


def check_a_name_of_wide_letters_is_saved(b):
    name = b.node["S4SSaveSolver"].save(b.solver(), "wide/" + "\U0001d4b3" * 80)["result"][1]
    assert b.classes["S4SLoadSolver"].VALIDATE_INPUTS(name) is True
    b.part("nodes.files").find(name).unlink()


@contextmanager
def solver_folder(b, name):
    """A folder among the solver files, removed afterwards."""
    home = b.base / "models" / "s4s_solvers" / name
    home.mkdir(parents=True)
    try:
        yield home
    finally:
        shutil.rmtree(home)


def listed_files(b):
    return {entry["file"]: entry for entry in b.part("nodes.routes").listing()["solvers"]}


def check_malformed_files_are_refused(b):
    """The node refuses and the sidebar lists each file with a message that names it."""
    from corpus import malformed

    loader, cases = b.classes["S4SLoadSolver"], malformed()
    with solver_folder(b, "bad") as home:
        for case in cases:
            (home / f"{case.name}.safetensors").write_bytes(case.data)
        listed = listed_files(b)
        for case in cases:
            said = listed[f"bad/{case.name}.safetensors"]["error"]
            assert said.isprintable() and said.endswith(".") and len(said) < 1000, (case.name, said)
            assert case.fault is None or case.fault in said, (case.name, said)
        for name in (f"bad/{case.name}.safetensors" for case in cases[::9]):
            assert name in loader.VALIDATE_INPUTS(name)
            refusal(partial(loader().load, name), name)
        b.classes["S4SKSampler"].INPUT_TYPES()
