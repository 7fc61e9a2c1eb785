"""Teacher pairs: noise, condition and the result that a solver shall reach from that noise."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from .atomic import write_atomic
from .classical import classical_table
from .errors import ModelError
from .sampling import sample
from .schedules import schedule
from .table import SolverTable, canonical_json

TEACHER_NFE = 20


@dataclass(frozen=True)
class Pairs:
    """Noised starts x [n, ...], conditions (or None) and the teacher's results [n, ...]."""

    x: torch.Tensor
    cond: object
    target: torch.Tensor

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        """The pairs at a slice or at a tensor of indices."""
        cond = None if self.cond is None else self.cond[index]
        return Pairs(self.x[index], cond, self.target[index])

    def batches(self, size):
        """Consecutive parts of at most `size` pairs."""
        return (self[start : start + size] for start in range(0, len(self), size))


def default_teacher(model, nfe=TEACHER_NFE, ending=0.0):
    """UniPC of order 3 at 20 calls, as the paper's (app:practical-implementation).

    The schedule is our choice: EDM's, or for flow models the uniform one. The paper takes log-SNR
    for CIFAR-10, FFHQ and AFHQv2, and others elsewhere.
    """
    name = "uniform" if model.space == "flow" else "edm"
    return classical_table("unipc-bh2", schedule(name, nfe, model, ending), 3, model.space)


def draw_noise(model, count, seed):
    """(x, conditions) of `count` runs from pure noise, the same for the same seed on any device.

    x lies on the model's `device`, if it names one.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *model.shape, generator=generator)
    x = noise.to(getattr(model, "device", "cpu")) * float(model.sigma_max)
    return x, model.conditions(count, generator)


def _key(model, teacher, count, seed):
    """Content key of a set of pairs, or None where the model or the teacher has no identity.

    A model's `fingerprint` stands for all that its results depend on: weights, guidance, prompts.
    """
    identity = getattr(model, "fingerprint", None)
    source = teacher.digest if isinstance(teacher, SolverTable) else getattr(teacher, "key", None)
    if identity is None or source is None:
        return None
    facts = [identity, source, count, seed, list(model.shape), float(model.sigma_max)]
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:32]


def _load(path, count):
    """Cached results, or None if the file is missing, damaged or of another length."""
    try:
        target = load_file(path)["target"]
    except (OSError, SafetensorError, KeyError):
        return None
    return target if len(target) == count else None


def draw_pairs(model, teacher, count, seed, batch=32, cache=None, denoise=None, tell=None):
    """`count` pairs of a seed; `teacher` is a table, or a callable (x, cond) -> result.

    `cache` is a folder: results are kept there under a content key and reused by every run that
    asks for the same ones. Only the results are stored; noise and conditions follow the seed.
    tell(n) is called when n pairs are drawn.
    """
    x, cond = draw_noise(model, count, seed)
    key = cache and _key(model, teacher, count, seed)
    path = key and Path(cache) / f"teacher-{key}.safetensors"
    target = _load(path, count) if path else None
    if target is None:
        parts = []
        for part in Pairs(x, cond, x).batches(batch):
            parts.append(_teach(teacher, part, denoise or model.denoise))
            if tell is not None:
                tell(sum(map(len, parts)))
        target = torch.cat(parts)
        if not bool(target.isfinite().all()):
            raise ModelError("The teacher's results are not finite: try another precision.")
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"target": target.contiguous().cpu()}))
    return Pairs(x, cond, target.to(x))


def _teach(teacher, part, denoise):
    with torch.no_grad():
        if isinstance(teacher, SolverTable):
            return sample(denoise, part.x, teacher, part.cond)
        return teacher(part.x, part.cond)
