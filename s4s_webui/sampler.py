"""The sampler and the schedule type "S4S": the host's k-diffusion sampler around the core's loop.

The sampler always runs on the nodes of the chosen file, whatever schedule type is set, so no
setting can be wrong. Noise, conditions, masks, refiner, previews and interrupts stay the host's.

A table's noise levels were learned with exact times. Forge and its relatives round a level to the
nearest of the model's 1000 steps, and A1111 casts the time to float16 (half a step above 512). So
while the network is called, a hook puts the exact time in place of the rounded one.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from modules import sd_samplers, sd_samplers_common, sd_samplers_kdiffusion

from s4s_core.hosting import host_sigmas, mismatches, require_space, run_in_host
from s4s_core.model import guided_scale
from s4s_core.sampling import ModelCall
from s4s_core.spaces import DiscreteTimes, as_float64

from .checkpoint import checkpoint
from .solver_choice import Processing, chosen_solver, write_infotext

NAME = "S4S"
ROUNDING = 0.75
"""A time closer than this to the exact one is that time, rounded; others mean something else."""

SCALE = "cond_scale"
"""The argument of a model call that holds the guidance scale."""

HIRES_SCALE = "hr_cfg"
"""The job's scale for the second pass: Forge and its relatives put it in place of the argument."""

NOT_GUIDED = (
    "This solver sets the guidance of each call, but this WebUI cannot be told: it ran at one CFG."
)

Wrapper = Any
"""A host's k-diffusion wrapper of the model, with its `sigmas`."""

_times: WeakKeyDictionary[Wrapper, DiscreteTimes] = WeakKeyDictionary()


class Sampler(sd_samplers_kdiffusion.KDiffusionSampler):
    """The sampler that the host makes for each job."""

    def __init__(self, sd_model: Any) -> None:
        super().__init__(self.run, sd_model)

    def get_sigmas(self, p: Processing, steps: int) -> torch.Tensor:
        """Return the chosen solver's nodes; below full strength the host runs the last ones."""
        return host_sigmas(chosen_solver(), steps).to(torch.float32)

    def run(
        self,
        model: Any,
        x: torch.Tensor,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any] | None = None,
        callback: Callable[[dict[str, Any]], None] | None = None,
        disable: bool | None = None,
    ) -> torch.Tensor:
        """A k-diffusion sampler: model(x, sigma, **extra_args) is x0, with guidance and masks."""
        pack, calls = chosen_solver(), 0
        given = {} if extra_args is None else extra_args  # the refiner changes it during the run
        require_space(pack, space_of(model.inner_model))

        def denoise(
            point: torch.Tensor,
            sigma: torch.Tensor,
            _cond: None = None,
            guidance: torch.Tensor | None = None,
        ) -> torch.Tensor:
            with exact_times(model.inner_model, sigma), _hires_guided(self.p, guidance):
                result: torch.Tensor = model(point, sigma, **_guided(given, guidance))
                return result

        def report(done: ModelCall) -> None:
            nonlocal calls
            calls = model.total_steps = done.nfe  # tells the host when to switch to the refiner
            if callback is not None:
                level = {"sigma": done.sigma[0], "sigma_hat": done.sigma[0]}
                callback({"x": done.x, "i": done.call, "denoised": done.denoised, **level})

        result = run_in_host(denoise, x, pack, sigmas, callback=report, guided=SCALE in given)
        write_infotext(self.p, pack, calls)
        if pack.sets_guidance and SCALE not in given:
            self.p.comment(f"S4S: {NOT_GUIDED}")
        highest = float(model.inner_model.sigmas[-1])
        for warning in mismatches(pack, **self._facts(), sigma_max=highest):
            self.p.comment(f"S4S: {warning}")
        return result

    def _facts(self) -> dict[str, Any]:
        """Return what is known about this run, to compare with the solver's training."""
        if self.p.is_hr_pass:
            return checkpoint() | {"cfg": getattr(self.p, HIRES_SCALE, self.p.cfg_scale)}
        size = {"width": self.p.width, "height": self.p.height}
        return checkpoint() | size | {"cfg": self.p.cfg_scale}


def schedule(n: int, sigma_min: float, sigma_max: float, device: torch.device) -> torch.Tensor:
    """Return the chosen solver's nodes for n steps; lengths it lacks are interpolated."""
    return host_sigmas(chosen_solver(), n).to(device, torch.float32)


def space_of(wrapper: Wrapper) -> str:
    """Return the space of a host's model: only flow models have no level above 1."""
    return "flow" if float(wrapper.sigmas[-1]) <= 1 else "ve"


def _guided(given: dict[str, Any], guidance: torch.Tensor | None) -> dict[str, Any]:
    """Return the arguments of a model call at its own guidance scale, the same for all rows."""
    if guidance is None:
        return given
    return given | {SCALE: guided_scale(given[SCALE], float(guidance[0]))}


@contextmanager
def _hires_guided(p: Processing, guidance: torch.Tensor | None) -> Iterator[None]:
    """Do the same for the job's own scale of the second pass, where the host has one."""
    scale = getattr(p, HIRES_SCALE, None)
    if guidance is None or scale is None:
        yield
        return
    setattr(p, HIRES_SCALE, guided_scale(scale, float(guidance[0])))
    try:
        yield
    finally:
        setattr(p, HIRES_SCALE, scale)


@contextmanager
def exact_times(wrapper: Wrapper, sigma: torch.Tensor) -> Iterator[None]:
    """Give the network the exact time of sigma, which must be the same for all rows."""
    if space_of(wrapper) == "flow":  # its time is the level itself
        yield
        return
    exact = _times_of(wrapper).time(sigma[:1]).float().to(sigma.device)

    def replace(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "timesteps" in kwargs:
            return args, kwargs | {"timesteps": _unrounded(kwargs["timesteps"], exact)}
        x, time, *rest = args
        return (x, _unrounded(time, exact), *rest), kwargs

    hook = _network_of(wrapper).register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _unrounded(time: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    time = time.float()
    return torch.where((time - exact).abs() < ROUNDING, exact, time)


def _times_of(wrapper: Wrapper) -> DiscreteTimes:
    """Return the times of a host's model, computed once."""
    if wrapper not in _times:
        _times[wrapper] = DiscreteTimes(1 / (1 + as_float64(wrapper.sigmas) ** 2))
    return _times[wrapper]


def _network_of(wrapper: Wrapper) -> torch.nn.Module:
    model = wrapper.inner_model
    patched = getattr(model, "forge_objects", None)
    network: torch.nn.Module = (
        patched.unet.model if patched is not None else model.model
    ).diffusion_model
    return network


def register() -> None:
    """Add the sampler and the schedule to the host's lists, replacing those of an earlier load."""
    sampler = sd_samplers_common.SamplerData(NAME, Sampler, ["s4s"], {"scheduler": "s4s"})
    listed = sd_samplers.all_samplers
    listed[:] = [each for each in listed if each.name != NAME] + [sampler]
    sd_samplers.all_samplers_map[NAME] = sampler
    sd_samplers.set_samplers()
    if importlib.util.find_spec("modules.sd_schedulers") is not None:  # A1111 1.9 and later
        _register_schedule()


def _register_schedule() -> None:
    from modules import sd_schedulers

    made = sd_schedulers.Scheduler(NAME.lower(), NAME, schedule)
    listed = sd_schedulers.schedulers
    listed[:] = [each for each in listed if each.name != made.name] + [made]
    sd_schedulers.schedulers_map.update({made.name: made, made.label: made})
    sd_samplers.get_sampler_and_scheduler.cache_clear()
