"""Run a solver inside a host that works with lists of sigmas (ComfyUI, the WebUIs).

The host's scheduler asks for a number of steps and gets `host_sigmas`; its sampler is given some or
all of these sigmas and calls `run_in_host`. At denoise strengths below 1 hosts ask for more steps
than they run, so a scheduler cannot tell whether a missing length matters: it interpolates. The
sampler sees where a run begins and refuses only a full run at a missing length.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from .errors import HostError
from .metadata import hash_kind, model_hashes
from .model import Denoiser, PlainDenoiser
from .sampling import ModelCall, sample
from .slicing import from_node, lay_nodes, nearest_node, until_node
from .table import Array, SolverPack, SolverTable

TOLERANCE = 2e-3
"""Noise levels that differ relatively by at most this are the same: some hosts round to float16."""

FAR = 0.05
"""First noise levels that differ relatively by more than this are those of different models."""

NEARLY_ZERO = 1e-5
"""A last sigma below this share of the first counts as 0: some host schedules end that way."""


def host_sigmas(pack: SolverPack, steps: int) -> torch.Tensor:
    """Return the steps + 1 strictly decreasing float64 nodes for a host's scheduler.

    A length that the pack lacks is interpolated from the nearest table.
    """
    if steps in pack.tables and pack[steps].steps == steps:  # false for single-step tables
        return torch.tensor(pack[steps].sigmas)
    table = pack[min(pack.nfes, key=lambda nfe: (abs(nfe - steps), -nfe))]
    return torch.tensor(lay_nodes(table, steps))


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(a - b) <= TOLERANCE * np.maximum(np.abs(a), np.abs(b)))


def _find_nodes(table: SolverTable, sigmas: Array) -> tuple[int, int] | None:
    """Return the first and the last node if `sigmas` are consecutive nodes of the table."""
    count = len(sigmas)
    for start in range(len(table.sigmas) - count + 1):
        if _same(table.sigmas[start : start + count], sigmas).all():
            return start, start + count - 1
    return None


def table_for(pack: SolverPack, sigmas: npt.ArrayLike) -> SolverTable:
    """Return the table that runs over a host's list of sigmas, from the first to the last.

    Consecutive nodes of a table run exactly those. A run from the first node uses the table with
    that number of steps. Any other run begins in the middle: each table is entered at its node
    nearest to the first sigma, which is moved there, and the table wins whose number of remaining
    calls is nearest to the host's. The last two run to the end of the table, so a list that stops
    above it is refused.
    """
    sigmas = np.asarray(sigmas, dtype=np.float64)
    steps, first = len(sigmas) - 1, float(sigmas[0])
    for nfe in sorted(pack.nfes, key=lambda nfe: nfe != steps):
        nodes = _find_nodes(pack[nfe], sigmas)
        if nodes is not None:
            start, stop = nodes
            return from_node(until_node(pack[nfe], stop), start)
    begins, numbers = pack[pack.nfes[0]].sigmas[0], ", ".join(map(str, pack.nfes))
    if sigmas[-1] > max(_ending(pack) * (1 + TOLERANCE), NEARLY_ZERO * begins):
        raise HostError(
            f"This solver cannot stop at noise level {sigmas[-1]:.4g}. Let it run to the end, "
            f"or split the sigmas of the scheduler 's4s' at one of {numbers} steps."
        )
    if first >= begins * (1 - TOLERANCE):
        if steps not in pack.tables:
            raise HostError(
                f"This solver has no table for {steps} steps. Set steps to one of {numbers} "
                "and the scheduler to 's4s'."
            )
        return pack[steps]
    return _enter(pack, steps, first)


def _ending(pack: SolverPack) -> float:
    """The noise level that every table of a pack reaches."""
    return max(pack[nfe].ending for nfe in pack.nfes)


def _entry_node(table: SolverTable, sigma: float) -> int:
    """Return the node nearest to `sigma` whose next node lies below it."""
    start = nearest_node(table, sigma)
    return start if table.sigmas[start + 1] < sigma * (1 - TOLERANCE) else start + 1


def _enter(pack: SolverPack, steps: int, sigma: float) -> SolverTable:
    """Return the rest, from `sigma` on, of the table with about `steps` calls left."""
    if sigma <= _ending(pack) * (1 + TOLERANCE):
        raise HostError("This run begins where the solver ends. Raise the denoise strength.")

    def distance(nfe: int) -> tuple[int, float]:
        table = pack[nfe]
        start = _entry_node(table, sigma)
        left = table.nfe - start * table.nfe_per_step
        return abs(left - steps), abs(np.log(table.sigmas[start] / sigma))

    table = pack[min(pack.nfes, key=distance)]
    return from_node(table, _entry_node(table, sigma), sigma)


def run_in_host(
    denoise: Denoiser | PlainDenoiser,
    x: torch.Tensor,
    pack: SolverPack,
    sigmas: torch.Tensor | Sequence[float],
    callback: Callable[[ModelCall], object] | None = None,
    keep: tuple[torch.Tensor, torch.Tensor] | None = None,
    guided: bool = False,
) -> torch.Tensor:
    """Run a pack from x, noised to sigmas[0], over a host's list of sigmas.

    See `sample` for `callback` and `keep`. With fewer than two sigmas, x is returned unchanged.
    `guided`: can `denoise` be told the guidance of each call? If not, it stays as it is.
    """
    if len(sigmas) < 2:
        return x
    levels = torch.as_tensor(sigmas, dtype=torch.float64, device="cpu")
    table = table_for(pack, levels.numpy())
    if not guided:
        table = table.replace(guidance=None)
    return sample(denoise, x, table, callback=callback, keep=keep)


def require_space(pack: SolverPack, space: str) -> None:
    """Raise HostError unless the pack is for models of that space."""
    if pack.space != space:
        kinds = {"ve": "noise or v-prediction models", "flow": "flow models (SD3, Flux)"}
        raise HostError(
            f"This solver is for {kinds[pack.space]}, but the model is one of the "
            f"{kinds[space]}. Load a solver for this model, or train one."
        )


def image_metadata(pack: SolverPack, nfe: int | None) -> dict[str, str | int | None]:
    """Return what an image's metadata says about the solver that made it."""
    name = pack.metadata.get("name") or "unnamed"
    return {"name": name[:200], "hash": pack.digest[:12], "nfe": nfe}


def mismatches(
    pack: SolverPack,
    *,
    model_name: str | None = None,
    model_hash: str | None = None,
    cfg: float | None = None,
    width: int | None = None,
    height: int | None = None,
    sigma_max: float | None = None,
) -> list[str]:
    """Return a warning for everything that differs from the solver's training.

    Unknown values are not compared; hashes only if both are of the same kind.
    """
    about, warnings = pack.metadata, []
    trained = about.get("model", {})
    trained_hash = model_hashes(about).get(hash_kind(model_hash or ""))
    if model_hash and trained_hash and model_hash != trained_hash:
        warnings.append(_other_model(trained.get("name"), trained_hash, model_name, model_hash))
    begins = float(pack[pack.nfes[0]].sigmas[0])
    if sigma_max is not None and abs(begins - sigma_max) > FAR * sigma_max:
        warnings.append(
            f"The solver begins at noise level {begins:.4g}, this model at {sigma_max:.4g}."
        )
    low, high = about.get("cfg", (None, None))
    if cfg is not None and low is not None and not low - 1e-3 <= cfg <= high + 1e-3:
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        warnings.append(f"The solver was trained for CFG {span}, this run has CFG {cfg:g}.")
    size = about.get("resolution")
    if width and height and size and (width, height) != tuple(map(int, size)):
        warnings.append(
            f"The solver was trained at {size[0]:g}x{size[1]:g}, this run is {width}x{height}."
        )
    return warnings


def _other_model(trained: object, trained_hash: str, name: str | None, model_hash: str) -> str:
    """Return a warning with both models' names, or hashes where the names are equal or unknown."""
    if trained and trained == name:
        return (
            f"The solver was trained for another version of {_short(name)} "
            f"({_short_hash(trained_hash)}, this one is {_short_hash(model_hash)})."
        )
    return (
        f"The solver was trained for the model {_short(trained or trained_hash)}, "
        f"this one is {_short(name or model_hash)}."
    )


def _short_hash(text: str) -> str:
    """Return the first digits of a hash, without its kind."""
    return text.rpartition(":")[2][:8]


def _short(text: object) -> str:
    return str(text)[:80]
