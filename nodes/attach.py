"""A solver on a MODEL, and what the stock scheduler and sampler find there.

Both see `model_sampling`, and the scheduler sees nothing else: the pack hangs on a copy of it,
which is patched onto a clone of the MODEL.
"""

import torch
from comfy.model_sampling import CONST, ModelSamplingDiscrete

from ..s4s_core.errors import HostError
from ..s4s_core.hosting import host_sigmas, require_space

KEY = "s4s_solver"
NO_SOLVER = (
    "There is no solver on this model: connect Apply Solver (S4S) between the model and the "
    "sampler, behind every node that changes the model's sampling."
)
NOT_CONNECTED = "There is no solver here: connect Load Solver (S4S) or Train Solver (S4S)."


class ContinuousTimes:
    """Times of a discrete model without rounding: log sigma is linear between whole times.

    The host rounds to the nearest whole time, 812.4 to 812; learned times are meant as they are.
    """

    def timestep(self, sigma):
        logs = self.log_sigmas
        log = sigma.to(logs.device, torch.float32).log()
        high = torch.searchsorted(logs, log.contiguous()).clamp(1, len(logs) - 1)
        low = logs[high - 1]
        time = high - 1 + (log - low) / (logs[high] - low)
        return time.clamp(0, len(logs) - 1).view(sigma.shape).to(sigma.device)


def space_of(sampling):
    """The core's space of a model_sampling."""
    return "flow" if isinstance(sampling, CONST) else "ve"


def has_times(sampling):
    """Does a model count time, or is it told the noise level itself (EDM)?"""
    return isinstance(sampling, CONST | ModelSamplingDiscrete)


def is_rounding(sampling):
    """Does this model_sampling round its times?"""
    return getattr(type(sampling), "timestep", None) is ModelSamplingDiscrete.timestep


def continuous(sampling, **attributes):
    """A copy of a model_sampling whose times are not rounded, with further attributes.

    Tensors are shared with the original, which stays as it is.
    """
    kind = type(sampling)
    if is_rounding(sampling):
        kind = type(f"Continuous{kind.__name__}", (ContinuousTimes, kind), {})
    copy = kind.__new__(kind)
    copy.__dict__.update(sampling.__dict__)
    copy.__dict__["_buffers"] = dict(sampling._buffers)
    for name, value in attributes.items():
        object.__setattr__(copy, name, value)
    return copy


def check_solver(pack, sampling):
    """HostError, in a sentence, unless `pack` is a solver for this kind of model."""
    if pack is None:
        raise HostError(NOT_CONNECTED)
    require_space(pack, space_of(sampling))


def attached(model, pack):
    """A clone of a MODEL with a solver on it."""
    sampling = model.get_model_object("model_sampling")
    check_solver(pack, sampling)
    clone = model.clone()
    clone.add_object_patch("model_sampling", continuous(sampling, **{KEY: pack}))
    return clone


def solver_on(sampling):
    """The solver that hangs on a model_sampling; HostError, in a sentence, if none does."""
    pack = getattr(sampling, KEY, None)
    if pack is None:
        raise HostError(NO_SOLVER)
    return pack


def schedule_of(sampling, steps):
    """What the stock scheduler `s4s` is: the sigmas of the attached solver."""
    return host_sigmas(solver_on(sampling), steps).float()


def scheduler_sigmas(pack, steps, denoise=1.0):
    """Sigmas of a solver as the host's KSampler cuts them for a `denoise` below 1."""
    if pack is None:
        raise HostError(NOT_CONNECTED)
    if denoise <= 0:
        return torch.FloatTensor([])
    total = steps if denoise > 0.9999 else int(steps / denoise)
    return host_sigmas(pack, total).float()[-(steps + 1) :]
