"""Checkpoints through a ComfyUI install's own loaders, in the process of the job.

Whatever ComfyUI can load and sample, quantised or offloaded, can be trained for, and sees exactly
the numbers that it will see there. ComfyUI's modules are imported from its folder, by the Python
that runs this: its own, or one with its requirements.
"""

import importlib
import os
import sys
from copy import copy
from functools import partial
from pathlib import Path

import torch

from s4s_core.app.comfyui import identity
from s4s_core.app.folders import CHECKOUT
from s4s_core.errors import ModelError
from s4s_core.spaces import listed_times

from .contract import about, file_digest, fingerprint, no_pictures
from .prediction import network_time
from .prompts import PROMPTS

ENDINGS = (".safetensors", ".sft")
GUIDANCE = 3.5
SIZES = {"SD15": 512, "SD20": 768}
"""Sides, in pixels, of pictures that a kind of model was made for; 1024 where not listed."""


def open_checkpoint(choice):
    """The model of a checkpoint that the user's ComfyUI knows by name, or of a path."""
    comfy = Host(choice)
    path = comfy.checkpoint(choice.path)
    try:
        model, clip, vae = comfy.load(path, choice.dtype)
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"ComfyUI cannot load {path}: {reason}") from error
    if model is None or clip is None:
        raise ModelError(f"{path} is no whole checkpoint: it needs a model and its text encoders.")
    return ComfyModel(comfy, model, clip, vae, choice, file_digest(path))


class Host:
    """ComfyUI's modules, imported from its folder with its own defaults as arguments."""

    def __init__(self, choice):
        folder = Path(choice.host or os.environ.get("COMFYUI_PATH") or _around()).expanduser()
        if not (folder / "comfy" / "sd.py").is_file():
            raise ModelError(
                f"There is no ComfyUI in '{folder}': name its folder, the one with main.py."
            )
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        try:
            self._set_arguments(choice)
            self.paths, self.sd, self.samplers, self.memory = map(
                importlib.import_module,
                ("folder_paths", "comfy.sd", "comfy.samplers", "comfy.model_management"),
            )
            self._read_extra_paths(folder / "extra_model_paths.yaml")
        except ImportError as error:
            raise ModelError(
                f"ComfyUI in {folder} cannot be imported ({error}): start this with its own Python."
            ) from error

    def _set_arguments(self, choice):
        """ComfyUI's command line as data; it is read when its other modules are imported."""
        arguments = importlib.import_module("comfy.cli_args").args
        arguments.cpu = choice.device == "cpu"
        arguments.lowvram = choice.offload
        if choice.device == "auto":
            arguments.cpu = not (torch.cuda.is_available() or torch.backends.mps.is_available())
        elif choice.device.startswith("cuda:"):
            torch.cuda.set_device(choice.device)

    def _read_extra_paths(self, file):
        if file.is_file():
            importlib.import_module("utils.extra_config").load_extra_path_config(str(file))

    def checkpoint(self, name):
        """The file of a checkpoint, by path or by its name in ComfyUI."""
        path = Path(name).expanduser()
        found = str(path) if path.is_file() else self.paths.get_full_path("checkpoints", name)
        if found is None:
            raise ModelError(f"ComfyUI has no checkpoint '{name}', and there is no such file.")
        if not found.lower().endswith(ENDINGS):
            raise ModelError(f"{found} is no .safetensors file: others can run foreign code.")
        return found

    def load(self, path, dtype):
        """(MODEL, CLIP, VAE) of a checkpoint, as the stock loader gives them."""
        options = {} if dtype == "auto" else {"dtype": getattr(torch, dtype)}
        embeddings = self.paths.get_folder_paths("embeddings")
        loaded = self.sd.load_checkpoint_guess_config(
            path, embedding_directory=embeddings, model_options=options
        )
        return loaded[:3]


def _around():
    """The ComfyUI that this checkout is installed in, or nothing."""
    return CHECKOUT.parents[1] if CHECKOUT.parent.name == "custom_nodes" else ""


class ComfyModel:
    """A checkpoint behind the contract of `trainer.models`; conditions are prompt numbers."""

    def __init__(self, comfy, model, clip, vae, choice, digest):
        base, self.vae = model.model, vae
        self.comfy, self.device = comfy, model.load_device
        guided = bool(base.model_config.unet_config.get("guidance_embed"))
        self.cfg = 1.0 if guided else choice.cfg or (4.5 if _is_flow(base) else 7.0)
        guidance = (choice.cfg or GUIDANCE) if guided else None
        kind = type(base.model_config).__name__
        width, height = (side or SIZES.get(kind, 1024) for side in (choice.width, choice.height))
        unit = 8 if vae is None else vae.spacial_compression_decode()
        self.shape = self._latent_shape(base.latent_format, unit, width, height)
        self.model = _continuous(model)
        sampling = self.model.get_model_object("model_sampling")
        self.space = "flow" if _is_flow(base) else "ve"
        self.sigma_min, self.sigma_max = float(sampling.sigma_min), float(sampling.sigma_max)
        self.times = listed_times(self.space, sampling.sigmas) if _has_times(sampling) else None
        prompts = choice.prompts or PROMPTS
        with torch.no_grad():
            encoded = [_encoded(clip, text, guidance) for text in (choice.negative, *prompts)]
            self.negative, *positives = self._prepared(encoded)
        self.texts = Texts(positives)
        self.name = choice.label
        facts = {"architecture": kind, "comfy": identity(base)}
        facts |= {"guidance": guidance} if guidance else {}
        self.about = about(self.name, digest, self.cfg, width, height, **facts)
        dtype = str(base.get_dtype())
        rest = [self.cfg, guidance, list(prompts), choice.negative, width, height, dtype]
        self.fingerprint = fingerprint(digest, "comfyui", *rest)
        if vae is None or vae.first_stage_model is None:
            self.decode = no_pictures

    @staticmethod
    def _latent_shape(form, unit, width, height):
        """The shape of latents of pictures, with `unit` pixels to a side of a latent's."""
        if form.latent_dimensions != 2:
            raise ModelError("Models of video or sound cannot be trained for.")
        if width % unit or height % unit:
            raise ModelError(f"{width}x{height}: this model's sides are multiples of {unit}.")
        return form.latent_channels, height // unit, width // unit

    def _prepared(self, encoded):
        """Conditions as the network takes them: what a guider makes of them before it samples."""
        helpers = importlib.import_module("comfy.sampler_helpers")
        names = ["negative", *(f"positive {n}" for n in range(1, len(encoded)))]
        conds = {name: helpers.convert_cond(c) for name, c in zip(names, encoded, strict=True)}
        noise = torch.zeros(1, *self.shape, device=self.device)
        base = self._ready(1)
        conds = self.comfy.samplers.process_conds(base, noise, conds, self.device, noise, seed=0)
        return list(conds.values())

    def _ready(self, count):
        """The network, in memory for so many latents: other work may have pushed it out."""
        memory = self.model.memory_required([2 * count, *self.shape])
        self.comfy.memory.load_models_gpu([self.model], memory_required=memory)
        self.model.pre_run()
        return self.model.model

    def conditions(self, batch, generator):
        """Prompt numbers drawn evenly, int64 [batch]."""
        return torch.randint(
            len(self.texts), (batch,), generator=generator, device=generator.device
        )

    def denoise(self, x, sigma, cond=None):
        """x0 of latents x at noise level sigma [batch]; without a condition, of the negative."""
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x)).float()
        if cond is None:
            return self._guided(x, sigma, self.negative, 1.0).to(x.dtype)
        out = torch.empty_like(x)
        for rows, positive in self.texts.batches(torch.as_tensor(cond).expand(len(x))):
            rows = rows.to(x.device)
            out[rows] = self._guided(x[rows], sigma[rows], positive, self.cfg).to(x.dtype)
        return out

    def _guided(self, x, sigma, positive, cfg):
        base, options = self._ready(len(x)), self.model.model_options
        return self.comfy.samplers.sampling_function(
            base, x.float(), sigma, self.negative, positive, cfg, model_options=options
        )

    def decode(self, x):
        """Pictures [batch, 3, h, w] in [0, 1] of latents."""
        latents = self.model.model.process_latent_out(x.float())
        return self.vae.decode(latents).movedim(-1, 1)[:, :3].float().clamp(0, 1)


class Texts:
    """Prepared prompts, so that rows of a batch with prompts of one shape share a call."""

    def __init__(self, conds):
        self.groups, self.places = [], []
        shapes = {}
        for (entry,) in conds:
            parts = entry["model_conds"]
            shape = tuple((name, _shape(part.cond)) for name, part in sorted(parts.items()))
            number = shapes.setdefault(shape, len(shapes))
            if number == len(self.groups):
                self.groups.append([])
            self.places.append((number, len(self.groups[number])))
            self.groups[number].append(entry)

    def __len__(self):
        return len(self.places)

    def batches(self, cond):
        """(row numbers, condition of these rows) for the prompt numbers of a batch."""
        places = [self.places[number] for number in cond.tolist()]
        for number, group in enumerate(self.groups):
            rows = [row for row, place in enumerate(places) if place[0] == number]
            if rows:
                entries = [group[places[row][1]] for row in rows]
                yield torch.tensor(rows), [_stacked(entries)]


def _shape(value):
    """What must agree for two parts of a condition to share a call."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else repr(value)


def _stacked(entries):
    """One entry whose tensors have a row for each of the entries."""
    first, parts = entries[0], {}
    for name, part in first["model_conds"].items():
        parts[name] = part
        if isinstance(part.cond, torch.Tensor):
            rows = [entry["model_conds"][name].cond for entry in entries]
            parts[name] = type(part)(torch.cat(rows))
    return first | {"model_conds": parts}


def _encoded(clip, text, guidance):
    """A CONDITIONING of a text, with the guidance scale that some networks are told."""
    encoded = clip.encode_from_tokens_scheduled(clip.tokenize(text))
    told = {} if guidance is None else {"guidance": guidance}
    return [[tensor, values | told] for tensor, values in encoded]


def _is_flow(base):
    sampling = importlib.import_module("comfy.model_sampling")
    return isinstance(base.model_sampling, sampling.CONST)


def _has_times(sampling):
    """Does a model count time, or is it told the noise level itself (EDM)?"""
    kinds = importlib.import_module("comfy.model_sampling")
    return isinstance(sampling, kinds.CONST | kinds.ModelSamplingDiscrete)


def _continuous(model):
    """A clone of a MODEL that is told times between the whole ones, which ComfyUI rounds to."""
    discrete = importlib.import_module("comfy.model_sampling").ModelSamplingDiscrete
    sampling, model = model.get_model_object("model_sampling"), model.clone()
    if type(sampling).timestep is discrete.timestep:
        times = listed_times("ve", sampling.sigmas)
        exact = copy(sampling)
        exact.timestep = partial(network_time, times)
        model.add_object_patch("model_sampling", exact)
    return model
