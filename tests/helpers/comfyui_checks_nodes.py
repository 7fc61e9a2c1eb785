"""Checks of the nodes: what they accept and refuse, solver files, warnings and metadata."""

import json

from comfyui_bench import Listings, refusal


def check_the_training_seed_does_not_change_by_itself(b):
    """The page draws a new value after each run for any input called seed, unless told not to."""
    changing = {
        key: kind.INPUT_TYPES()["required"]["seed"][1]["control_after_generate"]
        for key, kind in b.classes.items()
        if "seed" in kind.INPUT_TYPES()["required"]
    }
    assert changing == {"S4SKSampler": True, "S4SCompare": True, "S4STrainSolver": False}


def check_refusals_say_what_to_do(b):
    import torch

    model, positive, negative, latent, *_ = b.demo()
    flow = b.demo("flow")[0]
    pack, apply = b.solver(), b.node["S4SApplySolver"].apply
    (applied,) = apply(model, pack)

    def run(m, lat=latent, **more):
        return lambda: b.ksample(m, positive, negative, lat, **more)

    refusal(run(model), "Apply Solver")
    refusal(run(model, scheduler="simple"), "Apply Solver")
    refusal(run(applied, steps=17), "17 steps", "3, 4, 5")
    refusal(lambda: apply(flow, pack), "flow")
    refusal(lambda: apply(model, None), "Load Solver")
    refusal(lambda: b.node["S4SSampler"].build(None, 5, 1.0), "Load Solver")
    refusal(lambda: b.node["S4SSolverInfo"].show(None, 5), "Load Solver")
    refusal(lambda: b.node["S4SSolverInfo"].show(pack, 99), "99")
    refusal(run(applied, {"samples": torch.ones(1, 4, 32, 32)}), "4 channels", "3")
    wrong = {"samples": torch.ones(1, 4, 32, 32)}
    own = b.node["S4SKSampler"].sample
    refusal(lambda: own(model, pack, 0, 5, 2.0, positive, negative, wrong, 1.0), "4 channels")
    train = b.node["S4STrainSolver"].train
    given = "5", "quick", "auto", "auto", 20, 0
    refusal(lambda: train(model, positive, negative, wrong, 2.0, *given), "4 channels")
    refusal(lambda: train(model, positive, negative, latent, 2.0, *given, prompts="a\nb"), "CLIP")
    for key in ("S4SLoadSolver", "S4SSaveSolver", "S4STrainSolver"):
        assert b.classes[key].VALIDATE_INPUTS(None) is True  # linked: not known yet
    check = b.classes["S4STrainSolver"].VALIDATE_INPUTS
    assert check("4, 5 6") is True
    for text in ("", "five", "0", "5.5", "-3", "101", "5,,x"):
        assert check(text).endswith("."), text
    compare = b.node["S4SCompare"].compare
    rest = "simple", "auto", "auto", 20
    refusal(
        lambda: compare(model, pack, positive, negative, latent, 0, 5, 2.0, "eulr", *rest),
        "eulr",
        "Did you mean 'euler'?",
    )
    refusal(
        lambda: compare(model, pack, positive, negative, latent, 0, 77, 2.0, "euler", *rest), "77"
    )


def check_steps_may_be_linked(b):
    """`steps` takes any whole number, from a list or an INT; other inputs keep their types."""
    model, positive, negative, latent, *_ = b.demo()
    pack, links = b.solver(), {"solver": "S4S_SOLVER"}
    for key in ("S4SSampler", "S4SKSampler"):
        check = b.classes[key].VALIDATE_INPUTS
        for steps in (5, "5"):
            assert check(steps, links) is True
        for steps in (0, -1, "x", "", 2.5, "\u00b2"):
            assert check(steps, links).endswith(".")
        assert check(None, links | {"steps": "INT"}) is True
        assert check(None, links | {"steps": "*"}) is True
        for wrong in ({"solver": "MODEL"}, {"steps": "LATENT"}, {"denoise": "IMAGE"}):
            assert next(iter(wrong)) in check(5, links | wrong), wrong
    for steps in (0, -3, "x", None):
        refusal(lambda steps=steps: b.node["S4SSampler"].build(pack, steps, 1.0), "above 0")
        given = model, pack, 0, steps, 2.0, positive, negative, latent, 1.0
        refusal(lambda given=given: b.node["S4SKSampler"].sample(*given), "above 0")


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
        assert saver.VALIDATE_INPUTS(bad) == refusal(
            lambda bad=bad: saver.save(pack, bad), "file name"
        )
    assert saver.VALIDATE_INPUTS("faces/good") is True
    refusal(lambda: saver.save(pack, f"{other}/x"), "folder", "another name")
    path.unlink()


def check_each_node_lists_the_files_once(b):
    pack, saver = b.solver(), b.node["S4SSaveSolver"]
    for number in range(3):
        saver.save(pack, f"many/solver {number}")
    for key in ("S4SLoadSolver", "S4SKSampler", "S4SSampler"):
        with Listings(b) as listings:
            b.classes[key].INPUT_TYPES()
        assert len(listings) == 1, (key, len(listings))


def check_merging_needs_different_step_counts(b):
    table = b.part("s4s_core.table")
    pack, merge = b.solver(), b.node["S4SMergeSolvers"].merge
    low = table.SolverPack({n: pack[n] for n in (3, 4)}, pack.metadata)
    high = table.SolverPack({n: pack[n] for n in (5, 8)}, {})
    (both,) = merge(high, low)
    assert both.nfes == (3, 4, 5, 8)
    other = b.classical(b.core_model("EDM"), (4,))
    refusal(lambda: merge(pack, other), "4")


def check_mismatches_only_warn(b):
    notices, table = b.part("nodes.notices"), b.part("s4s_core.table")
    model, positive, negative, latent, *_ = b.demo()
    pack, sent = b.solver(), []
    about = dict(pack.metadata) | {"cfg": [2, 2], "resolution": [32, 32]}
    pack = table.SolverPack(pack.tables, about)
    (model,) = b.node["S4SApplySolver"].apply(model, pack)
    before, notices.send = notices.send, lambda event, data: sent.append((event, data))
    try:
        b.ksample(model, positive, negative, latent)
        assert sent == []
        b.ksample(model, positive, negative, latent, cfg=5.0)
        assert [event for event, _ in sent] == ["s4s.warning"]
        assert "CFG 2" in sent[0][1]["text"] and "CFG 5" in sent[0][1]["text"]
    finally:
        notices.send = before


def check_each_warning_appears_once_per_prompt(b):
    """Detailers and tiles sample many times in one prompt; the next prompt warns again."""
    from types import SimpleNamespace

    notices, sent, running = b.part("nodes.notices"), [], {}
    host = SimpleNamespace(
        prompt_queue=SimpleNamespace(currently_running=running),
        last_node_id="3",
        send_sync=lambda event, data: sent.append((event, data["node"], data["text"])),
    )
    before, notices.server = notices.server, lambda: host
    try:
        for prompt in ("a", "b"):
            running[0] = (1, prompt, {}, {}, [])
            for text in ("One.", "One.", "Two.", "One."):
                notices.warn(text)
            assert sent == [("s4s.warning", "3", text) for text in ("One.", "Two.")]
            sent.clear()
    finally:
        notices.server = before


def check_images_record_their_solver(b):
    notices, pack = b.part("nodes.notices"), b.solver()
    prompt = {
        "1": {"class_type": "S4SLoadSolver", "inputs": {"solver": "demo.safetensors"}},
        "2": {"class_type": "S4SApplySolver", "inputs": {"model": ["9", 0], "solver": ["1", 0]}},
        "3": {
            "class_type": "KSampler",
            "inputs": {"model": ["2", 0], "sampler_name": "s4s", "scheduler": "s4s", "steps": 5},
        },
        "4": {"class_type": "KSampler", "inputs": {"model": ["9", 0], "steps": 20}},
    }
    request = notices.record_prompt({"prompt": prompt})
    found = request["extra_data"]["extra_pnginfo"]["s4s"]
    assert [(f["hash"], f["nfe"]) for f in found] == [(pack.digest[:12], 5)]
    json.dumps(found)
    extra = request["extra_data"]["extra_pnginfo"]
    b.node["S4SApplySolver"].apply(b.demo()[0], pack, extra)
    assert len(extra["s4s"]) == 1
    odd_file = {"class_type": "S4SLoadSolver", "inputs": {"solver": {}}}
    odd_prompt = {"1": odd_file, "2": {"class_type": "S4SSampler", "inputs": {"solver": ["1", 0]}}}
    notices.record_prompt({"prompt": odd_prompt})  # must not fail
    for odd in ({}, {"prompt": None}, {"prompt": {"1": None, "2": {"inputs": []}}}):
        assert notices.record_prompt(odd) == odd
    loop = {"1": {"class_type": "S4SKSampler", "inputs": {"solver": ["1", 0]}}}
    assert notices.record_prompt({"prompt": loop}) == {"prompt": loop}


def check_solver_info(b):
    pack = b.solver()
    text, plot = b.node["S4SSolverInfo"].show(pack, 0)["result"]
    assert pack.digest in text and "Steps: 3, 4" in text
    assert plot.shape[-1] == 3 and float(plot.std()) > 0.05
    b.node["S4SSolverInfo"].show(b.solver("flow"), 6)


def sampled_with(b, pack):
    """Use a pack as a graph does: show it, apply it, sample, record it; return the description."""
    model, positive, negative, latent, *_ = b.demo(batch=1)
    shown = b.node["S4SSolverInfo"].show(pack, 0)["result"][0]
    extra = {}
    (model,) = b.node["S4SApplySolver"].apply(model, pack, extra)
    b.ksample(model, positive, negative, latent)
    json.dumps(extra)
    return shown


def check_hostile_metadata_is_harmless(b):
    """Whatever a valid file says about itself, nodes use it and the sidebar lists it."""
    from hostile import HOSTILE

    table = b.part("s4s_core.table")
    loader, save, made = b.classes["S4SLoadSolver"], b.part("s4s_core").save_solver, []
    home = b.base / "models" / "s4s_solvers"
    home.mkdir(parents=True, exist_ok=True)
    try:
        for what, about in HOSTILE.items():
            path = home / f"hostile {what}.safetensors"
            save(path, table.SolverPack(b.solver().tables, about))
            made.append(path)
            assert loader.VALIDATE_INPUTS(path.name) is True, what
            (pack,) = loader().load(path.name)
            shown = sampled_with(b, pack)
            lines = shown.splitlines()
            assert len(shown) < 3000 and all(line.isprintable() for line in lines), (what, shown)
            hashes = [line for line in lines if line.startswith("SHA-256")]
            assert hashes == [f"SHA-256: {pack.digest}"], what
        listed = {entry["file"]: entry for entry in b.part("nodes.routes").listing()["solvers"]}
        json.dumps(listed, allow_nan=False)
        for path in made:
            assert (
                listed[path.name]["error"] is None and len(json.dumps(listed[path.name])) < 20_000
            )
    finally:
        for path in made:
            path.unlink()


def check_malformed_files_are_refused(b):
    """The node refuses and the sidebar lists each file with a message that names it."""
    from corpus import malformed

    loader, home = b.classes["S4SLoadSolver"], b.base / "models" / "s4s_solvers" / "bad"
    home.mkdir(parents=True, exist_ok=True)
    cases = malformed()
    try:
        for case in cases:
            (home / f"{case.name}.safetensors").write_bytes(case.data)
        listed = {entry["file"]: entry for entry in b.part("nodes.routes").listing()["solvers"]}
        for case in cases:
            name = f"bad/{case.name}.safetensors"
            said = listed[name]["error"]
            assert said.isprintable() and said.endswith(".") and len(said) < 1000, (case.name, said)
            assert case.fault is None or case.fault in said, (case.name, said)
        for name in (f"bad/{case.name}.safetensors" for case in cases[::9]):
            assert name in loader.VALIDATE_INPUTS(name)
            refusal(lambda name=name: loader().load(name), name)
        b.classes["S4SKSampler"].INPUT_TYPES()
    finally:
        for path in home.iterdir():
            path.unlink()
        home.rmdir()
