"""Facts about the host's models: of which family, how its latents relate to pixels."""

import hashlib

import torch


def model_name(base):
    """The family of a host's model, such as SD15 or Flux."""
    return type(base.model_config).__name__


def pixels(base, shape):
    """(width, height) in pixels of a latent of that shape."""
    form = base.latent_format
    factor = getattr(form, "spacial_downscale_ratio", 1 if form.latent_channels == 3 else 8)
    return shape[-1] * factor, shape[-2] * factor


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
