"""Before a training starts: is there room for it, how long will it take, how much memory?

`estimate` runs a few model calls in a process of its own, so that the asking one keeps its memory
and survives whatever happens. No torch is imported until something is measured.
"""

import json
import math
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import WINDOWS, trainer_command
from s4s_core.errors import ConfigError, JobError, S4SError

from .config import rooted, to_toml

ROOM = 64 << 20
"""Bytes of disk that a job needs beside the teacher's results."""

LONGEST_CALL = 20.0
"""Seconds: a batch that would take longer is not tried, but reckoned from a single sample."""

REPEATS = 3


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes that a training will take at most, the calls, and what speaks against it.

    `memory_bytes` is the peak on the device that computes, the model included.
    """

    seconds: float
    memory_bytes: int
    calls: int
    device: str
    warnings: tuple

    def plain(self):
        return {**asdict(self), "warnings": list(self.warnings)}


def estimate(config, seconds=900):
    """The Estimate of a config, from a dry run in another process; S4SError says why there is none.

    seconds: how long the dry run may take.
    """
    with tempfile.TemporaryDirectory(prefix="s4s-") as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(rooted(config)), encoding="utf-8", newline="\n")
        line = trainer_command("estimate", "--config", path, "--json")
        flags = {"creationflags": subprocess.CREATE_NO_WINDOW} if WINDOWS else {}
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, **flags
            )
        except subprocess.TimeoutExpired:
            raise JobError(f"The dry run took more than {seconds} seconds.") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        reason = said[-1].removeprefix("error: ")
        raise S4SError(reason if said[-1] != reason else f"The dry run failed: {reason}")
    found = json.loads(done.stdout.splitlines()[-1])  # a host's own modules may print, too
    return Estimate(**{**found, "warnings": tuple(found["warnings"])})


def check_disk(config, shape=()):
    """ConfigError unless jobs and solvers have room for this one; `shape` is the model's."""
    settings = config.settings()
    pairs = settings.samples + settings.validation + settings.held_out
    teacher = 4 * pairs * math.prod(shape)
    for folder, needed in ((jobs_home(), ROOM + teacher), (solver_folders()[0], 2**20)):
        place = next(p for p in (folder, *folder.absolute().parents) if p.is_dir())
        free = shutil.disk_usage(place).free
        if free < needed:
            raise ConfigError(
                f"{place} has {size(free)} of free disk, and {size(needed)} are needed: "
                "make room, or set S4S_HOME to a folder elsewhere."
            )


def size(count):
    """Bytes for people: 640 MB, 7.5 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def measure(config):
    """The Estimate of a config, from a few model calls in this process."""
    from s4s_core.objectives import objective

    from .models import open_model
    from .training import Plan, decoder_of

    check_disk(config)
    model = open_model(config.model)
    check_disk(config, model.shape)
    goal = objective(config.objective, decoder_of(config, model))
    trial, plan = DryRun(model, config, goal), Plan(config)
    seconds = plan.total * trial.per_call + plan.judged * trial.per_result
    overhead = 1.15  # pictures, and what the loop itself takes
    warnings = tuple(_warnings(trial, plan, seconds))
    return Estimate(
        round(seconds * overhead, 1), trial.memory, plan.total, str(trial.device), warnings
    )


def _warnings(trial, plan, seconds):
    if trial.free and trial.memory > 0.95 * trial.free:
        yield (
            f"Training needs about {size(trial.memory)} of memory and {size(trial.free)} are "
            "there: close other programs, or choose a lower resolution or precision."
        )
    if trial.batch < trial.wanted:
        yield f"Memory allows {trial.batch} samples at once instead of {trial.wanted}."
    if seconds > 86_400:
        yield "It will take more than a day: choose fewer NFEs, or less effort."
    if max(plan.fitting) >= plan.teacher_nfe:
        yield (
            f"With {max(plan.fitting)} calls a solver has nothing to learn from a teacher of "
            f"{plan.teacher_nfe}: choose fewer NFEs, or a teacher of more calls."
        )


class DryRun:
    """Times a few calls of a model at the batch that training will use, and watches memory.

    `per_call` are the seconds of what training counts as one call of one sample, `per_result` those
    of judging its result by the objective `goal`, which may have to decode it.
    """

    def __init__(self, model, config, goal):
        import torch

        from s4s_core.names import METHODS

        from .memory import Peak

        self.model, self.goal, self.torch = model, goal, torch
        self.device = torch.device(getattr(model, "device", "cpu"))
        self.gradient = METHODS[config.method].needs_gradient
        self.wanted = self.batch = min(config.settings().batch, config.settings().samples)
        peak = Peak(self.device)
        self.free, before = peak.room(), peak.bytes()
        self._measure(1)  # loads, compiles and caches what a first call must
        self.per_call, self.per_result = self._measure(1)
        self.memory = peak.bytes()
        if (self.per_call + self.per_result) * self.wanted > LONGEST_CALL:
            self.memory += (self.wanted - 1) * (self.memory - before)
            return
        found = [self._measure(self.batch) for _ in range(REPEATS)]
        self.per_call, self.per_result = map(min, zip(*found, strict=True))
        self.memory = peak.bytes()

    def _measure(self, batch):
        """Seconds per sample of a call, and of judging what it returns."""
        return self._fitting(self._call, batch), self._fitting(self._judge, batch)

    def _fitting(self, work, batch):
        """Seconds per sample; where memory runs out the batch is halved, as training will do."""
        from s4s_core.errors import TrainingError
        from s4s_core.training.memory import is_out_of_memory

        while True:
            try:
                return self._seconds(work, batch) / batch
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            if batch == 1:
                raise TrainingError(
                    "There is not enough memory for a single sample: close other programs, or "
                    "choose a lower resolution or precision."
                )
            self.batch = batch = batch // 2

    def _seconds(self, work, batch):
        from s4s_core.training.gradient import PLAIN_COST

        began = time.perf_counter()
        work(batch)
        seconds = time.perf_counter() - began
        return seconds / PLAIN_COST if self.gradient else seconds  # counts as so many without

    def _call(self, batch):
        """One call with plain noise; with its gradient where the method needs one."""
        from s4s_core.errors import ModelError
        from s4s_core.teacher import draw_noise

        torch = self.torch
        x, cond = draw_noise(self.model, batch, seed=0)
        sigma = torch.full((batch,), float(self.model.sigma_max), device=x.device)
        arguments = (x, sigma) if cond is None else (x, sigma, cond)
        with torch.inference_mode(not self.gradient):
            result = self.model.denoise(x.requires_grad_(self.gradient), *arguments[1:])
            if self.gradient:
                result.float().square().sum().backward()
            finite = bool(result.isfinite().all())  # waits for the device, too
        if not finite:
            raise ModelError(
                "The model returns NaN or infinity for plain noise: try another precision."
            )

    def _judge(self, batch):
        """The objective of as many results; with its gradient where the method needs one."""
        from s4s_core.teacher import draw_noise

        x, _ = draw_noise(self.model, batch, seed=0)
        result = x / float(self.model.sigma_max)
        with self.torch.inference_mode(not self.gradient):
            if self.gradient:
                target, result = result, result.clone().requires_grad_()
                self.goal.distance(result, target).sum().backward()
                found = result.grad
            else:
                found = self.goal.embed(result)
            float(found.sum())  # waits for the device
