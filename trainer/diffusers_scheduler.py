"""A learned solver as the scheduler of a diffusers pipeline:

    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver="my.safetensors")
    pipe("a red fox", num_inference_steps=5)

The steps pick the table: one model call each. The pipeline calls the network, so the core's loop
is taken call by call: each `step` is the core's own `evaluate` and `advance`.
"""

from pathlib import Path

import torch

from s4s_core.app.folders import find_solver
from s4s_core.errors import HostError, ModelError
from s4s_core.hosting import require_space
from s4s_core.sampling import Cursor, advance, compiled, evaluate
from s4s_core.solver_file import load_solver, save_solver
from s4s_core.spaces import alpha

from .extras import import_extras
from .models.prediction import PREDICTIONS, denoised, discrete_times, like, network_input

(diffusers,) = import_extras("diffusers")
utils = diffusers.schedulers.scheduling_utils

SAVED_AS = "solver.safetensors"


class S4SScheduler(diffusers.SchedulerMixin, diffusers.ConfigMixin):
    """Runs the tables of a solver file in any text-to-image or image-to-image pipeline.

    solver: a path, or the name of a file among your solvers. All else is the pipeline's own
    configuration: how its network was trained to predict, and at which times. Samples are in the
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
        solver="",
        num_train_timesteps=1000,
        beta_start=0.0001,
        beta_end=0.02,
        beta_schedule="linear",
        trained_betas=None,
        prediction_type="epsilon",
        rescale_betas_zero_snr=False,
    ):
        self.pack = load_solver(solver if Path(solver).is_file() else find_solver(solver))
        self.prediction = prediction_type if self.pack.space == "ve" else "flow"
        if self.prediction not in (*PREDICTIONS, "flow"):
            raise ModelError(f"Networks that predict '{prediction_type}' are not known here.")
        self.times = discrete_times(self.config) if self.pack.space == "ve" else None
        self.set_timesteps(self.pack.nfes[-1])

    # What pipelines read

    @property
    def init_noise_sigma(self):
        """What pipelines multiply unit noise by."""
        return float(self.table.sigmas[0])

    @property
    def step_index(self):
        return self._step_index

    @property
    def begin_index(self):
        return self._begin_index

    def __len__(self):
        return self.config.num_train_timesteps

    # What pipelines call

    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, mu=None):
        """Choose the table of that many model calls.

        Some pipelines pass sigmas, of which only the number counts, and the shift `mu` of flow
        models: the table has times of its own.
        """
        steps = num_inference_steps if sigmas is None else len(sigmas)
        if mu is not None:
            require_space(self.pack, "flow")
        self.table = self.pack[steps]
        calls = torch.tensor(self.table.call_sigmas)
        flow = self.times is None
        times = self.config.num_train_timesteps * calls if flow else self.times.time(calls)
        self.timesteps = times.to(device=device, dtype=torch.float32)
        self.sigmas = torch.tensor(self.table.sigmas, dtype=torch.float32)
        self.num_inference_steps = steps
        self._step_index = self._begin_index = self._cursor = None
        self._scaled = False

    def set_begin_index(self, begin_index=0):
        """Start at a later call: image-to-image."""
        self._begin_index = begin_index

    def index_for_timestep(self, timestep):
        """The call at a time of `timesteps`: the first that comes nearest."""
        return int((self.timesteps - torch.as_tensor(timestep).to(self.timesteps)).abs().argmin())

    def scale_model_input(self, sample, timestep=None):
        """The sample as the network wants it; pipelines of flow models do not ask for this."""
        require_space(self.pack, "ve")
        self._start(timestep)
        self._scaled = True
        return network_input("ve", sample, self._program.sigmas[self._call])

    def step(self, model_output, timestep, sample, return_dict=True):
        """The sample after one more model call."""
        if not self._scaled:
            require_space(self.pack, "flow")
        self._start(timestep)
        call = self._call

        def denoise(point, sigma):
            return denoised(self.prediction, point, model_output.to(point.dtype), sigma)

        cursor = self._at(sample)
        cursor, _ = evaluate(self._program, call, cursor, denoise, self._program.sigmas[call])
        self._cursor = advance(self._program, call, cursor)
        self._step_index, self._scaled = self._step_index + 1, False
        result = self._cursor.point.to(sample.dtype)
        return utils.SchedulerOutput(prev_sample=result) if return_dict else (result,)

    def add_noise(self, original_samples, noise, timesteps):
        """Pictures noised to the level of the node that a run from `timesteps` starts at."""
        levels = torch.tensor([self.table.sigmas[n] for n in self._nodes(timesteps)])
        scale, levels = (
            like(value, original_samples).to(original_samples)
            for value in (alpha(self.pack.space, levels), levels)
        )
        return scale * original_samples + levels * noise

    def scale_noise(self, sample, timestep, noise=None):
        """The same, as pipelines of flow models call it."""
        return self.add_noise(sample, noise, timestep)

    # The run

    @property
    def _call(self):
        """Number of the next model call in the program, which begins where the run does."""
        return self._step_index - self._first

    def _start(self, timestep):
        """Begin a run at the call that the pipeline names, unless one is under way."""
        if self._step_index is not None:
            return
        begin = self._begin_index
        self._first = self.index_for_timestep(timestep) if begin is None else begin
        node, stage = divmod(self._first, self.table.nfe_per_step)
        if stage:
            raise HostError(
                f"A run with this solver begins at a multiple of {self.table.nfe_per_step} calls, "
                f"not at {self._first}: choose another strength."
            )
        self._step_index, self._program = self._first, compiled(self.table, node)

    def _at(self, sample):
        """The cursor at the pipeline's sample.

        It goes on in float32 or better from its own state, unless the pipeline changed the sample
        (inpainting does): then from that.
        """
        x = sample.to(torch.promote_types(sample.dtype, torch.float32))
        if self._cursor is None:
            return Cursor(x, x)
        if torch.equal(self._cursor.point.to(sample.dtype), sample):
            return self._cursor
        accepted = self._program.moves[self._call - 1].accept
        return self._cursor._replace(point=x, state=x if accepted else self._cursor.state)

    def _nodes(self, timesteps):
        """Nodes for `add_noise`: of the run under way or about to start, otherwise of the times."""
        index = self._begin_index if self._step_index is None else self._step_index
        times = torch.atleast_1d(torch.as_tensor(timesteps))
        calls = [self.index_for_timestep(t) if index is None else index for t in times]
        return [call // self.table.nfe_per_step for call in calls]

    # Saving

    def save_pretrained(self, save_directory, push_to_hub=False, **kwargs):
        """The configuration, with a copy of the solver beside it."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        save_solver(Path(save_directory) / SAVED_AS, self.pack)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, subfolder=None, **kwargs):
        """The scheduler of a folder that `save_pretrained` wrote, or of its part `subfolder`."""
        saved = Path(pretrained_model_name_or_path) / (subfolder or "") / SAVED_AS
        kwargs = {"solver": str(saved)} | kwargs
        return super().from_pretrained(pretrained_model_name_or_path, subfolder, **kwargs)
