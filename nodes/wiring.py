"""Facts about the host's models: of which family, how its latents relate to pixels."""

import hashlib

import torch

_EIGHTHS = ("SD15", "SDXL", "SDXL_Playground_2_5", "SD3", "Flux")
FACTORS = {"ChromaRadiance": 1} | dict.fromkeys(_EIGHTHS, 8)
"""Pixels to one of a latent, by the name of the latent format; older hosts do not say."""


def model_name(base):
    """The family of a host's model, such as SD15 or Flux."""
    return type(base.model_config).__name__


def pixels(base, shape, vae=None):
    """(width, height) in pixels of a latent of that shape; None where nothing tells it."""
    form = base.latent_format
    factor = getattr(form, "spacial_downscale_ratio", FACTORS.get(type(form).__name__))
    if vae is not None:
        factor = vae.spacial_compression_decode()
    return None if factor is None else (shape[-1] * factor, shape[-2] * factor)


def digest_of(*things):
    """A hash of nested lists, dicts, tensors, numbers and texts; other objects by their type."""
    digest = hashlib.sha256()
    for thing in things:
        _feed(digest, thing)
    return digest.hexdigest()


def _feed(digest, thing):
    if isinstance(thing, torch.Tensor):
        digest.update(f"tensor {tuple(thing.shape)} ".encode())
        digest.update(thing.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    elif isinstance(thing, dict):
        for key in sorted(thing, key=str):
            digest.update(f"key {key} ".encode())
            _feed(digest, thing[key])
    elif isinstance(thing, list | tuple):
        digest.update(f"list {len(thing)} ".encode())
        for item in thing:
            _feed(digest, item)
    elif thing is None or isinstance(thing, str | int | float | bool):
        digest.update(f"{type(thing).__name__} {thing!r} ".encode())
    else:
        digest.update(f"object {type(thing).__qualname__} ".encode())
