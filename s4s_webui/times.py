"""Exact times: a network that was trained on whole steps is told the time between them.

A table holds noise levels that were learned with continuous times. Forge and its kin round a level
to the nearest of the model's 1000 steps, and A1111 casts the time to float16 (half a step above
512). While a call runs, a hook before the network puts the exact time in place of the rounded one.
"""

from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

from s4s_core.spaces import DiscreteTimes, as_float64

ROUNDING = 0.75
"""Times nearer than this to the exact one are that time, rounded; others are of another kind."""

_times = WeakKeyDictionary()


def space_of(wrap):
    """The space of the model inside a host's wrapper: no flow model has a level above 1."""
    return "flow" if float(wrap.sigmas[-1]) <= 1 else "ve"


def times_of(wrap):
    """The times of the model inside a host's wrapper, worked out once."""
    if wrap not in _times:
        _times[wrap] = DiscreteTimes(1 / (1 + as_float64(wrap.sigmas) ** 2))
    return _times[wrap]


def network_of(wrap):
    """The network inside a host's wrapper of the model."""
    model = wrap.inner_model
    patched = getattr(model, "forge_objects", None)
    return (patched.unet.model if patched is not None else model.model).diffusion_model


def _exact(told, exact):
    told = told.float()
    return torch.where((told - exact).abs() < ROUNDING, exact, told)


@contextmanager
def exact_times(wrap, sigma):
    """Within this, the network of `wrap` sees the exact time of sigma (one level for all rows)."""
    if space_of(wrap) == "flow":  # its time is the level itself
        yield
        return
    exact = times_of(wrap).time(sigma[:1]).float().to(sigma.device)

    def replace(_module, args, kwargs):
        if "timesteps" in kwargs:
            return args, kwargs | {"timesteps": _exact(kwargs["timesteps"], exact)}
        x, told, *rest = args
        return (x, _exact(told, exact), *rest), kwargs

    hook = network_of(wrap).register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
