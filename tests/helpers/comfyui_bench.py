"""The loaded pack in ComfyUI or its double, and shorthands for the checks of `comfyui_checks`."""

import importlib
import importlib.util
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


class Skipped(Exception):
    """Raised by a check that cannot run here, with the reason."""


def start(host, pack, base):
    """Put a host on sys.path as its main.py would, and load the pack."""
    sys.path[:0] = [host]
    sys.argv = ["main.py", "--cpu", "--base-directory", base]
    if (Path(host) / "main.py").is_file():
        options = importlib.import_module("comfy.options")
        options.enable_args_parsing()
        importlib.import_module("utils.install_util")  # before comfy/ is on the path
        importlib.import_module("nodes")
    return load(pack)


def load(pack):
    """Load a pack as ComfyUI's nodes.load_custom_node does."""
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

    def applied(self, kind="EDM", pack=None, **more):
        """MODEL with a solver applied, both CONDITIONINGs and LATENT of the demo."""
        model, *rest = self.demo(kind, **more)[:4]
        return *self.node["S4SApplySolver"].apply(model, pack or self.solver(kind)), *rest

    def classical(self, model, nfes, name="dpmpp", order=2):
        core, table = self.part("s4s_core"), self.part("s4s_core.table")
        nodes = [core.schedule("logsnr", n, model) for n in nfes]
        tables = [core.classical_table(name, s, order, model.space) for s in nodes]
        return table.SolverPack.of(*tables, metadata={"name": "classical"})

    def core_model(self, kind, cfg=2.0):
        space = {"EDM": "ve", "EPS": "vp", "flow": "flow"}[kind]
        return self.part("s4s_core.demo").load_demo(space, cfg)

    def ksample(
        self, model, positive, negative, latent, seed=7, steps=5, cfg=2.0, add_noise=True, **more
    ):
        """What the stock KSampler does, and KSampler (Advanced) with its start and end steps."""
        import comfy.sample

        samples = comfy.sample.fix_empty_latent_channels(model, latent["samples"])
        noise = comfy.sample.prepare_noise(samples, seed) * add_noise
        named = {"sampler_name": "s4s", "scheduler": "s4s", "latent_image": samples} | more
        named |= {"positive": positive, "negative": negative, "seed": seed, "disable_pbar": True}
        named["noise_mask"] = latent.get("noise_mask")
        return comfy.sample.sample(model, noise, steps, cfg, **named)

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
        """A CONDITIONING for models that ignore it."""
        import torch

        return [[torch.zeros(1, 1, 4), {}]]


@contextmanager
def listings(bench):
    """The threads that list the solver files while this context is active."""
    folders, threads = bench.part("s4s_core.app.folders"), []
    listed = folders.list_solvers

    def noted():
        threads.append(threading.current_thread())
        return listed()

    with patch.object(folders, "list_solvers", noted):
        yield threads


def refusal(action, *words):
    """Return the message an action is refused with: one line that contains the words."""
    try:
        action()
    except Exception as error:
        text, known = str(error), "HostError ModelError SolverFileError TableError TrainingError"
        assert type(error).__name__ in known.split()
        assert text.endswith((".", "?")) and "\n" not in text, text
        assert all(word in text for word in words), text
        return text
    raise AssertionError("nothing was refused")
