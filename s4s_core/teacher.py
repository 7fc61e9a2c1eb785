"""Teacher pairs: noise, condition, and the result that a solver should reach from that noise."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from .atomic import write_atomic
from .classical import classical_table
from .errors import ModelError
from .model import Condition, Denoiser, Model
from .sampling import sample
from .schedules import schedule
from .spaces import as_float64
from .table import SolverTable, canonical_json

TEACHER_NFE = 20

Teacher: TypeAlias = SolverTable | Callable[[torch.Tensor, Condition | None], torch.Tensor]
"""A table, or a function (x, cond) -> result.

A function may have the attributes `nfe` (model calls per sample), `name`, and `key` (text that
identifies it, without which its results are not cached).
"""


@dataclass(frozen=True)
class Pairs:
    """Noise x [n, ...], conditions (or None) and the teacher's results [n, ...]."""

    x: torch.Tensor
    cond: Condition | None
    target: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: slice | torch.Tensor) -> "Pairs":
        """Return the pairs at a slice or at a tensor of indices."""
        cond = None if self.cond is None else self.cond[index]
        return Pairs(self.x[index], cond, self.target[index])

    def batches(self, size: int) -> Iterator["Pairs"]:
        """Split into consecutive parts of at most `size` pairs."""
        return (self[start : start + size] for start in range(0, len(self), size))


TEACHERS = (("unipc-bh2", 2), ("unipc-bh2", 3), ("dpmpp", 2))
"""What `choose_teacher` chooses from."""

CHOICE_PAIRS = 4
_CHOICE_SEED = 700_000_001


def default_teacher(
    model: Model,
    nfe: int = TEACHER_NFE,
    ending: float = 0.0,
    solver: tuple[str, int] = ("unipc-bh2", 3),
) -> SolverTable:
    """Return a classical solver as a teacher: by default UniPC of order 3 at 20 calls, the paper's
    (app:practical-implementation).

    The schedule is our choice: EDM, or uniform for flow models. The paper uses log-SNR for
    CIFAR-10, FFHQ and AFHQv2, and others elsewhere.
    """
    name, order = solver
    levels = schedule("uniform" if model.space == "flow" else "edm", nfe, model, ending)
    return classical_table(name, levels, order, model.space)


def choice_calls(nfe: int = TEACHER_NFE) -> int:
    """Return the model calls of `choose_teacher`."""
    return len(TEACHERS) * CHOICE_PAIRS * 3 * nfe


def choose_teacher(
    model: Model,
    nfe: int = TEACHER_NFE,
    ending: float = 0.0,
    denoise: Denoiser | None = None,
    batch: int = CHOICE_PAIRS,
) -> tuple[str, int]:
    """Return the (solver, order) whose results move least when its calls are doubled.

    Under guidance the highest order is not the nearest to the exact solution, so it is measured,
    on four runs from noise of its own. Results that are not finite lose.
    """
    x, cond = draw_noise(model, CHOICE_PAIRS, _CHOICE_SEED)
    pairs = Pairs(x, cond, x)

    def results(solver: tuple[str, int], calls: int) -> torch.Tensor:
        teacher = default_teacher(model, calls, ending, solver)
        parts = [_render(teacher, p, denoise or model.denoise) for p in pairs.batches(batch)]
        return as_float64(torch.cat(parts))

    def movement(solver: tuple[str, int]) -> float:
        moved = float((results(solver, nfe) - results(solver, 2 * nfe)).square().mean())
        return moved if math.isfinite(moved) else math.inf

    return min(TEACHERS, key=movement)


def draw_noise(model: Model, count: int, seed: int) -> tuple[torch.Tensor, Condition | None]:
    """Draw the noise and conditions of `count` runs; the same for the same seed on any device.

    The noise is on the model's `device` if it has one, and else on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *model.shape, generator=generator)
    x = noise.to(getattr(model, "device", "cpu")) * float(model.sigma_max)
    return x, model.conditions(count, generator)


def _key(model: Model, teacher: Teacher, count: int, seed: int) -> str | None:
    """Return the content key of a set of pairs; None if the model or the teacher has no identity.

    A model's `fingerprint` covers everything its results depend on: weights, guidance, prompts.
    """
    identity = getattr(model, "fingerprint", None)
    source = teacher.digest if isinstance(teacher, SolverTable) else getattr(teacher, "key", None)
    if identity is None or source is None:
        return None
    facts = [identity, source, count, seed, list(model.shape), float(model.sigma_max)]
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:32]


def _load(path: Path, count: int) -> torch.Tensor | None:
    """Return cached results; None if the file is missing, damaged or has another length."""
    try:
        target = load_file(path)["target"]
    except (OSError, SafetensorError, KeyError):
        return None
    return target if len(target) == count else None


def draw_pairs(
    model: Model,
    teacher: Teacher,
    count: int,
    seed: int,
    batch: int = 32,
    cache: str | os.PathLike[str] | None = None,
    denoise: Denoiser | None = None,
    progress: Callable[[int], object] | None = None,
) -> Pairs:
    """Draw `count` pairs of a seed.

    `cache` is a folder where results are stored under a content key and reused by later runs. Only
    the results are stored: noise and conditions follow from the seed. progress(n) is called after n
    pairs are drawn.
    """
    x, cond = draw_noise(model, count, seed)
    key = _key(model, teacher, count, seed) if cache else None
    path = Path(cache) / f"teacher-{key}.safetensors" if cache and key else None
    target = _load(path, count) if path else None
    if target is None:
        parts: list[torch.Tensor] = []
        for part in Pairs(x, cond, x).batches(batch):
            parts.append(_render(teacher, part, denoise or model.denoise))
            if progress is not None:
                progress(sum(map(len, parts)))
        target = torch.cat(parts)
        if not bool(target.isfinite().all()):
            raise ModelError(
                "The teacher's results are not finite (NaN or infinity): try another precision."
            )
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"target": target.contiguous().cpu()}))
    return Pairs(x, cond, target.to(x))


def _render(teacher: Teacher, part: Pairs, denoise: Denoiser) -> torch.Tensor:
    with torch.no_grad():
        if isinstance(teacher, SolverTable):
            return sample(denoise, part.x, teacher, part.cond)
        return teacher(part.x, part.cond)
