"""The sampler and the schedule type "S4S": the host's k-diffusion sampler around the core's loop.

The host's levels say where a run begins and how many calls it makes, as with every sampler; the
core puts the solver's own levels in between. Levels of a schedule type that the user chose run as
given. Noise, conditions, masks, refiner, previews and interrupts stay the host's.

A table's noise levels were learned with exact times. Forge and its relatives round a level to the
nearest of the model's 1000 steps, and A1111 casts the time to float16 (half a step above 512). So
while the network is called, a hook puts the exact time in place of the rounded one.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from modules import sd_samplers, sd_samplers_common, sd_samplers_kdiffusion, shared

from s4s_core.hosting import FAR, host_sigmas, mismatches, require_space, run_in_host
from s4s_core.model import guided_scale
from s4s_core.sampling import ModelCall
from s4s_core.spaces import DiscreteTimes, as_float64
from s4s_core.table import SolverPack

from .checkpoint import checkpoint
from .solver_choice import Processing, chosen_solver, write_infotext

NAME = "S4S"
AUTOMATIC, SIMPLE = "Automatic", "Simple"

PLAIN = (AUTOMATIC, "Uniform", SIMPLE, NAME)
"""Schedule types without levels of their own: times at equal distances, and ours."""

AS_GIVEN = (
    "The noise levels are those of the schedule type {}, so the solver's own were not used. To use "
    "them, set the schedule type to Automatic."
)
"""The core's notice of the same name, in the words of a WebUI."""

HAS_SCHEDULE_TYPES = importlib.util.find_spec("modules.sd_schedulers") is not None
"""Does each job have a schedule type? Before A1111 1.9, and in Classic, it is a setting."""

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
        """Return the levels that any sampler gets: for the schedule type S4S, those of Automatic.

        For Flux, Forge's Automatic gives times up to 9999. Its preset for Flux sets Simple.
        """
        if schedule_type(p) not in (AUTOMATIC, NAME):
            return super().get_sigmas(p, steps)
        job = copy(p)  # the host reads the type there, and writes texts into what both share
        highest = float(self.model_wrap.sigmas[-1])
        job.scheduler = job.hr_scheduler = AUTOMATIC
        levels: torch.Tensor = super().get_sigmas(job, steps)
        if levels[0] <= (1 + FAR) * highest:
            return levels
        job.scheduler = job.hr_scheduler = SIMPLE
        return super().get_sigmas(job, steps)

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
        pack, calls, kind = chosen_solver(), 0, schedule_type(self.p)
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
            calls = done.nfe
            if callback is not None:
                level = {"sigma": done.sigma[0], "sigma_hat": done.sigma[0]}
                callback({"x": done.x, "i": done.call, "denoised": done.denoised, **level})

        levels = model.inner_model.sigmas
        result = run_in_host(
            denoise,
            x,
            pack,
            sigmas,
            lowest=float(levels[0]),
            callback=report,
            guided=SCALE in given,
            plain=kind in PLAIN,
            tell=lambda _: self._comment(AS_GIVEN.format(kind)),
        )
        write_infotext(self.p, pack, calls)
        self._warn(pack, float(levels[-1]), SCALE in given)
        return result

    def _warn(self, pack: SolverPack, highest: float, guided: bool) -> None:
        """Show what differs from the solver's training."""
        if pack.sets_guidance and not guided:
            self._comment(NOT_GUIDED)
        for warning in mismatches(pack, **self._facts(), sigma_max=highest):
            self._comment(warning)

    def _comment(self, text: str) -> None:
        """Show a text below the picture."""
        self.p.comment(f"{NAME}: {text}")

    def _facts(self) -> dict[str, Any]:
        """Return what is known about this run, to compare with the solver's training."""
        if self.p.is_hr_pass:
            return checkpoint() | {"cfg": getattr(self.p, HIRES_SCALE, self.p.cfg_scale)}
        size = {"width": self.p.width, "height": self.p.height}
        return checkpoint() | size | {"cfg": self.p.cfg_scale}


def schedule_type(p: Processing) -> str:
    """Return the schedule type that the user chose for this pass."""
    if not HAS_SCHEDULE_TYPES:
        return str(shared.opts.k_sched_type)
    return (p.hr_scheduler if p.is_hr_pass else p.scheduler) or AUTOMATIC


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
    sampler = sd_samplers_common.SamplerData(NAME, Sampler, ["s4s"], {})
    listed = sd_samplers.all_samplers
    listed[:] = [each for each in listed if each.name != NAME] + [sampler]
    sd_samplers.all_samplers_map[NAME] = sampler
    sd_samplers.set_samplers()
    if HAS_SCHEDULE_TYPES:
        _register_schedule()


def _register_schedule() -> None:
    from modules import sd_schedulers

    made = sd_schedulers.Scheduler(NAME.lower(), NAME, schedule)
    listed = sd_schedulers.schedulers
    listed[:] = [each for each in listed if each.name != made.name] + [made]
    sd_schedulers.schedulers_map.update({made.name: made, made.label: made})
    sd_samplers.get_sampler_and_scheduler.cache_clear()
