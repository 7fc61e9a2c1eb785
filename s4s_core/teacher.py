"""Teacher pairs: noise, condition, and the result that a solver should reach from that noise."""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from .atomic import StrPath, write_atomic
from .classical import classical_table
from .contract import draw_conditions
from .errors import ModelError, TrainingError
from .model import Condition, Denoiser, Model, all_rows, writable
from .regular import is_file
from .sampling import check_x0, sample
from .schedules import schedule
from .spaces import alpha, as_float64
from .table import SolverTable, canonical_json

TEACHER_NFE = 20

Teacher: TypeAlias = SolverTable | Callable[[torch.Tensor, Condition | None], torch.Tensor]
"""A table, or a function (x, cond) -> result.

A function may have the attributes `nfe` (model calls per sample), `name`, `key` (text that
identifies it, without which its results are not cached), and `below`: below(level) is the teacher
that starts at a lower noise level, without which parts of the way cannot be trained.
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

CHOICE_PAIRS = 2
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
    known: dict[str, float] | None = None,
    progress: Callable[[int], object] | None = None,
) -> tuple[str, int]:
    """Return the (solver, order) whose results move least when its calls are doubled.

    Under guidance the highest order is not the nearest to the exact solution, so it is measured,
    on two runs from noise of its own. Results that are not finite lose.

    known: what was measured before; it is added to. progress(n) is called when the nth solver is.
    """
    x, cond = draw_noise(model, CHOICE_PAIRS, _CHOICE_SEED)
    pairs = Pairs(x, cond, x)
    known = {} if known is None else known

    def results(solver: tuple[str, int], calls: int) -> torch.Tensor:
        teacher = default_teacher(model, calls, ending, solver)
        parts = [_render(teacher, p, denoise or model.denoise) for p in pairs.batches(batch)]
        return as_float64(torch.cat(parts))

    def movement(solver: tuple[str, int]) -> float:
        moved = float((results(solver, nfe) - results(solver, 2 * nfe)).square().mean())
        return moved if math.isfinite(moved) else sys.float_info.max

    for count, solver in enumerate(TEACHERS, 1):
        name = "{} {}".format(*solver)
        if name not in known:
            known[name] = movement(solver)
            if progress is not None:
                progress(count)
    return min(TEACHERS, key=lambda solver: known["{} {}".format(*solver)])


def draw_noise(model: Model, count: int, seed: int) -> tuple[torch.Tensor, Condition | None]:
    """Draw the noise and conditions of `count` runs; the same for the same seed on any device.

    The noise is on the model's `device` if it has one, and else on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *model.shape, generator=generator)
    x = noise.to(getattr(model, "device", "cpu")) * float(model.sigma_max)
    return x, draw_conditions(model, count, generator)


def no_pairs(model: Model) -> Pairs:
    """Return an empty set of pairs."""
    x = torch.zeros(0, *model.shape, device=getattr(model, "device", "cpu"))
    return Pairs(x, None, x)


def can_be_shared(model: Model, teacher: Teacher) -> bool:
    """Do the model and the teacher say who they are, so that other runs may use their results?

    A model's `fingerprint` covers everything its results depend on: weights, guidance, prompts.
    """
    return None not in _identities(model, teacher)


def _identities(model: Model, teacher: Teacher) -> tuple[str | None, str | None]:
    known = teacher.digest if isinstance(teacher, SolverTable) else getattr(teacher, "key", None)
    return getattr(model, "fingerprint", None), known


def _key(
    model: Model, teacher: Teacher, count: int, seed: int, whole: Teacher | None = None
) -> str | None:
    """Return the content key of a set of pairs, if it can be shared.

    `whole` is the teacher whose results the pairs start from, if they start below full strength.
    """
    if not can_be_shared(model, teacher):
        return None
    names = _identities(model, teacher)
    facts = [*names, count, seed, list(model.shape), float(model.sigma_max)]
    if whole is not None:
        facts += _identities(model, whole)
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:32]


class ResultFiles:
    """The teacher's results on disk: one file for each batch, named after its first pair.

    So nothing is lost when drawing stops. A damaged file is drawn again; one of version 0.1 has no
    checksum.
    """

    def __init__(self, folder: StrPath, key: str) -> None:
        self.folder, self.key = Path(folder), key

    def _path(self, first: int) -> Path:
        return self.folder / f"teacher-{self.key}{f'-{first}' if first else ''}.safetensors"

    def load(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the batches so far of the results from the starts x."""
        parts: list[torch.Tensor] = []
        while (first := sum(map(len, parts))) < len(x):
            part = self._read(self._path(first))
            if part is None or part.shape[1:] != x.shape[1:] or not 0 < len(part) <= len(x) - first:
                break
            parts.append(part.to(x))
        return parts

    def _read(self, path: Path) -> torch.Tensor | None:
        """Return the results in a file; None if there is none or it is damaged."""
        try:
            if not is_file(path):
                return None
            with safe_open(path, "pt") as file:
                part: torch.Tensor = file.get_tensor("target")
                digest = (file.metadata() or {}).get("sha256")
        except (OSError, SafetensorError):
            return None
        sound = part.is_floating_point() and bool(part.isfinite().all())
        return part if sound and digest in (None, _sha256(part)) else None

    def save(self, first: int, part: torch.Tensor) -> None:
        """Save the batch that begins with pair `first`."""
        part, path = part.contiguous().cpu(), self._path(first)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"target": part}, {"sha256": _sha256(part)}))
        except OSError as error:
            raise TrainingError(
                f"Could not save the teacher's results to {path}: {error.strerror or error}."
            ) from error


def _sha256(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's bytes, whatever its type."""
    return hashlib.sha256(tensor.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class Drawing:
    """How pairs are drawn.

    cache: a folder where results are stored and reused by later runs, under `key` or else a key of
    their content. Only the results are stored: the starts follow from the seed. denoise: replaces
    the model's, for example to count calls. progress(n) is called after n pairs are drawn, first
    with those that were stored.
    """

    batch: int = 32
    cache: StrPath | None = None
    denoise: Denoiser | None = None
    progress: Callable[[int], object] | None = None
    key: str | None = None

    def results(self, model: Model, teacher: Teacher, starts: Pairs, key: str | None) -> Pairs:
        """Return the starts with the teacher's results as targets."""
        key = self.key or key
        files = ResultFiles(self.cache, key) if self.cache and key else None
        parts = files.load(starts.x) if files else []
        drawn = sum(map(len, parts))
        self._report(drawn)
        for part in starts[drawn:].batches(self.batch):
            parts.append(_render(teacher, part, self.denoise or model.denoise).to(starts.x))
            if not bool(parts[-1].isfinite().all()):
                raise ModelError(
                    "The teacher's results are not finite (NaN or infinity): try another precision."
                )
            if files:
                files.save(drawn, parts[-1])
            drawn += len(part)
            self._report(drawn)
        return Pairs(starts.x, starts.cond, torch.cat(parts))

    def _report(self, drawn: int) -> None:
        if self.progress is not None:
            self.progress(drawn)


def draw_pairs(
    model: Model,
    teacher: Teacher,
    count: int,
    seed: int,
    batch: int = 32,
    cache: StrPath | None = None,
    denoise: Denoiser | None = None,
    progress: Callable[[int], object] | None = None,
    key: str | None = None,
) -> Pairs:
    """Draw `count` pairs of a seed; the other arguments are those of `Drawing`."""
    x, cond = draw_noise(model, count, seed)
    drawing = Drawing(batch, cache, denoise, progress, key)
    return drawing.results(model, teacher, Pairs(x, cond, x), _key(model, teacher, count, seed))


def draw_pairs_below(
    model: Model,
    teacher: Teacher,
    pictures: Pairs,
    whole: Teacher,
    seed: int,
    drawing: Drawing,
) -> Pairs:
    """Draw pairs that start below full strength: pictures, noised to the model's sigma_max.

    model: the model `Below` that level. teacher: goes from there. pictures: pairs of the whole way,
    whose targets are the pictures, by the teacher `whole`.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(pictures.x.shape, generator=generator).to(pictures.x)
    level = torch.tensor(float(model.sigma_max), dtype=torch.float64)
    x = float(alpha(model.space, level)) * pictures.target + float(level) * noise
    key = _key(model, teacher, len(x), seed, whole)
    return drawing.results(model, teacher, Pairs(x, pictures.cond, x), key)


def _render(teacher: Teacher, part: Pairs, denoise: Denoiser) -> torch.Tensor:
    with torch.no_grad():
        cond = all_rows(part.cond, len(part.x))
        if isinstance(teacher, SolverTable):
            return sample(denoise, part.x, teacher, cond)
        result: object = teacher(writable(part.x), writable(cond))
        return check_x0(result, part.x, "teacher", "its function of x and cond").clone()
