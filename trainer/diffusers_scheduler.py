"""`S4SScheduler`: a learned solver as the scheduler of a diffusers pipeline.

    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver="my.safetensors")
    pipe("a red fox", num_inference_steps=5)

The number of steps picks the table; each step is one model call. The pipeline calls the network, so
each `step` runs one iteration of the core's loop (`evaluate` and `advance`).

Below full strength (image-to-image, inpainting), any number of steps will do: the run begins at the
level where evenly spaced times would, makes the calls that are left of the steps, and takes the
table that `part_table` gives for them.

A solver that sets the guidance of each call needs to know the pipeline:

    with pipe.scheduler.guiding(pipe):
        pipe("a red fox", num_inference_steps=5, guidance_scale=6)
"""

import inspect
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from s4s_core.app.folders import find_solver
from s4s_core.errors import HostError
from s4s_core.hosting import require_space
from s4s_core.model import guided_scale
from s4s_core.parts import part_table
from s4s_core.sampling import Cursor, advance, compiled, evaluate
from s4s_core.slicing import from_node
from s4s_core.solver_file import load_solver, save_solver
from s4s_core.spaces import DiscreteTimes, ShiftedTimes, alpha
from s4s_core.table import SolverTable

from .extras import import_extras
from .models.prediction import (
    check_prediction,
    denoised,
    discrete_times,
    network_input,
)

(diffusers,) = import_extras("diffusers")
utils = diffusers.schedulers.scheduling_utils
SchedulerMixin: Any = diffusers.SchedulerMixin
ConfigMixin: Any = diffusers.ConfigMixin

SAVED_AS = "solver.safetensors"
NOT_GUIDED = (
    "This solver sets the guidance scale of each call. Run the pipeline inside "
    "`with pipe.scheduler.guiding(pipe):`, or every call has the same scale."
)


def evenly_spaced(times: DiscreteTimes | ShiftedTimes, steps: int) -> torch.Tensor:
    """Return the levels (float64) at which steps of equal length in a model's times begin.

    They are those of ComfyUI's scheduler `simple` and of diffusers' spacing "trailing".
    """
    left = 1 - torch.arange(steps, dtype=torch.float64) / steps
    if isinstance(times, ShiftedTimes):
        return times.sigma(left)
    return times.sigma((times.last + 1) * left - 1)


def _reads_its_scale(pipe: Any) -> bool:
    """Does a pipeline look up its guidance scale at each step? Some keep a copy of it."""
    try:
        return "self.guidance_scale *" in inspect.getsource(pipe.__call__)
    except OSError:  # installed without its source
        return True


class _Guide:
    """Sets the guidance scale of a pipeline, where diffusers' own callbacks set it."""

    above_1 = math.nextafter(1.0, 2.0)
    """At exactly 1, pipelines skip the unconditional half, but have prepared prompts for both."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.cfg, self.last = pipe, 1.0, -1.0

    def set(self, multiplier: float) -> None:
        """Multiply the guidance of the next call, unless the pipeline uses none.

        A scale that was not set here is a new one of the pipeline's.
        """
        if not getattr(self.pipe, "do_classifier_free_guidance", False):
            return
        if self.pipe.guidance_scale != self.last:
            self.cfg = self.pipe.guidance_scale
        self.last = max(guided_scale(self.cfg, multiplier), self.above_1)
        self.pipe._guidance_scale = self.last


class S4SScheduler(SchedulerMixin, ConfigMixin):
    """Runs the tables of a solver file in any text-to-image or image-to-image pipeline.

    solver: a path, or the name of a file in the solver folder. The other options are the
    pipeline's configuration: what its network predicts, and at which times. Samples are in the
    core's scaling: x0 + sigma eps, or (1 - sigma) x0 + sigma eps for flow models.
    """

    order = 1
    _compatibles = [
        *(kind.name for kind in utils.KarrasDiffusionSchedulers),
        "FlowMatchEulerDiscreteScheduler",
    ]

    @diffusers.configuration_utils.register_to_config
    def __init__(
        self,
        solver: str = "",
        num_train_timesteps: int = 1000,
        beta_start: float = 0.0001,
        beta_end: float = 0.02,
        beta_schedule: str = "linear",
        trained_betas: list[float] | None = None,
        prediction_type: str = "epsilon",
        rescale_betas_zero_snr: bool = False,
    ) -> None:
        self.pack = load_solver(solver if Path(solver).is_file() else find_solver(solver))
        self.prediction = prediction_type if self.pack.space == "ve" else "flow"
        check_prediction(self.prediction)
        self.times = discrete_times(self.config) if self.pack.space == "ve" else None
        self._guide: _Guide | None = None
        self._warned = False
        self.set_timesteps(self.pack.nfes[-1])

    @contextmanager
    def guiding(self, pipe: Any) -> Iterator[None]:
        """Let the solver set the guidance scale of each call that `pipe` makes inside.

        A pipeline without classifier-free guidance runs as it is.
        """
        if self.pack.sets_guidance and not _reads_its_scale(pipe):
            name = type(pipe).__name__
            self._warn(f"{name} cannot change its guidance scale: every call has the same one.")
        self._guide = _Guide(pipe)
        try:
            yield
        finally:
            self._guide.set(1.0)
            self._guide = None

    def _warn(self, text: str) -> None:
        """Warn once."""
        if not self._warned:
            warnings.warn(text, stacklevel=4)
        self._warned = True

    # What pipelines read

    @property
    def init_noise_sigma(self) -> float:
        """The factor by which pipelines scale unit noise."""
        return float(self.table.sigmas[0])

    @property
    def sigmas(self) -> torch.Tensor:
        """The noise levels of the table's nodes."""
        return torch.tensor(self.table.sigmas, dtype=torch.float32)

    @property
    def step_index(self) -> int | None:
        return self._step_index

    @property
    def begin_index(self) -> int | None:
        return self._begin_index

    def __len__(self) -> int:
        return int(self.config.num_train_timesteps)

    # What pipelines call

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: torch.device | str | None = None,
        sigmas: Any = None,
        mu: float | None = None,
    ) -> None:
        """Choose the table with that many model calls.

        Where the pack has none, only a run below full strength can follow, and `timesteps` are
        evenly spaced until its table is known. Some pipelines pass sigmas and, for flow models, the
        shift `mu`. Only the number of sigmas is used: a table has its own times.
        """
        steps = (num_inference_steps if sigmas is None else len(sigmas)) or 0
        if mu is not None:
            require_space(self.pack, "flow")
        self._table = self.pack.tables.get(steps) if steps > 0 else self.pack[steps]
        times = self.times or self._shifted_times(mu)
        self._levels, self._lowest = evenly_spaced(times, steps), times.sigma_min
        calls = self._levels if self._table is None else torch.tensor(self._table.call_sigmas)
        self.timesteps = self._network_times(calls).to(device)
        self.num_inference_steps = steps
        self._first = 0
        self._step_index: int | None = None
        self._begin_index: int | None = None
        self._cursor: Cursor | None = None
        self._scaled = False
        self._set_guidance()

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Start at a later call. At 0, raise TableError if the pack has no table of all calls."""
        self._begin_index = begin_index
        if begin_index == 0:
            self._table = self.table
        self._set_guidance()

    def index_for_timestep(self, timestep: float | torch.Tensor) -> int:
        """Return the call whose time is nearest."""
        return int((self.timesteps - torch.as_tensor(timestep).to(self.timesteps)).abs().argmin())

    def scale_model_input(
        self, sample: torch.Tensor, timestep: float | torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the network's input; pipelines of flow models do not call this."""
        require_space(self.pack, "ve")
        self._start(timestep)
        self._scaled = True
        return network_input("ve", sample, self._program.sigmas[self._call])

    def step(
        self,
        model_output: torch.Tensor,
        timestep: float | torch.Tensor,
        sample: torch.Tensor,
        return_dict: bool = True,
    ) -> Any:
        """Return the sample after one more model call."""
        if not self._scaled:
            require_space(self.pack, "flow")
        self._start(timestep)
        call = self._call

        def denoise(
            point: torch.Tensor, sigma: torch.Tensor, guidance: torch.Tensor | None
        ) -> torch.Tensor:
            return denoised(self.prediction, point, model_output.to(point.dtype), sigma)

        cursor = self._at(sample)
        cursor, _ = evaluate(self._program, call, cursor, denoise, self._program.sigmas[call])
        self._cursor = advance(self._program, call, cursor)
        self._step_index, self._scaled = self._first + call + 1, False
        self._set_guidance()
        result = self._cursor.point.to(sample.dtype, copy=True)
        return utils.SchedulerOutput(prev_sample=result) if return_dict else (result,)

    def add_noise(
        self, original_samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor
    ) -> torch.Tensor:
        """Noise pictures to the level at which the run is: before its first step, where it begins.

        Only runs that begin with a picture do so before the first step. Those that begin at a later
        call then take a part, and write its times into `timesteps`, of which pipelines hold a view.
        """
        if self._step_index is None:
            begin = self._begin(timesteps)
            if begin > self._first:
                self._take_part(begin)
        call = 0 if self._step_index is None else self._call
        level = torch.tensor(self.table.sigmas[call // self.table.nfe_per_step])
        return float(alpha(self.pack.space, level)) * original_samples + float(level) * noise

    def scale_noise(
        self, sample: torch.Tensor, timestep: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        """Do what `add_noise` does; pipelines of flow models call it by this name."""
        return self.add_noise(sample, noise, timestep)

    # The run

    @property
    def table(self) -> SolverTable:
        """The table of the run, from the pipeline's call `_first` on.

        Raises TableError for a number of steps that the pack lacks, unless the run takes a part.
        """
        return self.pack[self.num_inference_steps] if self._table is None else self._table

    @property
    def _call(self) -> int:
        """The index of the next model call in the table, which begins where the run does."""
        assert self._step_index is not None
        return self._step_index - self._first

    def _begin(self, timestep: float | torch.Tensor | None) -> int:
        """Return the call at which the run begins: as the pipeline set it, or that of its time."""
        if self._begin_index is not None or timestep is None:
            return self._begin_index or 0
        return self.index_for_timestep(torch.as_tensor(timestep).flatten()[0])

    def _start(self, timestep: float | torch.Tensor | None) -> None:
        """Begin a run at the pipeline's timestep, unless one is under way."""
        if self._step_index is not None:
            return
        begin = self._begin(timestep)
        if begin > self._first:
            self._continue_from(begin)
        self._step_index, self._program = begin, compiled(self.table)
        if self.table.guidance is not None and self._guide is None:
            self._warn(NOT_GUIDED)
        self._set_guidance()

    def _continue_from(self, begin: int) -> None:
        """Run the rest of the table, as after another pipeline that has run its first calls."""
        node, stage = divmod(begin, self.table.nfe_per_step)
        if stage:
            raise HostError(
                f"A run with this solver must begin at a multiple of {self.table.nfe_per_step} "
                f"calls, not at {begin}. Choose another strength or denoising_start."
            )
        self._table, self._first = from_node(self.table, node), begin

    def _take_part(self, begin: int) -> None:
        """Run a part from the level of the evenly spaced time `begin` on, in the calls left."""
        calls = self.num_inference_steps - begin
        if calls < 1 or self._levels[begin] <= self.pack.ending:
            raise HostError("This run begins where the solver ends. Raise the strength.")
        way = float(self._levels[begin]), self.pack.ending
        guided = self._guide is not None
        self._table = part_table(self.pack, *way, calls, self._lowest, guided)
        self.timesteps[begin:] = self._network_times(torch.tensor(self._table.call_sigmas))
        self._begin_index = self._first = begin
        self._set_guidance()

    def _set_guidance(self) -> None:
        """Set the guidance of the next call, and after the last one the pipeline's own."""
        call = (self._begin_index or 0) if self._step_index is None else self._step_index
        guidance = None if self._table is None else self._table.guidance
        multipliers = [] if guidance is None else guidance.tolist()[call - self._first :]
        if self._guide is not None:
            self._guide.set(multipliers[0] if multipliers else 1.0)

    def _at(self, sample: torch.Tensor) -> Cursor:
        """Return the cursor at the pipeline's sample.

        It continues in float32 or better from its own state, unless the pipeline has changed the
        sample, as inpainting does. The pipeline may write into its own tensors: these are copies.
        """
        x = sample.to(torch.promote_types(sample.dtype, torch.float32), copy=True)
        if self._cursor is None:
            return Cursor(x, x)
        if torch.equal(self._cursor.point.to(sample.dtype), sample):
            return self._cursor
        accepted = self._program.moves[self._call - 1].accept
        return self._cursor._replace(point=x, state=x if accepted else self._cursor.state)

    # Times

    def _network_times(self, levels: torch.Tensor) -> torch.Tensor:
        """Return the times (float32) with which the network is called at noise levels."""
        scale = self.config.num_train_timesteps
        return (scale * levels if self.times is None else self.times.time(levels)).float()

    def _shifted_times(self, mu: float | None) -> ShiftedTimes:
        """Return a flow model's times; `mu` counts where the configuration shifts dynamically."""
        shift = float(self.config.get("shift") or 1.0)
        if mu is not None and self.config.get("use_dynamic_shifting"):
            shift = mu if self.config.get("time_shift_type") == "linear" else math.exp(mu)
        return ShiftedTimes(shift, self.config.num_train_timesteps)

    # Saving

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Save the configuration with a copy of the solver beside it."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        save_solver(Path(save_directory) / SAVED_AS, self.pack)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        subfolder: str | None = None,
        **kwargs: Any,
    ) -> "S4SScheduler":
        """Load what `save_pretrained` wrote into a folder or its `subfolder`."""
        saved = Path(pretrained_model_name_or_path) / (subfolder or "") / SAVED_AS
        kwargs = {"solver": str(saved)} | kwargs
        loaded: S4SScheduler = super().from_pretrained(
            pretrained_model_name_or_path, subfolder, **kwargs
        )
        return loaded
