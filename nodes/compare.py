"""Compare: teacher, stock samplers and a solver on the same noise, as one picture and one table."""

import difflib
import math
import time
from typing import NamedTuple

import comfy.sample
import comfy.samplers
import comfy.utils
import torch

from ..s4s_core import sample
from ..s4s_core.errors import HostError
from ..s4s_core.spaces import as_float64
from . import inputs, register, sheets
from .attach import check_solver
from .wired import in_session, teacher_of


class Compare:
    DESCRIPTION = (
        "One picture and one table: the teacher, stock samplers at equal model calls and the "
        "solver, from the same noise, with each one's error to the teacher and its seconds."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("comparison", "table")
    OUTPUT_TOOLTIPS = ("A sheet of labelled tiles.", "The same as text, best first.")
    FUNCTION = "compare"

    @classmethod
    def INPUT_TYPES(cls):
        samplers = [n for n in comfy.samplers.KSampler.SAMPLERS if n != register.NAME]
        schedulers = [n for n in comfy.samplers.KSampler.SCHEDULERS if n != register.NAME]
        others = {
            "default": "euler, dpmpp_2m, uni_pc_bh2, ipndm",
            "tooltip": "Stock samplers to compare with, separated by commas. Names as in KSampler.",
        }
        scheduler = {"tooltip": "The noise schedule of the stock samplers."}
        steps = {
            "default": 5,
            "min": 1,
            "max": 100,
            "tooltip": "Model calls of the solver and of each stock sampler.",
        }
        return {
            "required": {
                "model": inputs.model(),
                "solver": inputs.solver(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent("Each image of the batch is one column."),
                "seed": inputs.seed(),
                "steps": ("INT", steps),
                "cfg": inputs.cfg(),
                "samplers": ("STRING", others),
                "scheduler": (schedulers, scheduler),
                "teacher_sampler": inputs.teacher_sampler(samplers),
                "teacher_scheduler": inputs.teacher_scheduler(schedulers),
                "teacher_steps": inputs.teacher_steps(),
            },
            "optional": {"vae": inputs.vae("Shows the results as real images.")},
        }

    def compare(
        self,
        model,
        solver,
        positive,
        negative,
        latent_image,
        seed,
        steps,
        cfg,
        samplers,
        scheduler,
        teacher_sampler,
        teacher_scheduler,
        teacher_steps,
        vae=None,
    ):
        check_solver(solver, model.get_model_object("model_sampling"))
        solver[steps]  # a number of steps that it lacks fails at once
        names = stock_names(samplers)
        bar = comfy.utils.ProgressBar(len(names) + 2)

        def work(wired):
            contest = Contest(wired, latent_image, seed, bar)
            teacher = teacher_of(wired, teacher_sampler, teacher_scheduler, teacher_steps)
            contest.teach(teacher)
            for name in names:
                contest.stock(name, scheduler, steps)
            contest.table(f"S4S, {solver.metadata.get('name') or 'solver'}", solver[steps])
            return contest

        contest = in_session(model, [positive], negative, cfg, latent_image, seed, work)
        text = contest.text()
        return {"ui": {"text": [text]}, "result": (contest.sheet(vae), text)}


def stock_names(text):
    """Names of stock samplers from a list with commas; HostError names one that is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = comfy.samplers.KSampler.SAMPLERS
    for name in names:
        if name not in known or name == register.NAME:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise HostError(f"There is no stock sampler '{name}': use KSampler's names.{hint}")
    return list(dict.fromkeys(names))


class Entry(NamedTuple):
    """One contestant: its results, its model calls and its seconds for each image."""

    title: str
    result: torch.Tensor
    nfe: int
    seconds: float
    errors: list

    @property
    def error(self):
        return (sum(e * e for e in self.errors) / len(self.errors)) ** 0.5


class Contest:
    """Everyone from the same noise, on a model that is ready to sample."""

    def __init__(self, wired, latent, seed, bar):
        samples = torch.zeros(len(latent["samples"]), *wired.shape)
        noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
        self.wired, self.bar = wired, bar
        self.x = noise.to(wired.device) * wired.sigma_max
        self.entries, self.teacher = [], None

    def _enter(self, title, run):
        began = time.perf_counter()
        result, nfe = run()
        target = result if self.teacher is None else self.teacher.result
        # this waits for the device, and so comes before the clock is read
        gaps = as_float64(result - target).flatten(1).square().mean(1).sqrt().tolist()
        seconds = (time.perf_counter() - began) / len(result)
        return Entry(title, result, nfe, seconds, gaps)

    def teach(self, teacher):
        """The teacher, by which all others are measured; one call first warms up the model."""
        self.wired.denoise(self.x, self.x.new_full((len(self.x),), self.wired.sigma_max)).cpu()
        self.teacher = self._enter("teacher", lambda: self._teacher_run(teacher))
        self.bar.update(1)

    def _teacher_run(self, teacher):
        if callable(teacher):
            return teacher(self.x, None), teacher.nfe
        return sample(self.wired.denoise, self.x, teacher), teacher.nfe

    def stock(self, name, scheduler, nfe):
        """A stock sampler at no more than `nfe` calls: with two calls a step, half the steps."""

        def run(steps):
            choice = teacher_of(self.wired, name, scheduler, steps)
            return choice(self.x, None), choice.nfe

        entry = self._enter(name, lambda: run(nfe))
        for rounded in (math.ceil, math.floor):
            if entry.nfe > nfe:
                steps = max(1, rounded(nfe * nfe / entry.nfe))
                entry = self._enter(name, lambda steps=steps: run(steps))
        self.bar.update(1)
        self.entries.append(entry)

    def table(self, title, table):
        """A table of a solver."""
        entry = self._enter(title, lambda: (sample(self.wired.denoise, self.x, table), table.nfe))
        self.bar.update(1)
        self.entries.append(entry)

    def ranked(self):
        return sorted(self.entries, key=lambda entry: entry.error)

    def sheet(self, vae):
        """One row each: the teacher, then the nearest to it first; numbers on every tile."""
        rows = []
        for entry in [self.teacher, *self.ranked()]:
            pictures = sheets.pictures_of(self.wired.base, entry.result, vae)
            captions = [f"{error:.4f}, {entry.seconds:.2f} s" for error in entry.errors]
            rows.append(sheets.Row(f"{entry.title}, {entry.nfe} calls", pictures, captions))
        return sheets.as_image(sheets.sheet(rows))

    def text(self):
        """The table as text."""
        lines = [f"{'':<28} {'calls':>5} {'error':>8} {'seconds':>8}"]
        for entry in [self.teacher, *self.ranked()]:
            figures = f"{entry.nfe:>5} {entry.error:>8.4f} {entry.seconds:>8.2f}"
            lines.append(f"{entry.title[:28]:<28} {figures}")
        return "\n".join(lines)
