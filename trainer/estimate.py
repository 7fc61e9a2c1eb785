"""`estimate`: the time, memory and disk space that a training run will take.

`estimate` makes a few model calls in another process, so that this one keeps its memory and
survives whatever happens. torch is not imported until something is measured.
"""

import json
import math
import shutil
import subprocess
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import no_window, trainer_command
from s4s_core.errors import ConfigError, JobError, ModelError, S4SError, TrainingError

from .config import TrainConfig, rooted, to_toml

if TYPE_CHECKING:
    from s4s_core.training.plan import CallPlan

    from .models.contract import TrainerModel

ROOM = 64 << 20
"""Bytes of disk space that a job needs besides the teacher's results."""

LONGEST_CALL = 20.0
"""Seconds: a batch that would take longer is extrapolated from a single sample."""

REPEATS = 3
OVERHEAD = 1.15
"""Factor for pictures and for the loop itself."""


def add_arguments(parser: ArgumentParser) -> None:
    from .arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")


def run(args: Namespace) -> int:
    from s4s_core.app.progress import duration

    from .arguments import config_from_args

    result = measure(config_from_args(args))
    if args.json:
        print(json.dumps(result.plain()))
        return 0
    print(f"At most {duration(result.seconds)}: {result.calls:,} model calls on {result.device}.")
    print(f"Peak memory: about {size(result.memory_bytes)}.")
    for warning in result.warnings:
        print(warning)
    return 0


@dataclass(frozen=True)
class Estimate:
    """What a training run will take at most, with warnings.

    memory_bytes: the peak on the device that computes, including the model.
    """

    seconds: float
    memory_bytes: int
    calls: int
    device: str
    warnings: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": list(self.warnings)}


def estimate(config: TrainConfig, seconds: float = 900) -> Estimate:
    """Estimate a config by a dry run of at most `seconds` in another process."""
    with tempfile.TemporaryDirectory(prefix="s4s-") as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(rooted(config)), encoding="utf-8", newline="\n")
        try:
            done = subprocess.run(
                trainer_command("estimate", "--config", path, "--json"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                creationflags=no_window(),
            )
        except subprocess.TimeoutExpired:
            raise JobError(f"The dry run took more than {seconds:g} seconds.") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else f"exit code {done.returncode}"
        reason = last.removeprefix("error: ")
        raise S4SError(reason if last != reason else f"The dry run failed: {reason}")
    values = json.loads(done.stdout.splitlines()[-1])  # a host's modules may print, too
    return Estimate(**{**values, "warnings": tuple(values["warnings"])})


def check_disk(config: TrainConfig, shape: tuple[int, ...] = ()) -> None:
    """Raise ConfigError if there is too little disk space; `shape` is the model's."""
    teacher = 4 * sum(config.settings().sizes) * math.prod(shape)
    for folder, needed in ((jobs_home(), ROOM + teacher), (solver_folders()[0], 2**20)):
        place = next(p for p in (folder, *folder.absolute().parents) if p.is_dir())
        free = shutil.disk_usage(place).free
        if free < needed:
            raise ConfigError(
                f"Not enough disk space in {place}: {size(needed)} needed, {size(free)} free. "
                "Make room, or set S4S_HOME to another folder."
            )


def size(count: float) -> str:
    """Format bytes as 640 MB or 7.5 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def measure(config: TrainConfig) -> Estimate:
    """Estimate a config by a few model calls in this process."""
    from s4s_core.objectives import chosen_objective, objective

    from .models import open_model
    from .training import call_plan, check_trainable, decoder_for

    check_disk(config)
    model = open_model(config.model)
    check_disk(config, model.shape)
    name = chosen_objective(config.objective, model.shape)
    judge = objective(name, decoder_for(config, model))
    check_trainable(config, model, judge)
    trial, plan = DryRun(model, config, judge), call_plan(config)
    seconds = plan.total * trial.per_call + plan.judged * trial.per_result
    warnings = tuple(_warnings(trial, plan, seconds))
    return Estimate(
        round(seconds * OVERHEAD, 1), trial.memory, plan.total, str(trial.device), warnings
    )


def _warnings(trial: "DryRun", plan: "CallPlan", seconds: float) -> Iterator[str]:
    if trial.free and trial.memory > 0.95 * trial.free:
        yield (
            f"Training needs about {size(trial.memory)} of memory, but only {size(trial.free)} is "
            "available. Close other programs, or choose a lower resolution or precision."
        )
    if trial.batch < trial.wanted:
        yield f"Memory allows only {trial.batch} samples at once instead of {trial.wanted}."
    if seconds > 86_400:
        yield "Training will take more than a day. Choose fewer step counts or less effort."
    if max(plan.training) >= plan.teacher_nfe:
        yield (
            f"A solver with {max(plan.training)} steps has nothing to learn from a teacher with "
            f"{plan.teacher_nfe}. Choose fewer steps, or a teacher with more."
        )


class DryRun:
    """Times a few model calls at training's batch size and watches memory.

    per_call: seconds for what training counts as one call on one sample. per_result: seconds to
    evaluate the objective on one result, decoding included.
    """

    def __init__(self, model: "TrainerModel", config: TrainConfig, objective: Any) -> None:
        import torch

        from s4s_core.names import METHODS

        from .memory import Peak

        self.model, self.objective = model, objective
        self.device = torch.device(getattr(model, "device", "cpu"))
        self.gradient = METHODS[config.method].needs_gradient
        self.wanted = self.batch = min(config.settings().batch, config.settings().sizes.train)
        peak = Peak(self.device)
        self.free, before = peak.room(), peak.bytes()
        self._measure(1)  # loads, compiles and caches
        self.per_call, self.per_result = self._measure(1)
        self.memory = peak.bytes()
        if (self.per_call + self.per_result) * self.wanted > LONGEST_CALL:
            self.memory += (self.wanted - 1) * (self.memory - before)
            return
        measured = [self._measure(self.batch) for _ in range(REPEATS)]
        self.per_call, self.per_result = map(min, zip(*measured, strict=True))
        self.memory = peak.bytes()

    def _measure(self, batch: int) -> tuple[float, float]:
        """Return the seconds per sample of a call, and of the objective on its result."""
        return self._fitting(self._call, batch), self._fitting(self._judge, batch)

    def _fitting(self, work: Callable[[int], None], batch: int) -> float:
        """Return the seconds per sample; halve the batch if memory runs out, as training does."""
        from s4s_core.training.memory import is_out_of_memory

        while True:
            try:
                return self._seconds(work, batch) / batch
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            if batch == 1:
                raise TrainingError(
                    "Not enough memory for a single sample. Close other programs, or choose a "
                    "lower resolution or precision."
                )
            self.batch = batch = batch // 2

    def _seconds(self, work: Callable[[int], None], batch: int) -> float:
        from s4s_core.training.gradient import PLAIN_COST

        began = time.perf_counter()
        work(batch)
        seconds = time.perf_counter() - began
        return seconds / PLAIN_COST if self.gradient else seconds  # a gradient counts as more calls

    def _call(self, batch: int) -> None:
        """Call the model on noise, with a gradient if the method needs one."""
        import torch

        from s4s_core.teacher import draw_noise

        x, cond = draw_noise(self.model, batch, seed=0)
        sigma = torch.full((batch,), float(self.model.sigma_max), device=x.device)
        arguments = (sigma,) if cond is None else (sigma, cond)
        with torch.inference_mode(not self.gradient):
            result = self.model.denoise(x.requires_grad_(self.gradient), *arguments)
            if self.gradient:
                result.float().square().sum().backward()
            finite = bool(result.isfinite().all())  # waits for the device, too
        if not finite:
            raise ModelError("The model returns NaN or infinity. Try another precision.")

    def _judge(self, batch: int) -> None:
        """Evaluate the objective, with a gradient if the method needs one."""
        import torch

        from s4s_core.teacher import draw_noise

        x, _ = draw_noise(self.model, batch, seed=0)
        target = x / float(self.model.sigma_max)
        with torch.inference_mode(not self.gradient):
            if self.gradient:
                result = target.clone().requires_grad_()
                self.objective.distance(result, target).sum().backward()
                float(result.detach().sum())  # waits for the device
            else:
                float(self.objective.embed(target).sum())
