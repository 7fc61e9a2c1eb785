"""Facts about the host's models: which one it is, how its latents relate to pixels."""

import hashlib
from weakref import WeakKeyDictionary

import torch

_known = WeakKeyDictionary()
_SAMPLED, _VALUES = 24, 64


def model_name(base):
    """The family of a host's model, such as SD15 or Flux."""
    return type(base.model_config).__name__


def identity(base):
    """A name for the weights of a host's model, the same in every session and precision.

    Some vectors (norms and biases, which LoRAs leave alone) are read in bfloat16; reading all
    weights would take as long as loading them.
    """
    if base not in _known:
        vectors = [(n, p) for n, p in base.named_parameters() if p.ndim == 1 and p.numel() > 1]
        stride = max(1, len(vectors) // _SAMPLED)
        digest = hashlib.sha256(model_name(base).encode())
        for name, vector in vectors[::stride]:
            digest.update(f"{name} {vector.numel()} ".encode())
            digest.update(_bits(vector[:_VALUES]))
        _known[base] = f"comfy:{digest.hexdigest()[:16]}"
    return _known[base]


def _bits(values):
    values = values.detach().to("cpu", torch.float32).to(torch.bfloat16)
    return values.view(torch.int16).numpy().tobytes()


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
