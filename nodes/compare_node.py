"""Compare: the teacher, stock samplers and a solver from the same noise, as a sheet and a table."""

import difflib
import math
import time
from functools import partial
from typing import Any, NamedTuple

import comfy.sample
import comfy.utils
import torch

from ..s4s_core.app import pictures
from ..s4s_core.app.comfyui import CONDITIONING, LATENT, MODEL, VAE, as_image, pictures_of
from ..s4s_core.errors import HostError
from ..s4s_core.spaces import as_float64
from ..s4s_core.table import SolverPack, SolverTable
from ..s4s_core.teacher import default_teacher
from . import inputs
from .inputs import InputTypes
from .sampler import check_solver
from .session import HostTeacher, SessionModel, host_teacher, make_teacher, run_in_session


class Compare:
    DESCRIPTION = (
        "Compares the teacher, stock samplers with the same number of model calls and the solver "
        "from the same noise: one image and one table, with each error to the teacher and time."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("comparison", "table")
    OUTPUT_TOOLTIPS = ("A sheet of labelled images.", "The same as text, best first.")
    FUNCTION = "compare"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        samplers = {
            "default": "euler, dpmpp_2m, uni_pc_bh2, ipndm",
            "tooltip": "Stock samplers to compare with, separated by commas, named as in KSampler.",
        }
        steps = {
            "default": 5,
            "min": 1,
            "max": 100,
            "tooltip": "Model calls of the solver and of each stock sampler.",
        }
        scheduler = {"tooltip": "The noise schedule of the stock samplers."}
        return {
            "required": {
                "model": inputs.model(),
                "solver": inputs.solver(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent("Each image of the batch becomes a column."),
                "seed": inputs.seed(),
                "steps": ("INT", steps),
                "cfg": inputs.cfg(),
                "samplers": ("STRING", samplers),
                "scheduler": (inputs.stock_schedulers(), scheduler),
                "teacher_sampler": inputs.teacher_sampler(),
                "teacher_scheduler": inputs.teacher_scheduler(),
                "teacher_steps": inputs.teacher_steps(),
            },
            "optional": {"vae": inputs.vae("Shows the results as real images.")},
        }

    def compare(
        self,
        model: MODEL,
        solver: SolverPack,
        positive: CONDITIONING,
        negative: CONDITIONING,
        latent_image: LATENT,
        seed: int,
        steps: int,
        cfg: float,
        samplers: str,
        scheduler: str,
        teacher_sampler: str,
        teacher_scheduler: str,
        teacher_steps: int,
        vae: VAE | None = None,
    ) -> dict[str, Any]:
        check_solver(solver, model.get_model_object("model_sampling"))
        table = solver[steps]  # an unknown step count fails before anything runs
        names = parse_samplers(samplers)
        bar = comfy.utils.ProgressBar(len(names) + 2)

        def work(ready: SessionModel) -> Comparison:
            comparison = Comparison(ready, latent_image, seed, bar)
            teacher = make_teacher(ready, teacher_sampler, teacher_scheduler, teacher_steps)
            comparison.add_teacher(
                teacher if isinstance(teacher, HostTeacher) else quick_teacher(ready, teacher)
            )
            for name in names:
                comparison.add_stock(name, scheduler, steps)
            comparison.add_table(f"S4S, {solver.metadata.get('name') or 'solver'}", table)
            return comparison

        wiring = model, [positive], negative, cfg, latent_image, seed
        comparison = run_in_session(*wiring, work, most=len(latent_image["samples"]))
        text = comparison.text()
        return {"ui": {"text": [text]}, "result": (comparison.sheet(vae), text)}


def quick_teacher(model: SessionModel, calls: int) -> SolverTable:
    """Return UniPC: of order 2 under guidance, where a higher one is further from the truth.

    Training measures that, which costs more than a comparison.
    """
    return default_teacher(model, calls, solver=("unipc-bh2", 2 if model.takes_guidance else 3))


def parse_samplers(text: str) -> list[str]:
    """Return the stock samplers in a comma-separated list; raise HostError on an unknown name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = inputs.stock_samplers()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise HostError(f"There is no stock sampler '{name}'. Use KSampler's names.{hint}")
    return names


class Entry(NamedTuple):
    """The results of one sampler, its model calls, its seconds per image and its errors."""

    title: str
    result: torch.Tensor
    nfe: int
    seconds: float
    errors: list[float]

    @property
    def error(self) -> float:
        return float((sum(e * e for e in self.errors) / len(self.errors)) ** 0.5)


class Comparison:
    """Runs several samplers from the same noise; the teacher goes first."""

    def __init__(self, model: SessionModel, latent: LATENT, seed: int, bar: Any) -> None:
        samples = torch.zeros(len(latent["samples"]), *model.shape)
        noise = comfy.sample.prepare_noise(samples, seed, latent.get("batch_index"))
        self.model, self.bar = model, bar
        self.x = noise.to(model.device) * model.sigma_max
        self.entries: list[Entry] = []

    def add_teacher(self, teacher: HostTeacher | SolverTable) -> None:
        """Run the teacher, which all others are measured against, after one call to warm up."""
        x = self.x[: self.model.batch]
        self.model.denoise(x, x.new_full((len(x),), self.model.sigma_max)).cpu()
        self._add(self._measure("teacher", teacher))

    def add_stock(self, name: str, scheduler: str, nfe: int) -> None:
        """Run a stock sampler with at most `nfe` calls: at two calls a step, half the steps."""
        sampler = partial(host_teacher, self.model, name, scheduler)
        entry = self._measure(name, sampler(nfe))
        for rounded in (math.ceil, math.floor):
            if entry.nfe > nfe:
                steps = max(1, rounded(nfe * nfe / entry.nfe))
                entry = self._measure(name, sampler(steps))
        self._add(entry)

    def add_table(self, title: str, table: SolverTable) -> None:
        """Run a solver table."""
        self._add(self._measure(title, table))

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.bar.update(1)

    def _measure(self, title: str, solver: HostTeacher | SolverTable) -> Entry:
        began = time.perf_counter()
        result = self.model.run(solver, self.x)
        target = self.entries[0].result if self.entries else result
        # this waits for the device, so it comes before reading the clock
        errors = as_float64(result - target).flatten(1).square().mean(1).sqrt().tolist()
        seconds = (time.perf_counter() - began) / len(result)
        return Entry(title, result, solver.nfe, seconds, errors)

    def ranked(self) -> list[Entry]:
        """Return the teacher, then the others, the closest to it first."""
        teacher, *others = self.entries
        return [teacher, *sorted(others, key=lambda entry: entry.error)]

    def sheet(self, vae: VAE | None) -> torch.Tensor:
        """Return an IMAGE with one row per sampler; each picture shows its error and time."""
        rows = []
        for entry in self.ranked():
            images = pictures_of(self.model.base, entry.result, vae)
            captions = [f"{error:.4f}, {entry.seconds:.2f} s" for error in entry.errors]
            rows.append(pictures.Row(f"{entry.title}, {entry.nfe} calls", images, captions))
        return as_image(pictures.sheet(rows))

    def text(self) -> str:
        """Return the comparison as a table of text."""
        lines = [f"{'':<28} {'calls':>5} {'error':>8} {'seconds':>8}"]
        for entry in self.ranked():
            figures = f"{entry.nfe:>5} {entry.error:>8.4f} {entry.seconds:>8.2f}"
            lines.append(f"{entry.title[:28]:<28} {figures}")
        return "\n".join(lines)
