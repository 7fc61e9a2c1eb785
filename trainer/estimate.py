"""`estimate`: the time, memory and disk space that a training run will take.

`estimate` makes a few model calls in another process, so that this one keeps its memory and
survives whatever happens. torch is not imported until something is measured.
"""

import json
import math
import os
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s4s_core.app.estimate import DryRun, size
from s4s_core.app.estimate import Estimate as RunEstimate
from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import no_window, trainer_command
from s4s_core.errors import ConfigError, JobError, S4SError

from .config import TrainConfig, rooted, to_toml

if TYPE_CHECKING:
    from s4s_core.training.plan import CallPlan

    from .models.contract import TrainerModel

ROOM = 64 << 20
"""Bytes of disk space that a job needs besides the teacher's results."""


def add_arguments(parser: ArgumentParser) -> None:
    from .arguments import add_train_arguments

    add_train_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")


def run(args: Namespace) -> int:
    from .arguments import config_from_args

    result = measure(config_from_args(args))
    print(json.dumps(result.plain()) if args.json else result.text)
    return 0


@dataclass(frozen=True)
class Estimate(RunEstimate):
    """What a job will take at most, with warnings."""

    device: str
    warnings: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": list(self.warnings)}

    @property
    def text(self) -> str:
        """A line for the terminal, and one for each warning."""
        return "\n".join([f"{self.sentence} Device: {self.device}.", *self.warnings])


def estimate(config: TrainConfig, seconds: float = 900) -> Estimate:
    """Estimate a config by a dry run of at most `seconds` in another process."""
    with tempfile.TemporaryDirectory(prefix="s4s-") as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(rooted(config)), encoding="utf-8", newline="\n")
        try:
            done = subprocess.run(
                trainer_command("estimate", "--config", path, "--allow-code", "--json"),
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
    teacher = 4 * config.settings().pairs * math.prod(shape)
    for folder, needed in ((jobs_home(), ROOM + teacher), (solver_folders()[0], 2**20)):
        place = next(p for p in (folder, *folder.absolute().parents) if os.path.isdir(p))
        free = shutil.disk_usage(place).free
        if free < needed:
            raise ConfigError(
                f"Not enough disk space in {place}: {size(needed)} needed, {size(free)} free. "
                "Make room, or set S4S_HOME to another folder."
            )


def measure(config: TrainConfig) -> Estimate:
    """Estimate a config by a few model calls in this process."""
    from .models import open_model

    check_disk(config)
    model = open_model(config.model)
    check_disk(config, model.shape)
    return measure_model(config, model)


def measure_model(config: TrainConfig, model: "TrainerModel") -> Estimate:
    """Estimate a config by a few calls of its model."""
    import torch

    from s4s_core.objectives import chosen_objective, objective

    from .memory import Peak
    from .training import call_plan, check_trainable, decoder_for

    name = chosen_objective(config.objective, model.shape)
    settings, judge = config.settings(), objective(name, decoder_for(config, model))
    check_trainable(config, model, judge)
    peak = Peak(torch.device(getattr(model, "device", "cpu")))
    free, before = peak.room(), peak.bytes()
    trial = DryRun(
        model,
        min(settings.batch, settings.sizes.train),
        judge,
        settings.entry.needs_gradient,
    )
    memory, plan = peak.bytes(), call_plan(config)
    if trial.single:
        memory += (trial.wanted - 1) * (memory - before)
    seconds = trial.seconds(plan)
    warnings = *_memory_warnings(trial, memory, free), *_plan_warnings(plan, seconds)
    return Estimate(seconds, memory, plan.total, str(peak.device), warnings)


def _memory_warnings(trial: DryRun, memory: int, free: int) -> Iterator[str]:
    if free and memory > 0.95 * free:
        yield (
            f"Training needs about {size(memory)} of memory, but only {size(free)} is "
            "available. Close other programs, or choose a lower resolution or precision."
        )
    if trial.batch < trial.wanted:
        yield f"Memory allows only {trial.batch} samples at once instead of {trial.wanted}."


def _plan_warnings(plan: "CallPlan", seconds: float) -> Iterator[str]:
    if seconds > 86_400:
        yield "Training will take more than a day. Choose fewer step counts or less effort."
    most = max(goal.nfe for goal in plan.order)
    if most >= plan.teacher_nfe:
        yield (
            f"A solver with {most} steps has nothing to learn from a teacher with "
            f"{plan.teacher_nfe}. Choose fewer steps, or a teacher with more."
        )
