"""What must hold in ComfyUI and in its double alike: python comfyui_checks.py HOST PACK BASE.

Every function whose name begins with `check_` is one check. They run in one process, which loads
the pack by path as ComfyUI does, and print one JSON line each.
"""

import importlib
import importlib.util
import json
import os
import sys
import threading
import traceback
from pathlib import Path


class Skipped(Exception):
    """A check that cannot run here; says why."""


def start(host, pack, base):
    """Put a host on sys.path as its main.py would, and load the pack."""
    sys.path[:0] = [host]
    sys.argv = ["main.py", "--cpu", "--base-directory", base]
    if (Path(host) / "main.py").is_file():
        options = importlib.import_module("comfy.options")
        options.enable_args_parsing()
        importlib.import_module("utils.install_util")  # before comfy/ stands on the path
        importlib.import_module("nodes")
    return load(pack)


def load(pack):
    """Load a pack as nodes.load_custom_node does."""
    name = pack.replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, os.path.join(pack, "__init__.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Bench:
    """The loaded pack and shorthands for what the checks do with it."""

    def __init__(self, module, base):
        self.module, self.base = module, Path(base)
        self.node = {key: kind() for key, kind in module.NODE_CLASS_MAPPINGS.items()}
        self.classes = module.NODE_CLASS_MAPPINGS

    def part(self, name):
        """A module of the pack, such as s4s_core.sampling."""
        return importlib.import_module(f"{self.module.__name__}.{name}")

    def demo(self, kind="EDM", batch=2, category="animal face"):
        return self.node["S4SDemoModel"].build(category, kind, batch)

    def solver(self, kind="EDM"):
        """The bundled solver, or a classical pack in the range of another kind."""
        if kind == "EDM":
            return self.node["S4SLoadSolver"].load("demo.safetensors")[0]
        return self.classical(self.core_model(kind), (4, 5, 6))

    def classical(self, model, nfes):
        core, table = self.part("s4s_core"), self.part("s4s_core.table")
        nodes = {n: core.schedule("logsnr", n, model) for n in nfes}
        tables = [core.classical_table("dpmpp", s, 2, model.space) for s in nodes.values()]
        return table.SolverPack.of(*tables, metadata={"name": "classical"})

    def core_model(self, kind, cfg=2.0):
        space = {"EDM": "ve", "EPS": "vp", "flow": "flow"}[kind]
        return self.part("s4s_core.demo").load_demo(space, cfg)

    def ksample(self, model, positive, negative, latent, seed=7, steps=5, cfg=2.0, **more):
        """What the stock KSampler does."""
        import comfy.sample

        samples = comfy.sample.fix_empty_latent_channels(model, latent["samples"])
        noise = comfy.sample.prepare_noise(samples, seed)
        names = {"sampler_name": "s4s", "scheduler": "s4s"} | more
        return comfy.sample.sample(
            model,
            noise,
            steps,
            cfg,
            positive=positive,
            negative=negative,
            latent_image=samples,
            noise_mask=latent.get("noise_mask"),
            seed=seed,
            disable_pbar=True,
            **names,
        )

    def core_sample(self, kind, pack, seed=7, steps=5, batch=2, category="animal face", cfg=2.0):
        """The core's result for the noise that the host draws and scales."""
        import torch

        model = self.core_model(kind, cfg)
        noise = torch.randn(batch, 3, 32, 32, generator=torch.manual_seed(seed))
        scale = 1.0 if kind == "flow" else (1 + model.sigma_max**2) ** 0.5
        label = torch.full((batch,), model.classes.index(category))
        sample = self.part("s4s_core").sample
        return sample(model.denoise, noise * scale, pack[steps], label)

    def null_model(self, channels=4, dimensions=2, kind="EPS", answer=None, **settings):
        """A MODEL of any latent shape; answer(x, time) is the network, x / 3 by default.

        `settings` are the host's sampling settings, such as a flow model's shift.
        """
        import comfy.latent_formats
        import comfy.model_base
        import comfy.model_patcher
        import comfy.supported_models_base
        import torch

        class Format(comfy.latent_formats.LatentFormat):
            latent_channels, latent_dimensions = channels, dimensions

        class Config(comfy.supported_models_base.BASE):
            latent_format, unet_extra_config = Format, {}
            memory_usage_factor, sampling_settings = 0.01, settings

        class Network(torch.nn.Module):
            dtype, calls = torch.float32, 0

            def forward(self, x, time, **_):
                Network.calls += len(x)
                return (answer or (lambda x, time: x / 3))(x, time)

        config = Config({"disable_unet_model_creation": True})
        model = comfy.model_base.BaseModel(config, comfy.model_base.ModelType[kind])
        model.diffusion_model = Network()
        device = torch.device("cpu")
        return comfy.model_patcher.ModelPatcher(model, device, device), Network

    def plain(self):
        """A CONDITIONING for models that look at none."""
        import torch

        return [[torch.zeros(1, 1, 4), {}]]


class Listings(list):
    """The threads that list the solver files, while this lasts."""

    def __init__(self, bench):
        self.folders = bench.part("s4s_core.app.folders")

    def __enter__(self):
        self.before = self.folders.solver_files

        def listed():
            self.append(threading.current_thread())
            return self.before()

        self.folders.solver_files = listed
        return self

    def __exit__(self, *_):
        self.folders.solver_files = self.before


def refusal(action, *words):
    """The sentence that an action is refused with; it must contain the words."""
    try:
        action()
    except Exception as error:
        text = str(error)
        assert type(error).__name__ in (
            "HostError",
            "SolverFileError",
            "TableError",
            "TrainingError",
        )
        assert text.endswith((".", "?")) and "\n" not in text, text
        assert all(word in text for word in words), text
        return text
    raise AssertionError("nothing was refused")


def check_names_are_in_the_stock_lists_once(b):
    import comfy.k_diffusion.sampling
    import comfy.samplers as host

    lists = host.KSampler.SAMPLERS, host.KSampler.SCHEDULERS
    assert lists[0] is host.SAMPLER_NAMES and lists[1] is host.SCHEDULER_NAMES
    for names in lists:
        assert names.count("s4s") == 1 and names[-1] == "s4s"
    b.part("nodes.register").stock_names()
    load(str(Path(b.module.__file__).parent))
    for names in lists:
        assert names.count("s4s") == 1
    assert callable(comfy.k_diffusion.sampling.sample_s4s)
    b.part("nodes.register").stock_names()  # the names run this copy of the pack again


def check_every_input_has_a_tooltip(b):
    assert len(b.classes) == 10 and set(b.module.NODE_DISPLAY_NAME_MAPPINGS) == set(b.classes)
    for key, kind in b.classes.items():
        assert kind.CATEGORY == "S4S" and len(kind.DESCRIPTION) > 20, key
        assert len(kind.OUTPUT_TOOLTIPS) == len(kind.RETURN_TYPES), key
        assert callable(getattr(kind, kind.FUNCTION)), key
        inputs = kind.INPUT_TYPES()
        for group in ("required", "optional"):
            for name, (_, options) in inputs.get(group, {}).items():
                assert options["tooltip"].endswith("."), (key, name)


def check_the_seed_of_a_training_stays(b):
    """The page gives any input named seed a control that draws another one, unless told not to."""
    changing = {
        key: kind.INPUT_TYPES()["required"]["seed"][1]["control_after_generate"]
        for key, kind in b.classes.items()
        if "seed" in kind.INPUT_TYPES()["required"]
    }
    assert changing == {"S4SKSampler": True, "S4SCompare": True, "S4STrainSolver": False}


def check_stock_ksampler_gives_what_the_core_gives(b):
    for kind in ("EDM", "EPS", "flow"):
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, pack)
        got = b.ksample(model, positive, negative, latent)
        gap = (got - b.core_sample(kind, pack)).abs().max()
        assert gap < 1e-4, (kind, gap)


def check_all_ways_to_sample_agree(b):
    import comfy.sample

    for kind in ("EDM", "EPS"):
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        for denoise in (1.0, 0.6):
            (applied,) = b.node["S4SApplySolver"].apply(model, pack)
            stock = b.ksample(applied, positive, negative, latent, denoise=denoise)
            (own,) = b.node["S4SKSampler"].sample(
                model, pack, 7, "5", 2.0, positive, negative, latent, denoise
            )
            sampler, sigmas, steps = b.node["S4SSampler"].build(pack, "5", denoise)
            noise = comfy.sample.prepare_noise(latent["samples"], 7)
            custom = comfy.sample.sample_custom(
                model, noise, 2.0, sampler, sigmas, positive, negative, latent["samples"], seed=7
            )
            assert steps == 5
            assert (stock - own["samples"]).abs().max() == 0
            assert (stock - custom).abs().max() < 1e-5, kind


def check_denoise_below_one(b):
    import torch

    model, positive, negative, latent, *_ = b.demo()
    (model,) = b.node["S4SApplySolver"].apply(model, b.solver())
    picture = b.core_sample("EDM", b.solver(), seed=3, steps=10)
    gaps = []
    for denoise in (0.0, 0.3, 0.6, 1.0):
        out = b.ksample(model, positive, negative, {"samples": picture}, denoise=denoise)
        assert bool(torch.isfinite(out).all())
        gaps.append(float((out - picture).square().mean().sqrt()))
    assert gaps[0] == 0 and gaps[1] < gaps[3] and gaps[2] < gaps[3], gaps


def check_inpainting_keeps_the_rest_exactly(b):
    import torch

    for kind in ("EDM", "flow"):
        model, positive, negative, latent, *_ = b.demo(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, b.solver(kind))
        picture = torch.rand(2, 3, 32, 32) * 2 - 1
        mask = torch.zeros(1, 1, 32, 32)
        mask[..., 8:24, 8:24] = 1
        masked = {"samples": picture, "noise_mask": mask}
        for denoise in (1.0, 0.6):
            out = b.ksample(model, positive, negative, masked, denoise=denoise)
            kept = (mask == 0).expand_as(out)
            assert torch.equal(out[kept], picture[kept]), kind
            assert (out - picture)[~kept].abs().max() > 0.1


def euler_pack(b, kind, nfes):
    """Euler's method as a solver, in the range of a kind of the demo model."""
    core, table = b.part("s4s_core"), b.part("s4s_core.table")
    model = b.core_model(kind)
    nodes = [core.schedule("logsnr", nfe, model) for nfe in nfes]
    return table.SolverPack.of(*(core.classical_table("euler", n, 1, model.space) for n in nodes))


def check_soft_masks_blend_once(b):
    """Euler's method as a solver does to a feathered mask what the host's own Euler does."""
    import torch

    for kind in ("EDM", "flow"):
        model, positive, negative, *_ = b.demo(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, euler_pack(b, kind, (5, 8)))
        mask = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
        masked = {"samples": torch.rand(2, 3, 32, 32) * 2 - 1, "noise_mask": mask}
        for denoise in (1.0, 0.6):  # 5 of 5 steps, and the last 5 of 8
            runs = [
                b.ksample(model, positive, negative, masked, sampler_name=name, denoise=denoise)
                for name in ("s4s", "euler")
            ]
            gap = (runs[0] - runs[1]).abs().max()
            assert gap < 1e-3, (kind, denoise, gap)


def check_parts_of_a_schedule(b):
    """Two halves of a solver's own sigmas run; a half of any others is refused."""
    import comfy.sample
    import comfy.samplers
    import torch

    model, positive, negative, latent, *_ = b.demo()
    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "6", 1.0)
    noise = comfy.sample.prepare_noise(latent["samples"], 7)

    def run(levels, noise, samples):
        given = model, noise, 2.0, sampler, levels, positive, negative, samples
        return comfy.sample.sample_custom(*given, seed=7)

    half = run(sigmas[:4], noise, latent["samples"])
    whole = run(sigmas[3:], torch.zeros_like(noise), half)
    assert bool(torch.isfinite(whole).all()) and half.std() > 2 * whole.std()
    sampling = model.get_model_object("model_sampling")
    other = comfy.samplers.calculate_sigmas(sampling, "karras", 6)
    refusal(lambda: run(other[:4], noise, latent["samples"]), "cannot stop", "to the end")


def check_samplers_that_wrap_this_one(b):
    """Detail Daemon and its kin hand on a bare function that knows only the inner model."""
    import comfy.sample
    import comfy.samplers
    import torch

    model, positive, negative, latent, *_ = b.demo()
    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "5", 1.0)

    def wrapping(model, x, sigmas, **more):
        def passed(x, sigma, **extra_args):
            return model(x, sigma, **extra_args)

        passed.inner_model, passed.sigmas = model.inner_model, model.sigmas
        return sampler.sampler_function(passed, x, sigmas, **more)

    noise, mask = comfy.sample.prepare_noise(latent["samples"], 7), torch.zeros(1, 1, 32, 32)
    mask[..., :16] = 1
    plain, wrapped = (
        comfy.sample.sample_custom(
            model, noise, 2.0, one, sigmas, positive, negative, latent["samples"], mask, seed=7
        )
        for one in (sampler, comfy.samplers.KSAMPLER(wrapping))
    )
    assert torch.equal(plain[..., :16], wrapped[..., :16])
    assert (plain - wrapped).abs().max() < 0.1


def check_the_callback_and_interruption(b):
    model, network = b.null_model()
    pack = b.solver("EPS")
    (model,) = b.node["S4SApplySolver"].apply(model, pack)
    import torch

    latent, plain, heard = {"samples": torch.zeros(2, 4, 8, 8)}, b.plain(), []

    def callback(step, x0, x, total):
        heard.append((step, tuple(x0.shape), tuple(x.shape), total))

    b.ksample(model, plain, plain, latent, cfg=1.0, callback=callback)
    assert [entry[0] for entry in heard] == [0, 1, 2, 3, 4]
    assert {entry[1:] for entry in heard} == {((2, 4, 8, 8), (2, 4, 8, 8), 5)}

    class Stop(Exception):
        pass

    def stop(step, *_):
        if step == 1:
            raise Stop

    network.calls = 0
    try:
        b.ksample(model, plain, plain, latent, cfg=1.0, callback=stop)
        raise AssertionError("not stopped")
    except Stop:
        assert network.calls == 2 * 2  # two calls of a batch of two, and no third


def check_video_and_16_channels(b):
    import torch

    for kind, shape in (("EPS", (16, 8, 8)), ("flow", (16, 3, 8, 8))):
        model, _ = b.null_model(16, len(shape) - 1, kind.upper())
        pack = b.solver(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, pack)
        latent = {"samples": torch.randn(2, *shape)}
        for denoise in (1.0, 0.5):
            out = b.ksample(model, b.plain(), b.plain(), latent, denoise=denoise)
            assert out.shape == (2, *shape) and bool(torch.isfinite(out).all())


def check_an_empty_latent_of_another_size(b):
    """Newer hosts fit an empty latent to the model by the ratio that the latent names."""
    import comfy.sample
    import torch

    model, _ = b.null_model()
    before, asked = comfy.sample.fix_empty_latent_channels, []

    def newer(model, latent_image, downscale_ratio_spacial=None, downscale_ratio_temporal=None):
        asked.append((downscale_ratio_spacial, downscale_ratio_temporal))
        return latent_image

    latent, prepared = {"samples": torch.zeros(1, 4, 8, 8)}, b.part("nodes.run").prepared
    try:
        comfy.sample.fix_empty_latent_channels = newer
        prepared(model, latent | {"downscale_ratio_spacial": 16})
        prepared(model, latent)
    finally:
        comfy.sample.fix_empty_latent_channels = before
    assert asked == [(16, None), (None, None)]
    assert prepared(model, latent | {"downscale_ratio_spacial": 16}).shape == (1, 4, 8, 8)


def check_a_clone_carries_the_solver_and_times_are_not_rounded(b):
    import torch

    model, *_ = b.demo("EPS")
    before = model.get_model_object("model_sampling")
    (applied,) = b.node["S4SApplySolver"].apply(model, b.solver("EPS"))
    after = applied.get_model_object("model_sampling")
    times = torch.tensor([0.0, 0.25, 812.4, 998.7, 999.0])
    assert torch.allclose(after.timestep(after.sigma(times)), times, atol=2e-2)
    assert float(after.timestep(torch.tensor([1e9]))) == 999.0
    assert model.get_model_object("model_sampling") is before
    assert float(before.timestep(before.sigma(times))[2]) == 812
    assert applied.clone().clone().get_model_object("model_sampling") is after
    assert isinstance(after, type(before)) and torch.equal(after.sigmas, before.sigmas)
    flow = b.demo("flow")[0].get_model_object("model_sampling")
    assert type(b.part("nodes.attach").continuous(flow)) is type(flow)


def check_refusals_are_sentences(b):
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


def check_steps_may_be_wired(b):
    """Any number of a list or an INT; the wires of the other inputs are held to their types."""
    model, positive, negative, latent, *_ = b.demo()
    pack, wires = b.solver(), {"solver": "S4S_SOLVER"}
    for key in ("S4SSampler", "S4SKSampler"):
        check = b.classes[key].VALIDATE_INPUTS
        for steps in (5, "5"):
            assert check(steps, wires) is True
        for steps in (0, -1, "x", "", 2.5, "\u00b2"):
            assert check(steps, wires).endswith(".")
        assert check(None, wires | {"steps": "INT"}) is True
        assert check(None, wires | {"steps": "*"}) is True
        for wrong in ({"solver": "MODEL"}, {"steps": "LATENT"}, {"denoise": "IMAGE"}):
            assert next(iter(wrong)) in check(5, wires | wrong), wrong
    for steps in (0, -3, "x", None):
        refusal(lambda steps=steps: b.node["S4SSampler"].build(pack, steps, 1.0), "above 0")
        given = model, pack, 0, steps, 2.0, positive, negative, latent, 1.0
        refusal(lambda given=given: b.node["S4SKSampler"].sample(*given), "above 0")


def check_files_are_saved_loaded_and_noticed(b):
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

    before = loader.IS_CHANGED(name)
    path = b.part("nodes.library").find(name)
    assert loader.IS_CHANGED(name) == before
    path.write_bytes(b.part("nodes.library").find(other).read_bytes())
    assert loader.IS_CHANGED(name) != before

    path.write_bytes(b"no solver")
    assert "my solver" in loader.VALIDATE_INPUTS(name)
    refusal(lambda: loader().load(name), "my solver")
    loader.INPUT_TYPES()
    b.classes["S4SKSampler"].INPUT_TYPES()  # a damaged file does not spoil the lists
    assert "gone" in loader.VALIDATE_INPUTS("gone.safetensors")
    assert isinstance(loader.IS_CHANGED("../gone.safetensors"), str)
    for bad in ("../x", "a/../b", "", "a//b", "a:b", "nul\0", "..", "/ /"):
        assert saver.VALIDATE_INPUTS(bad) == refusal(lambda bad=bad: saver.save(pack, bad), "name")
    assert saver.VALIDATE_INPUTS("faces/good") is True
    refusal(lambda: saver.save(pack, f"{other}/x"), "folder", "another name")
    path.unlink()


def check_the_files_are_listed_once(b):
    """However many there are: each node that offers them asks for one listing."""
    pack, saver = b.solver(), b.node["S4SSaveSolver"]
    for number in range(3):
        saver.save(pack, f"many/solver {number}")
    for key in ("S4SLoadSolver", "S4SKSampler", "S4SSampler"):
        with Listings(b) as listings:
            b.classes[key].INPUT_TYPES()
        assert len(listings) == 1, (key, len(listings))


def check_merging(b):
    table = b.part("s4s_core.table")
    pack, merge = b.solver(), b.node["S4SMergeSolvers"].merge
    low = table.SolverPack({n: pack[n] for n in (3, 4)}, pack.metadata)
    high = table.SolverPack({n: pack[n] for n in (5, 8)}, {})
    (both,) = merge(high, low)
    assert both.nfes == (3, 4, 5, 8)
    other = b.classical(b.core_model("EDM"), (4,))
    refusal(lambda: merge(pack, other), "4 steps")


def check_mismatches_warn_and_go_on(b):
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


def check_a_prompt_is_warned_once(b):
    """Detailers and tiles sample many times: each sentence comes once, and again in the next."""
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


def check_the_size_in_pixels(b):
    """By the VAE, else by the latent format; a guess would be a lie in the file."""
    pixels, demo = b.part("nodes.wiring").pixels, b.demo()

    class Large:
        def spacial_compression_decode(self):
            return 16

    unknown, _ = b.null_model()
    assert pixels(unknown.model, (1, 4, 2, 3), Large()) == (48, 32)
    assert pixels(demo[0].model, (1, 3, 32, 32), demo[4]) == (32, 32)
    assert pixels(demo[0].model, (1, 3, 32, 32)) == (32, 32)
    if not hasattr(unknown.model.latent_format, "spacial_downscale_ratio"):
        assert pixels(unknown.model, (1, 4, 2, 3)) is None


def check_the_identity_of_a_model(b):
    identity = b.part("s4s_core.app.comfyui").identity
    one, two = (b.demo()[0].model for _ in range(2))
    assert identity(one) == identity(two) and identity(one).startswith("comfy:")
    assert identity(b.demo()[0].model.bfloat16()) == identity(one)
    other = b.demo()[0].model
    for parameter in other.parameters():
        parameter.data.mul_(1.1)
    assert identity(other) != identity(one)


def check_the_metadata_of_images(b):
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
    for odd in ({}, {"prompt": None}, {"prompt": {"1": None, "2": {"inputs": []}}}):
        assert notices.record_prompt(odd) == odd
    loop = {"1": {"class_type": "S4SKSampler", "inputs": {"solver": ["1", 0]}}}
    assert notices.record_prompt({"prompt": loop}) == {"prompt": loop}


def check_training(b):
    """A small analytic model: trained, interrupted, resumed, and the same as in one go."""
    import comfy.model_management as management
    import torch

    learning = b.part("nodes.learning")
    learning.EFFORTS["quick"] = 900
    learning._PREVIEW_SHARE = 1e9  # one preview, however fast the machine: calls are counted
    wave = lambda x, time: (3 * x + time.view(-1, 1, 1, 1) / 300).sin()  # noqa: E731
    model, network = b.null_model(answer=wave)
    latent, views = {"samples": torch.zeros(1, 4, 4, 4)}, []
    notices = b.part("nodes.notices")
    notices.send = lambda event, data: views.append((event, data))

    def train(seed=1, stop=None):
        network.calls = 0
        forward = network.forward

        def counted(self, x, time, **more):
            if stop is not None and network.calls > stop:
                management.interrupt_current_processing()
            return forward(self, x, time, **more)

        network.forward = counted
        try:
            return b.node["S4STrainSolver"].train(
                model,
                b.plain(),
                b.plain(),
                latent,
                1.0,
                "3,4",
                "quick",
                "euler",
                "karras",
                12,
                seed,
                node="5",
            )
        finally:
            network.forward = forward

    whole = train()
    pack, preview, report = whole["result"]
    assert pack.nfes == (3, 4) and pack.space == "ve"
    assert pack.metadata["teacher"]["nfe"] == 12 and pack.metadata["cfg"] == [1.0, 1.0]
    assert "resolution" not in pack.metadata and pack.metadata["thumbnail"]
    for scores in pack.metadata["scores"].values():
        assert scores["rmse"] < 1.05 * scores["initial"]
    assert preview.ndim == 4 and preview.shape[-1] == 3 and "3 steps" in report
    events = [data for event, data in views if event == "s4s.training"]
    shares = [view["progress"] for view in events]
    assert shares == sorted(shares) and events[-1]["status"] == "done"
    assert any(view["eta"] for view in events) and any(view["preview"] for view in events)
    assert learning.running() is None
    full, home = network.calls, b.part("s4s_core.app.folders").data_home() / "comfyui"
    assert not list(home.iterdir())
    (home / "abandoned").mkdir()
    os.utime(home / "abandoned", (0, 0))

    views.clear()
    try:
        train(stop=full * 2 // 3)
        raise AssertionError("not stopped")
    except management.InterruptProcessingException:
        assert len(list(home.glob("*/state.safetensors"))) == 1
        assert views[-1][1]["status"] == "cancelled" and learning.running() is None
    again = train()["result"][0]
    assert network.calls < full * 0.6, (network.calls, full)  # the teacher's part is kept too
    assert again == pack and not list(home.iterdir())


def check_abandoned_trainings_are_removed(b):
    """After two weeks, but never one that a process still works on."""
    import time

    learning, processes = b.part("nodes.learning"), b.part("s4s_core.lock")
    home = b.base / "trainings"
    for name in ("old", "new", "running"):
        (home / name).mkdir(parents=True)
        (home / name / learning.STATE).write_bytes(b"state")
    with processes.Lock(home / "running" / learning.LOCK) as lock:
        lock.take()
        for name, days in (("old", 15), ("new", 13), ("running", 400)):
            then = time.time() - days * 24 * 3600
            os.utime(home / name, (then, then))
        learning.forget_abandoned(home)
        assert sorted(path.name for path in home.iterdir()) == ["new", "running"]


def check_previews_fit_the_memory(b):
    """Where memory runs out, pictures are rendered in smaller batches, as training goes on."""
    import torch

    learning, wired = b.part("nodes.learning"), b.part("nodes.wired")
    table, latent = b.solver("EPS")[4], {"samples": torch.zeros(1, 4, 4, 4)}

    def results(most):
        def answer(x, time):
            if len(x) > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return (3 * x).sin()

        def work(ready):
            shown = [learning.Show(ready, wired.teacher_of(ready, *how, 4)) for how in teachers]
            return [x for show in shown for x in show.results({"S4S": table}).values()]

        model, _ = b.null_model(answer=answer)
        return wired.in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, work)

    teachers = ("auto", "auto"), ("euler", "karras")
    for whole, parts in zip(results(most=4), results(most=1), strict=True):
        assert whole.shape == (4, 4, 4, 4) and torch.allclose(whole, parts, atol=1e-4)
    refusal(lambda: results(most=0), "Out of memory")


def check_training_reads_prompts(b):
    """Several prompts share a call; each row gets its own."""
    import torch

    wired = b.part("nodes.wired")
    model, positive, negative, latent, _, clip = b.demo()
    names = ["animal face", "heart", "flag"]
    prompts = [clip.encode(name) for name in names]
    core, label = b.core_model("EDM"), torch.tensor([0, 2, 1, 1])
    classes = torch.tensor([core.classes.index(name) for name in names])
    x, sigma = torch.randn(4, 3, 32, 32) * 3, torch.tensor([3.0, 2.0, 1.0, 3.0])
    want = core.denoise(x, sigma, classes[label])

    def work(ready):
        assert ready.stack is not None and ready.shape == (3, 32, 32)
        together = ready.denoise(x, sigma, label)
        ready.stack = None
        return together, ready.denoise(x, sigma, label), ready.conditions(64, torch.Generator())

    together, apart, drawn = wired.in_session(model, prompts, negative, 2.0, latent, 0, work)
    assert (together - want).abs().max() < 1e-4 and (apart - want).abs().max() < 1e-4
    assert set(drawn.tolist()) == {0, 1, 2}
    assert len(b.part("nodes.learning").encoded(clip, " heart \n\nflag\n")) == 2


def check_a_model_has_its_own_times(b):
    """What `uniform` is uniform in, and so what the auto teacher of a flow model does."""
    import torch

    wired, core, teacher = map(b.part, ("nodes.wired", "s4s_core", "s4s_core.teacher"))
    latent = {"samples": torch.zeros(1, 4, 4, 4)}

    def asked(question, kind, **settings):
        model, _ = b.null_model(kind=kind, **settings)
        return wired.in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, question)

    first = asked(lambda ready: teacher.default_teacher(ready).sigmas[:3], "FLOW", shift=3.0)
    assert abs(first - [1, 0.98277, 0.96429]).max() < 1e-3, first
    nodes = asked(lambda ready: core.schedule("uniform", 3, ready), "EPS")
    sampling = b.null_model()[0].get_model_object("model_sampling")
    assert torch.allclose(nodes[:3].float(), sampling.sigma(torch.tensor([999.0, 666.0, 333.0])))
    assert asked(lambda ready: ready.times, "EDM") is None


def check_comparing(b):
    model, positive, negative, latent, vae, _ = b.demo()
    shown = b.node["S4SCompare"].compare(
        model,
        b.solver(),
        positive,
        negative,
        latent,
        3,
        5,
        2.0,
        "euler, heun",
        "karras",
        "auto",
        "auto",
        20,
        vae,
    )
    picture, text = shown["result"]
    assert picture.ndim == 4 and picture.shape[0] == 1 and 0 <= picture.min() <= picture.max() <= 1
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:]}
    assert set(rows) == {"teacher", "S4S,", "euler", "heun"}
    assert rows["teacher"][1] == "20" and float(rows["teacher"][2]) == 0
    assert int(rows["heun"][1]) <= 5 and rows["euler"][1] == "5"
    assert float(rows["S4S,"][-2]) < float(rows["euler"][2])


def check_the_clock_waits_for_the_device(b):
    """Nothing waits for a GPU but reading its results: the clock is read behind that."""
    from types import SimpleNamespace

    import torch

    compare, events = b.part("nodes.compare"), []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.tolist:
                events.append("read")
            return function(*args, **kwargs or {})

    contest = compare.Contest.__new__(compare.Contest)
    contest.teacher = None
    before = compare.time
    compare.time = SimpleNamespace(perf_counter=lambda: events.append("clock") or 0.0)
    try:
        with Watch():
            contest._enter("one", lambda: (torch.zeros(2, 3), 5))
    finally:
        compare.time = before
    assert events == ["clock", "read", "clock"], events


def check_solver_info(b):
    pack = b.solver()
    text, plot = b.node["S4SSolverInfo"].show(pack, 0)["result"]
    assert pack.digest in text and "Steps: 3, 4" in text
    assert plot.shape[-1] == 3 and float(plot.std()) > 0.05
    b.node["S4SSolverInfo"].show(b.solver("flow"), 6)


def sampled_with(b, pack):
    """Use a pack as a graph does: shown, put on a model, sampled with, noted in the image."""
    model, positive, negative, latent, *_ = b.demo(batch=1)
    shown = b.node["S4SSolverInfo"].show(pack, 0)["result"][0]
    extra = {}
    (model,) = b.node["S4SApplySolver"].apply(model, pack, extra)
    b.ksample(model, positive, negative, latent)
    json.dumps(extra)
    return shown


def check_hostile_words(b):
    """Whatever a good solver says about itself, every node takes it and the sidebar lists it."""
    from hostile import HOSTILE

    library, table = b.part("nodes.library"), b.part("s4s_core.table")
    loader, save, made = b.classes["S4SLoadSolver"], b.part("s4s_core").save_solver, []
    home = b.base / "models" / "s4s_solvers"
    home.mkdir(parents=True, exist_ok=True)
    try:
        for what, about in HOSTILE.items():
            path = home / f"hostile {what}.safetensors"
            save(path, table.SolverPack(b.solver().tables, about))
            made.append(path)
            assert loader.VALIDATE_INPUTS(path.name) is True, what
            shown = sampled_with(b, loader().load(path.name)[0])
            lines = shown.splitlines()
            assert len(shown) < 3000 and all(line.isprintable() for line in lines), (what, shown)
            hashes = [line for line in lines if line.startswith("SHA-256")]
            assert hashes == [f"SHA-256: {library.load_unchanged(path).digest}"], what
        listed = {entry["file"]: entry for entry in b.part("nodes.routes").listing()["solvers"]}
        json.dumps(listed, allow_nan=False)
        for path in made:
            assert (
                listed[path.name]["error"] is None and len(json.dumps(listed[path.name])) < 20_000
            )
    finally:
        for path in made:
            path.unlink()


def check_malformed_files(b):
    """Files of another format, kind, family or spelling: one sentence each, in node and sidebar."""
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
            assert loader.VALIDATE_INPUTS(name) == listed[name]["error"]
            refusal(lambda name=name: loader().load(name))
        b.classes["S4SKSampler"].INPUT_TYPES()
    finally:
        for path in home.iterdir():
            path.unlink()
        home.rmdir()


def check_words_of_the_demo(b):
    clip = b.demo()[5]
    assert clip.tokenize("An ANIMAL FACE please") == clip.classes.index("animal face")
    assert clip.tokenize("animal") == clip.classes.index("animal")
    assert clip.tokenize("") == clip.tokenize("a xylophone") == len(clip.classes)
    vae, model = b.demo()[4], b.demo()[0]
    sheets = b.part("nodes.sheets")
    x = b.core_sample("EDM", b.solver())
    exact, rough = sheets.pictures_of(model.model, x, vae), sheets.pictures_of(model.model, x)
    assert exact.shape == rough.shape == (2, 32, 32, 3)
    assert (exact - rough).abs().max() < 1e-3


def check_the_routes(b):
    """Every route through aiohttp, with what a stranger might send."""
    if importlib.util.find_spec("aiohttp") is None:
        raise Skipped("aiohttp is not installed")
    import asyncio

    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    routes, learning = b.part("nodes.routes"), b.part("nodes.learning")
    application = web.Application()
    for (method, path), handler in routes.ROUTES.items():
        application.router.add_route(method, path, routes.answering(handler))
    own = {"X-S4S": "1"}
    foreign = [{}, own | {"Origin": "http://evil.example"}, own | {"Sec-Fetch-Site": "cross-site"}]

    async def visit():
        async with TestClient(TestServer(application)) as client:

            async def ask(method, path, **more):
                async with client.request(method, path, **more) as answer:
                    return answer.status, await answer.json()

            status, found = await ask("GET", "/s4s/solvers")
            assert status == 200 and "demo.safetensors" in [s["file"] for s in found["solvers"]]
            for entry in found["solvers"]:
                assert {"file", "error", "thumbnail"} <= set(entry)
            for path in ("table", "thumbnail"):
                with Listings(b) as listings:
                    await ask("GET", f"/s4s/{path}?file=none.safetensors&nfe=5")
                assert len(listings) == 1, path
                assert listings[0] is not threading.main_thread(), "the host's page waits"
            status, found = await ask("GET", "/s4s/table?file=demo.safetensors&nfe=5")
            assert status == 200 and len(found["call_sigmas"]) == 5
            for query in ("", "?file=demo.safetensors", "?file=..%2Fx&nfe=5", "?file=x&nfe=5"):
                status, found = await ask("GET", f"/s4s/table{query}")
                assert status in (400, 404) and found["error"].endswith("."), query
            assert (await ask("GET", "/s4s/thumbnail?file=nothing"))[0] == 404
            assert await ask("GET", "/s4s/jobs") == (200, {"jobs": []})
            status, found = await ask("GET", "/s4s/panel")
            assert (status, found["url"], type(found["ready"])) == (200, None, bool)
            for path in ("/s4s/panel", "/s4s/jobs/cancel"):
                for headers in foreign:
                    assert (await ask("POST", path, json={"id": "graph"}, headers=headers))[
                        0
                    ] == 403
            for body in ({"id": 1}, [], {"id": "graph"}, {"id": "../.."}):
                status, found = await ask("POST", "/s4s/jobs/cancel", json=body, headers=own)
                assert status in (400, 404) and found["error"].endswith((".", "}."))
            status, _ = await ask("POST", "/s4s/jobs/cancel", data=b"{", headers=own)
            assert status == 400
            learning._running.update(id="graph", progress=0.5)
            _, found = await ask("GET", "/s4s/jobs")
            assert found["jobs"][0]["id"] == "graph"
            assert (await ask("POST", "/s4s/jobs/cancel", json={"id": "graph"}, headers=own))[
                0
            ] == 200

    import comfy.model_management as management

    try:
        asyncio.run(visit())
        try:
            management.throw_exception_if_processing_interrupted()
            raise AssertionError("nothing was cancelled")
        except management.InterruptProcessingException:
            pass
    finally:
        learning._running.clear()
        management.interrupt_current_processing(False)


OWN = {"X-S4S": "1"}
CANCEL, PANEL = "/s4s/jobs/cancel", "/s4s/panel"
EVIL = "http://evil.example"
MISSING = b'{"id": "20250101-000000-abcdef"}'
FOREIGN = [
    {},
    {"X-S4S": "0"},
    {"X-S4S": "1, 1"},
    OWN | {"Origin": EVIL},
    OWN | {"Origin": "null"},
    OWN | {"Origin": ""},
    OWN | {"Origin": "http://["},
    OWN | {"Origin": "http://127.0.0.1"},
    OWN | {"Origin": "file://"},
    OWN | {"Sec-Fetch-Site": "cross-site"},
    OWN | {"Sec-Fetch-Site": "same-site"},
    OWN | {"Host": "evil.example"},
    OWN | {"Host": "evil.example", "Origin": EVIL},
    OWN | {"Host": "127.0.0.1.evil.example", "Origin": "http://127.0.0.1.evil.example"},
    OWN | {"Host": "127.0.0.1@evil.example", "Origin": "http://127.0.0.1@evil.example"},
    OWN | {"Host": "192.168.0.9", "Origin": "http://192.168.0.9"},
    OWN | {"Host": "[", "Origin": "http://["},
    OWN | {"Host": "", "Origin": "http://"},
]
BODIES = [
    (b"", {}),
    (b"{", {}),
    (b"[]", {}),
    (b"null", {}),
    (b"\xff\xfe\xff", {}),
    (b"[" * 9_000, {}),
    (b'{"id":' * 1_500, {}),
    (b'{"id": 1}', {}),
    (b'{"id": ["graph"]}', {}),
    (b'{"id": "graph"}', {}),
    (b'{"id": ".."}', {}),
    (b'{"id": "../../home"}', {}),
    (b'{"id": "a\\u0000b"}', {}),
    (b'{"id": "\\ud800"}', {}),
    (b'{"id": "' + b"x" * 9_000 + b'"}', {}),
    (b'{"id": NaN}', {}),
    (MISSING, {"Content-Type": "application/json; charset=nonsense"}),
    (MISSING, {"Content-Type": "text/plain"}),
    (b" " * 20_000 + MISSING, {}),
    (b'{"id": "' + b"x" * 20_000_000 + b'"}', {}),
]
QUERIES = [
    "",
    "file=",
    "file=../config.json",
    "file=..%2F..%2Fetc%2Fpasswd",
    "file=%2Fetc%2Fpasswd",
    "file=..%5C..%5Csecret.safetensors",
    "file=demo.safetensors%00",
    "file=%FF%FE",
    "file=file%3A%2F%2F%2Fetc%2Fpasswd",
    "file=" + "x" * 4_000,
    "file=link.safetensors",
    "file=loop.safetensors",
    "file=folder.safetensors",
]
STEPS = ("-1", "5.0", "%D9%A5", "1e3", "0", "99", "99999999", "5%00")
ODD_BASE64 = "data:image/png;base64,A"


def attacks():
    """What a stranger might send, (method, path, headers, body): none of it may work."""
    found = [("POST", path, given, b"{}") for path in (CANCEL, PANEL) for given in FOREIGN]
    found += [("POST", CANCEL, OWN | more, body) for body, more in BODIES]
    found += [("POST", PANEL, OWN, body) for body in (b"", b"[]", b"[" * 9_000, b" " * 20_000)]
    for query in QUERIES:
        found += [
            ("GET", f"/s4s/{what}?{query}&nfe=5", {}, None) for what in ("table", "thumbnail")
        ]
    found += [("GET", f"/s4s/table?file=demo.safetensors&nfe={n}", {}, None) for n in STEPS]
    found += [(method, CANCEL, OWN, MISSING) for method in ("GET", "PUT", "DELETE", "PATCH")]
    found += [("GET", f"/s4s/{path}", {}, None) for path in ("..", "../etc/passwd", "panel/x")]
    return found + [("GET", "/s4s/thumbnail?file=odd.safetensors", {}, None)]


def state_of(b):
    """What an attack must leave as it is: files, processes, what is running."""
    folders = b.part("s4s_core.app.folders")
    files = {
        str(path): path.read_bytes()
        for home in (folders.data_home(), b.base / "models")
        for path in home.rglob("*")
        if path.is_file()
    }
    threads = Path("/proc").glob("self/task/*/children")
    processes = {pid for path in threads for pid in path.read_text().split()}
    return files, processes, b.part("nodes.panel").PANEL.url(), b.part("nodes.learning").running()


def hostile_folder(b):
    """Put what a stranger may leave among the solver files there; returns the paths."""
    table, home = b.part("s4s_core.table"), b.base / "models" / "s4s_solvers"
    home.mkdir(parents=True, exist_ok=True)
    pack, odd = b.solver(), home / "odd.safetensors"
    pack = table.SolverPack(pack.tables, {"thumbnail": ODD_BASE64})
    b.part("s4s_core").save_solver(odd, pack)
    secret, link, loop = b.base / "secret", home / "link.safetensors", home / "loop.safetensors"
    secret.write_text("root:secret")
    link.symlink_to(secret)
    loop.symlink_to(loop)
    (home / "folder.safetensors").mkdir()
    return [odd, link, loop, home / "folder.safetensors"]


def check_the_routes_under_attack(b):
    """Whatever a stranger sends is answered with 4xx and a sentence, and changes nothing."""
    if importlib.util.find_spec("aiohttp") is None:
        raise Skipped("aiohttp is not installed")
    import asyncio

    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    routes = b.part("nodes.routes")
    application = web.Application()
    for (method, path), handler in routes.ROUTES.items():
        application.router.add_route(method, path, routes.answering(handler))

    async def visit():
        async with TestClient(TestServer(application)) as client:
            for method, path, headers, body in attacks():
                one = (method, path[:80], headers, (body or b"")[:40])
                async with client.request(method, path, headers=headers, data=body) as answer:
                    text = await answer.text()
                assert 400 <= answer.status < 500, (one, answer.status, text)
                assert "root:" not in text and "Traceback" not in text, (one, text)
                if answer.content_type == "application/json":
                    assert json.loads(text)["error"].endswith("."), one
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
            async with client.get("/s4s/solvers") as answer:
                text = await answer.text()
                assert answer.status == 200 and "root:" not in text

    made = hostile_folder(b)
    try:
        before = state_of(b)
        asyncio.run(visit())
        assert state_of(b) == before
    finally:
        for path in made:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def check_whose_page_a_request_is_from(b):
    """By default only this machine's names are ComfyUI's; told to listen elsewhere, those too."""
    guard = b.part("nodes.guard")

    def own(host, listen):
        guard.args.listen = listen
        return guard.is_own({"X-S4S": "1", "Host": host, "Origin": f"http://{host}".lower()})

    before = guard.args.listen
    try:
        for host in ("localhost:8188", "127.0.0.1", "127.0.0.1:80", "[::1]:8188", "LOCALHOST"):
            assert own(host, "127.0.0.1"), host
        for host in ("evil.example", "localhost.evil.example", "192.168.0.9:8188", "", "["):
            assert not own(host, "127.0.0.1"), host
        assert own("192.168.0.9:8188", "127.0.0.1,192.168.0.9")
        assert not own("mine.example", "127.0.0.1,192.168.0.9")
        assert own("mine.example", "0.0.0.0,::") and not own("", "0.0.0.0,::")
    finally:
        guard.args.listen = before


def check_where_the_panel_finds_comfyui(b):
    """On this machine, without TLS; elsewhere it is not asked for anything."""
    panel = b.part("nodes.panel")
    before = vars(panel.args).copy()
    try:
        for listen, key, found in (
            ("127.0.0.1", None, "http://127.0.0.1:9"),
            ("0.0.0.0,::", None, "http://127.0.0.1:9"),
            ("192.168.0.9", None, None),
            ("127.0.0.1", "key.pem", None),
        ):
            vars(panel.args).update(listen=listen, tls_keyfile=key, port=9)
            assert panel.own_address() == found
    finally:
        vars(panel.args).update(before)


def check_the_panel_process(b):
    panel = b.part("nodes.panel")
    line = "print('noise'); print('S4S panel: http://127.0.0.1:9/', flush=True); "
    line += "import os, time; print(os.environ['S4S_SOLVERS'], flush=True); time.sleep(600)"
    one = panel.Panel([sys.executable, "-c", line])
    assert one.url() is None
    try:
        assert one.start() == one.start() == one.url() == "http://127.0.0.1:9/"
    finally:
        one.stop()
    assert one.url() is None
    address = "import os, sys; sys.exit('At ' + os.environ['S4S_COMFYUI'] + '.')"
    refusal(panel.Panel([sys.executable, "-c", address]).start, f"At {panel.own_address()}.")
    words = "import sys; sys.exit('Install gradio to use the panel.')"
    refusal(panel.Panel([sys.executable, "-c", words]).start, "Install gradio")
    words = "import sys; sys.exit(f'Given {sys.argv[1:]}.')"
    refusal(panel.Panel([sys.executable, "-c", words]).start, "Given [].")
    refusal(lambda: panel.Panel([sys.executable, "-c", words]).start(True), "['--install']")
    usual = panel.Panel()._argv
    assert usual[-4:] == ["panel", "--no-browser", "--follow", str(os.getpid())]


def main(host, pack, base):
    import torch

    bench = Bench(start(host, pack, base), base)
    wanted = os.environ.get("ONLY")
    for name, check in list(globals().items()):
        if name.startswith("check_") and (not wanted or wanted in name):
            try:
                with torch.inference_mode():
                    check(bench)
                fault = None
            except Skipped as reason:
                print("RESULT " + json.dumps({"name": name, "skip": str(reason)}), flush=True)
                continue
            except Exception:
                fault = traceback.format_exc()
            print("RESULT " + json.dumps({"name": name, "fault": fault}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
