"""Run a solver inside a host that works with lists of sigmas (ComfyUI, the WebUIs).

A host's list says where a run begins, where it ends and how many model calls it makes. The levels
in between are the solver's own if the list is the host's plain schedule (`simple`). That is also
what the hosts' scheduler "s4s" gives: where the denoise is below 1, it is asked for more steps than
are run, and cannot know. Levels that the user chose otherwise are run as given.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .errors import HostError
from .metadata import hash_kind, model_hashes
from .model import Denoiser, PlainDenoiser
from .parts import classical_on, part_table
from .sampling import ModelCall, sample
from .slicing import from_node, until_node
from .spacing import lay_nodes
from .table import Array, SolverPack, SolverTable

TOLERANCE = 2e-3
"""First and last levels that differ relatively by at most this are the same: some hosts round to
float16."""

EXACT = 1e-6
"""Levels that differ relatively by at most this are the same numbers, in float32."""

FAR = 0.05
"""First noise levels that differ relatively by more than this are those of different models."""

NEARLY_ZERO = 1e-5
"""A last sigma below this share of the first counts as 0: some host schedules end that way."""

AS_GIVEN = (
    "The noise levels are not those of the scheduler 's4s' ('simple' means the same), so they ran "
    "as given, without the solver's own levels and weights."
)
UNSAMPLING = (
    "The noise levels rise: unsampling is not supported. Use a stock sampler for it, or connect "
    "sigmas that fall."
)


class HostRun(NamedTuple):
    """The table that a host's run takes, and what the user should be told of it."""

    table: SolverTable
    notice: str | None = None


def host_sigmas(pack: SolverPack, steps: int) -> torch.Tensor:
    """Return the learned levels of a number of steps, float64 [steps + 1], strictly decreasing.

    A number that the pack lacks is interpolated from the nearest table.
    """
    if steps in pack.tables and pack[steps].steps == steps:  # false for single-step tables
        return torch.tensor(pack[steps].sigmas)
    table = pack[min(pack.nfes, key=lambda nfe: (abs(nfe - steps), -nfe))]
    return torch.tensor(lay_nodes(table.sigmas, steps))


def follows(levels: torch.Tensor, sigmas: torch.Tensor) -> bool:
    """Is a list of sigmas the plain schedule of a model with these levels, or a piece of it?

    The plain schedule (`simple`) picks levels at equal distances from the model's own list, which
    ascends, and ends at 0. The same levels by another name are the same schedule.
    """
    if len(sigmas) < 2 or not bool((sigmas.diff() <= 0).all()) or not sigmas[0] > 0:
        return False
    ordered, given = levels.cpu().double(), sigmas.cpu().double()
    positive = given[given > 0]
    middles = (ordered[1:] + ordered[:-1]) / 2
    index = torch.searchsorted(middles, positive)
    if not bool(((ordered[index] - positive).abs() <= EXACT * positive).all()):
        return False
    places = (len(ordered) - 1 - index).double()
    if len(positive) < len(given):
        places = torch.cat([places, places.new_tensor([len(ordered)])])
    straight = torch.linspace(float(places[0]), float(places[-1]), len(places)).double()
    return bool(((places - straight).abs() <= 1).all())


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(a - b) <= EXACT * np.maximum(np.abs(a), np.abs(b)))


def _learned_nodes(pack: SolverPack, sigmas: Array) -> SolverTable | None:
    """Return the piece of a table whose nodes the sigmas are, if there is one.

    A single-step table has more calls than nodes; hosts are given levels in between.
    """
    count = len(sigmas)
    if count - 1 in pack.tables and _same(host_sigmas(pack, count - 1).numpy(), sigmas).all():
        return pack[count - 1]
    for table in sorted(pack.named.values(), key=lambda table: table.steps != count - 1):
        for start in range(len(table.sigmas) - count + 1):
            if _same(table.sigmas[start : start + count], sigmas).all():
                return from_node(until_node(table, start + count - 1), start)
    return None


def _checked(sigmas: npt.ArrayLike, ending: float) -> Array:
    """Return a host's levels, falling; raise HostError if nothing can run over them."""
    levels = np.asarray(sigmas, dtype=np.float64)
    if not np.isfinite(levels).all():
        raise HostError("The noise levels are not finite numbers. Connect others.")
    if (np.diff(levels) > 0).any():
        raise HostError(UNSAMPLING)
    if levels[0] <= ending * (1 + TOLERANCE):
        raise HostError("This run begins where the solver ends. Raise the denoise strength.")
    if levels[0] == levels[-1]:
        raise HostError("This run begins and ends at one noise level. Run more of the steps.")
    return levels


def host_run(
    pack: SolverPack,
    sigmas: npt.ArrayLike,
    lowest: float,
    plain: bool = True,
    guided: bool = True,
) -> HostRun:
    """Return what runs over a host's list of sigmas, from the first to the last.

    Consecutive nodes of a table run exactly those. `plain`: the list is the host's plain schedule,
    which only says where the run begins, where it ends, and its number of calls. A run of the whole
    way takes the table of as many calls, and any other one a part (see parts.py). Other lists run
    as they are. `lowest` is the model's lowest level above 0, and `guided` says whether the
    guidance of each call can be set.
    """
    levels = _checked(sigmas, pack.ending)
    learned = _learned_nodes(pack, levels)
    if learned is not None:
        return HostRun(learned)
    if not plain:
        form = pack[pack.nfes[0]].form
        kept = levels[np.append(True, np.diff(levels) < 0)]
        return HostRun(classical_on(kept, form, pack.space), AS_GIVEN)
    calls, first, last = len(levels) - 1, float(levels[0]), float(levels[-1])
    last = max(last if last > NEARLY_ZERO * first else 0.0, pack.ending)
    if not _is_whole(pack, first) or last > pack.ending * (1 + TOLERANCE):
        return HostRun(part_table(pack, first, last, calls, lowest, guided))
    if calls not in pack.tables:
        numbers = ", ".join(map(str, pack.nfes))
        raise HostError(
            f"This solver has no table for {calls} steps. Set steps to one of {numbers} "
            "and the scheduler to 's4s'."
        )
    return HostRun(pack[calls])


def _is_whole(pack: SolverPack, first: float) -> bool:
    """Does a run from this level go the whole way? Near 1, levels of flow models lie closer."""
    tolerance = EXACT if pack.space == "flow" else TOLERANCE
    return pack.begins * (1 - tolerance) <= first <= pack.begins * (1 + FAR)


def run_in_host(
    denoise: Denoiser | PlainDenoiser,
    x: torch.Tensor,
    pack: SolverPack,
    sigmas: torch.Tensor | Sequence[float],
    lowest: float,
    callback: Callable[[ModelCall], object] | None = None,
    keep: tuple[torch.Tensor, torch.Tensor] | None = None,
    guided: bool = False,
    plain: bool = True,
    tell: Callable[[str], object] | None = None,
) -> torch.Tensor:
    """Run a pack from x, noised to sigmas[0], over a host's list of sigmas.

    See `sample` for `callback` and `keep`, and `host_run` for `lowest` and `plain`. With fewer than
    two sigmas, x is returned unchanged. `guided`: can `denoise` be told the guidance of each call?
    If not, it stays as it is. `tell` gets what the user should know.
    """
    if len(sigmas) < 2:
        return x
    levels = torch.as_tensor(sigmas, dtype=torch.float64, device="cpu")
    table, notice = host_run(pack, levels.numpy(), lowest, plain, guided)
    if notice is not None and tell is not None:
        tell(notice)
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
    if sigma_max is not None and abs(pack.begins - sigma_max) > FAR * sigma_max:
        warnings.append(
            f"The solver begins at noise level {pack.begins:.4g}, this model at {sigma_max:.4g}."
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
