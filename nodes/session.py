"""The core's model contract over a MODEL as it is wired, and ComfyUI's samplers as teachers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import comfy.model_management
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP

from ..s4s_core.app.comfyui import (
    CONDITIONING,
    LATENT,
    MODEL,
    SAMPLER,
    BaseModel,
    Guider,
    Prompts,
    Rows,
    caching_node,
    exact_model,
    levels_of,
    rows_by_guidance,
    scaled_guidance,
    space_of,
    times_of,
)
from ..s4s_core.errors import HostError, TrainingError
from ..s4s_core.sampling import sample
from ..s4s_core.spaces import as_float64
from ..s4s_core.spacing import lay_nodes
from ..s4s_core.table import SolverTable
from ..s4s_core.teacher import Pairs, draw_noise
from ..s4s_core.training.check import check_model
from ..s4s_core.training.memory import Batcher, explain_out_of_memory
from ..s4s_core.training.task import Meter
from .inputs import AUTO
from .sampler import prepare_latent

_SCHEDULERS = {"ve": "karras", "flow": "simple"}
LARGEST_BATCH = 32
_MARGIN = 1.5
"""ComfyUI puts a prompt and its negative into one call only if this many times the memory that it
expects of the call is free."""
_CHECK_SEED = 800_000_001
_SAME = 1e-4
"""Results that differ relatively by at most this are the same: some kernels are not exact."""

T = TypeVar("T")


class _Session(comfy.samplers.Sampler):
    """A sampler that runs `work` on the loaded, patched, conditioned model instead of sampling.

    ComfyUI prepares a model for sampling (weights, LoRAs, ControlNets, hooks, offloading) and
    undoes that afterwards, so `work` gets the model as any sampler does.
    """

    def __init__(self, work: Callable[[Any, dict[str, Any]], object]) -> None:
        self.work = work
        self.result: Any = None

    def sample(
        self,
        model_wrap: Any,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: object,
        noise: torch.Tensor,
        latent_image: torch.Tensor | None = None,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        self.result = self.work(model_wrap, extra_args)
        return torch.zeros_like(noise)


class _Loading:
    """A wrapper of ComfyUI's `prepare_sampling`: loads a model for the batch that will run.

    That is as much of `most` as fits into what a single latent leaves free: ComfyUI never moves
    weights off the device for the sake of a larger batch.
    """

    def __init__(self, most: int) -> None:
        self.most, self.batch = most, 1

    def __call__(
        self, load: Callable[..., Any], model: MODEL, shape: Sequence[int], *rest: Any, **more: Any
    ) -> Any:
        loaded, size = load(model, shape, *rest, **more), list(shape[1:])
        self.batch = self._fitting(model, size)
        return load(model, [self.batch, *size], *rest, **more) if self.batch > 1 else loaded

    def _fitting(self, model: MODEL, size: list[int]) -> int:
        """Halve the batch until a call fits; the model is loaded."""
        management, batch = comfy.model_management, self.most
        free = management.get_free_memory(model.load_device) - management.extra_reserved_memory()
        while batch > 1 and _MARGIN * call_memory(model.model, batch, size) > free:
            batch //= 2
        return batch


def call_memory(base: BaseModel, batch: int, size: Sequence[int]) -> float:
    """Return the bytes that ComfyUI expects of a call on latents of a size, with the negative."""
    return float(base.memory_required([2 * batch, *size]))


def run_in_session(
    model: MODEL,
    positives: Sequence[CONDITIONING],
    negative: CONDITIONING,
    cfg: float,
    latent: LATENT,
    seed: int,
    work: Callable[["SessionModel"], T],
    most: int = LARGEST_BATCH,
) -> T:
    """Return work(model) with the model loaded, for at most `most` latents at once, and its times
    not rounded.

    All runs share one sampling of ComfyUI, so a model that keeps results between calls is refused.
    """
    cache = caching_node(model.model_options)
    if cache is not None:
        raise HostError(
            f"{cache} reuses results of earlier model calls, which training and comparing must "
            f"not: bypass the node {cache} here; sampling with the solver may use it."
        )
    samples = prepare_latent(model, latent)
    if samples.is_nested:
        raise TrainingError("Latents of several kinds (video with sound) are not supported here.")
    clone, loading = exact_model(model), _Loading(most)
    clone.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, "s4s", loading)
    guider = comfy.samplers.CFGGuider(clone)
    names = ["positive", *(f"positive {k}" for k in range(1, len(positives)))]
    guider.inner_set_conds(dict(zip(names, positives, strict=True)) | {"negative": negative})
    guider.set_cfg(cfg)
    shape = tuple(samples.shape[1:])

    def run(ready: Any, extra_args: dict[str, Any]) -> T:
        model = SessionModel(ready, extra_args, names, shape, loading.batch)
        with explain_out_of_memory():
            check_model(model, batcher=Batcher(loading.batch))
            return work(model)

    session, empty = _Session(run), torch.zeros(1, *shape)
    sigma_max = float(clone.get_model_object("model_sampling").sigma_max)
    ends = torch.tensor([sigma_max, 0.0])
    guider.sample(empty.clone(), empty, session, ends, seed=seed)
    result: T = session.result
    return result


class SessionModel:
    """A `s4s_core.model.Model` during a session; a condition is the number of a prompt.

    batch: how many latents to put in one call at most.
    """

    def __init__(
        self,
        guider: Guider,
        extra_args: dict[str, Any],
        names: list[str],
        shape: tuple[int, ...],
        batch: int,
    ) -> None:
        self.guider, self.extra_args, self.shape, self.batch = guider, extra_args, shape, batch
        self.prompts = Prompts([guider.conds[name] for name in names])
        self.base = guider.inner_model
        sampling = self.base.model_sampling
        self.space, self.device = space_of(sampling), guider.model_patcher.load_device
        self.sigma_min, self.sigma_max = levels_of(sampling)
        self.times = times_of(sampling)
        self.takes_guidance = guider.cfg != 1
        self.fingerprint: str | None = None
        self._batcher = Batcher(batch, Meter(self.denoise))

    def denoise(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: torch.Tensor | None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the guided x0 of x [batch, ...] at sigma [batch]; a cancelled run stops here.

        Rows with the same multiplier of guidance share calls of the guider.
        """
        out = torch.empty_like(x)
        for multiplier, rows in rows_by_guidance(guidance):
            with scaled_guidance(self.guider, multiplier):
                part = None if cond is None else cond[rows]
                out[rows] = self._predict(x[rows], sigma[rows], part)
        return out

    def _predict(
        self, x: torch.Tensor, sigma: torch.Tensor, cond: torch.Tensor | None
    ) -> torch.Tensor:
        """Return x0 at the guider's scale."""
        options = {key: self.extra_args.get(key) for key in ("model_options", "seed")}
        out = torch.empty_like(x)
        for rows in self.calls(cond, x):
            comfy.model_management.throw_exception_if_processing_interrupted()
            out[rows] = self.guider(x[rows], sigma[rows].to(x.device), **options).to(x.dtype)
        return out

    def conditions(self, batch: int, generator: torch.Generator) -> torch.Tensor | None:
        """Draw prompt numbers evenly, int64 [batch]; None if there is only one prompt."""
        if len(self.prompts) == 1:
            return None
        return torch.randint(len(self.prompts), (batch,), generator=generator)

    def calls(self, cond: torch.Tensor | None, x: torch.Tensor) -> Iterator[Rows]:
        """Yield the rows of a batch that share a model call, with their prompts in the guider."""
        if cond is None:
            self.guider.conds["positive"] = self.prompts.prompts[0]
            yield slice(None)
            return
        for rows, prompt in self.prompts.calls(cond):
            self.guider.conds["positive"] = prompt
            yield rows if isinstance(rows, slice) else rows.to(x.device)

    def run(
        self, solver: "HostTeacher | SolverTable", x: torch.Tensor, cond: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run a table or a teacher from noise x, in batches that shrink to fit memory."""

        def run(part: Pairs) -> tuple[torch.Tensor]:
            if isinstance(solver, SolverTable):
                return (sample(self.denoise, part.x, solver, part.cond),)
            return (solver(part.x, part.cond),)

        return self._batcher.map(Pairs(x, cond, x), run)[0]

    def memory(self, batch: int) -> int:
        """Return the bytes that ComfyUI expects of the weights and of a call on a batch."""
        weights = self.guider.model_patcher.model_size()
        return int(weights + call_memory(self.base, batch, self.shape))


class HostTeacher:
    """A ComfyUI sampler as a teacher: (x, cond) -> result. `nfe` counts the last run's calls.

    begins: the noise level of x.
    """

    def __init__(
        self,
        model: SessionModel,
        sampler: SAMPLER,
        sigmas: torch.Tensor,
        name: str,
        begins: float | None = None,
    ) -> None:
        self.model, self.sampler, self.sigmas = model, sampler, sigmas.to(model.device)
        self.name, self.nfe, self.begins = name, 0, begins or model.sigma_max
        self.key = f"{name} {[round(float(s), 6) for s in sigmas]}"

    def __call__(
        self, x: torch.Tensor, cond: torch.Tensor | None, seed: int | None = None
    ) -> torch.Tensor:
        """Sample from noise x; `seed` is that of noise which the sampler adds by itself."""
        out = torch.empty_like(x)
        for rows in self.model.calls(cond, x):
            out[rows] = self._run(x[rows], seed).to(x.dtype)
        return out

    def below(self, level: float) -> "HostTeacher":
        """Return the teacher that starts at a lower level: as many steps, laid as its own lie."""
        levels = as_float64(self.sigmas).cpu().numpy()
        nodes = torch.from_numpy(lay_nodes(levels, len(levels) - 1, level)).to(self.sigmas)
        return HostTeacher(self.model, self.sampler, nodes, self.name, level)

    def require_deterministic(self) -> None:
        """Raise TrainingError if two runs from the same noise differ.

        They have different seeds, and the second one finds torch's own generator where the first
        one left it.
        """
        x, cond = draw_noise(self.model, 1, _CHECK_SEED)
        first, second = (as_float64(self(x, cond, seed)) for seed in (1, 2))
        if bool((first - second).norm() > _SAME * first.norm()):
            raise TrainingError(
                f"The teacher {self.name} gives another result each time it runs from the same "
                "noise, which no solver can learn: choose a sampler that adds no noise, such as "
                "dpmpp_2m or uni_pc_bh2, or auto."
            )

    def _run(self, x: torch.Tensor, seed: int | None) -> torch.Tensor:
        model, calls = self.model, 0

        class Counting(comfy.samplers.KSamplerX0Inpaint):
            def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
                nonlocal calls
                calls += 1
                comfy.model_management.throw_exception_if_processing_interrupted()
                result: torch.Tensor = super().__call__(*args, **kwargs)
                return result

        seeded = {} if seed is None else {"seed": seed}
        denoiser = Counting(model.guider, self.sigmas.clone())
        denoiser.latent_image, denoiser.noise = torch.zeros_like(x), x / self.begins
        result: torch.Tensor = self.sampler.sampler_function(
            denoiser,
            x * (float(self.sigmas[0]) / self.begins),
            self.sigmas.clone(),
            extra_args=model.extra_args | seeded | {"denoise_mask": None},
            callback=None,
            disable=True,
            **self.sampler.extra_options,
        )
        self.nfe = calls
        return result


def make_teacher(
    model: SessionModel, sampler: str | SAMPLER, scheduler: str | torch.Tensor, steps: int
) -> HostTeacher | int:
    """Return the teacher that a node asks for, or the number of calls of one to be chosen.

    sampler: "auto", a stock name or a SAMPLER; scheduler: "auto", a stock name or SIGMAS. With
    "auto" for both, the core chooses.
    """
    if isinstance(sampler, str) and isinstance(scheduler, str) and {sampler, scheduler} == {AUTO}:
        return steps
    return host_teacher(model, sampler, scheduler, steps)


def host_teacher(
    model: SessionModel, sampler: str | SAMPLER, scheduler: str | torch.Tensor, steps: int
) -> HostTeacher:
    """Return a ComfyUI sampler as a teacher; see `make_teacher`."""
    name = sampler if isinstance(sampler, str) else type(sampler).__name__
    if isinstance(sampler, str):
        name = "uni_pc_bh2" if sampler == AUTO else sampler
        sampler = comfy.samplers.sampler_object(name)
    if not hasattr(sampler, "sampler_function"):
        raise TrainingError(
            "This SAMPLER cannot be a teacher. Connect one from KSamplerSelect, or none."
        )
    return HostTeacher(model, sampler, _sigmas(model, name, scheduler, steps), name)


def _sigmas(
    model: SessionModel, sampler: str, scheduler: str | torch.Tensor, steps: int
) -> torch.Tensor:
    """Return the noise levels that ComfyUI runs a sampler at."""
    if not isinstance(scheduler, str):
        if len(scheduler) < 2 or float(scheduler[0]) <= 0:
            raise TrainingError("The teacher's SIGMAS are empty. Connect a scheduler to them.")
        return scheduler
    scheduler = _SCHEDULERS[model.space] if scheduler == AUTO else scheduler
    patcher, device = model.guider.model_patcher, model.device
    sigmas: torch.Tensor = comfy.samplers.KSampler(
        patcher, steps, device, sampler, scheduler, 1.0
    ).sigmas
    return sigmas
