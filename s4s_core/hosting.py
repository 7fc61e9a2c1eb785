"""A solver inside a host that thinks in lists of sigmas (ComfyUI, the WebUIs).

The host's scheduler asks for a number of steps and gets `host_sigmas`; the host then hands some or
all of these to its sampler, which is `run_in_host`. A scheduler cannot know why it is asked for a
length that the pack lacks (below full strength hosts ask for more steps than they run), so it
interpolates; the sampler, which sees where a run begins, refuses only a full run at such a length.
"""

import numpy as np
import torch

from .errors import HostError
from .metadata import hash_kind, model_hashes
from .sampling import sample
from .slicing import head, nearest_node, tail

TOLERANCE = 2e-3
"""Relative difference up to which two noise levels are the same: some hosts round to float16."""

NOTHING = 1e-5
"""What some schedules of hosts end at in place of 0, as a share of the first level."""


def host_sigmas(pack, steps):
    """The steps + 1 nodes that a host's scheduler returns for `steps`, float64, all different.

    A length that the pack lacks is interpolated from the nearest table: from its first node to its
    ending, in log sigma, and in sigma itself where a gap ends at 0.
    """
    if steps in pack.tables and pack[steps].steps == steps:  # not so where a step takes two calls
        return torch.tensor(pack[steps].sigmas)
    table = pack[min(pack.nfes, key=lambda nfe: (abs(nfe - steps), -nfe))]
    places = np.linspace(0, table.steps, steps + 1)
    before = np.minimum(places.astype(int), table.steps - 1)
    share, above, below = places - before, table.sigmas[before], table.sigmas[before + 1]
    between = above ** (1 - share) * below**share
    return torch.tensor(np.where(below > 0, between, above * (1 - share)))


def _same(a, b):
    return np.abs(a - b) <= TOLERANCE * np.maximum(np.abs(a), np.abs(b))


def _slice(table, sigmas):
    """(start, stop) of the given sigmas among the table's nodes, or None."""
    count = len(sigmas)
    for start in range(len(table.sigmas) - count + 1):
        if _same(table.sigmas[start : start + count], sigmas).all():
            return start, start + count - 1
    return None


def table_for(pack, sigmas):
    """The table that runs over a host's list of sigmas, from the first to the last of them.

    Sigmas that are consecutive nodes of a table run just these. A run from the first node on takes
    the table of as many steps. Any other begins in the middle: of the tables, each entered at its
    node nearest to the first sigma (which is moved there), the one whose remaining calls are
    nearest to what the host asks for. These two run to the table's ending, so a list that stops
    above it is refused.
    """
    sigmas = np.asarray(sigmas, dtype=np.float64)
    steps, first = len(sigmas) - 1, sigmas[0]
    for nfe in sorted(pack.nfes, key=lambda nfe: nfe != steps):
        found = _slice(pack[nfe], sigmas)
        if found is not None:
            start, stop = found
            return tail(head(pack[nfe], stop), start)
    begins, numbers = pack[pack.nfes[0]].sigmas[0], ", ".join(map(str, pack.nfes))
    if sigmas[-1] > max(_ending(pack) * (1 + TOLERANCE), NOTHING * begins):
        raise HostError(
            f"This solver cannot stop at the noise level {sigmas[-1]:.4g}: let it run to the end, "
            f"or split the sigmas of the scheduler 's4s' at one of {numbers} steps."
        )
    if first >= begins * (1 - TOLERANCE):
        if steps not in pack.tables:
            raise HostError(
                f"This solver has no table for {steps} steps: set steps to one of {numbers}, "
                "with the scheduler 's4s'."
            )
        return pack[steps]
    return _entered(pack, steps, first)


def _ending(pack):
    """The level that every table of a pack reaches."""
    return max(pack[nfe].ending for nfe in pack.nfes)


def _entry(table, sigma):
    """The node that a run from `sigma` enters a table at: the nearest whose next node is below."""
    start = nearest_node(table, sigma)
    return start if table.sigmas[start + 1] < sigma * (1 - TOLERANCE) else start + 1


def _entered(pack, steps, sigma):
    """The rest of that table which, entered at `sigma`, takes about as many calls as asked for."""
    if sigma <= _ending(pack) * (1 + TOLERANCE):
        raise HostError("This run begins where the solver ends: raise the denoise strength.")

    def fitness(nfe):
        table = pack[nfe]
        start = _entry(table, sigma)
        left = table.nfe - start * table.nfe_per_step
        return abs(left - steps), abs(np.log(table.sigmas[start] / sigma))

    table = pack[min(pack.nfes, key=fitness)]
    return tail(table, _entry(table, sigma), float(sigma))


def run_in_host(denoise, x, pack, sigmas, callback=None, keep=None):
    """Run a pack from x, noised to sigmas[0], over a host's list of sigmas.

    denoise(x, sigma [batch]) -> x0; callback gets a Progress after each model call; `keep` is
    (mask, original) for inpainting (see `sample`). One sigma means that there is nothing to do.
    """
    if len(sigmas) < 2:
        return x
    levels = torch.as_tensor(sigmas, dtype=torch.float64, device="cpu")
    return sample(denoise, x, table_for(pack, levels.numpy()), callback=callback, keep=keep)


def check_space(pack, space):
    """Raise HostError unless the pack is made for models of that space."""
    if pack.space != space:
        kinds = {"ve": "noise or v-prediction models", "flow": "flow models (SD3, Flux)"}
        raise HostError(
            f"This solver is for {kinds[pack.space]}, the model is one of {kinds[space]}: "
            "train a solver for it, or load one that was."
        )


def facts(pack, nfe):
    """What an image's metadata says of the solver that made it."""
    name = pack.metadata.get("name") or "unnamed"
    return {"name": name[:200], "hash": pack.digest[:12], "nfe": nfe}


def mismatches(pack, *, model_name=None, model_hash=None, cfg=None, width=None, height=None):
    """Sentences about what differs from the solver's training; unknown sides are not compared.

    Hashes are compared where both are of one kind.
    """
    about, found = pack.metadata, []
    trained = about.get("model", {})
    theirs = model_hashes(about).get(hash_kind(model_hash or ""))
    if model_hash and theirs and model_hash != theirs:
        found.append(_other_model(trained.get("name"), theirs, model_name, model_hash))
    low, high = about.get("cfg", (None, None))
    if cfg is not None and low is not None and not low - 1e-3 <= cfg <= high + 1e-3:
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        found.append(f"The solver was trained for CFG {span}, this run has CFG {cfg:g}.")
    size = about.get("resolution")
    if width and height and size and (width, height) != tuple(map(int, size)):
        found.append(
            f"The solver was trained at {size[0]:g}x{size[1]:g}, this run is {width}x{height}."
        )
    return found


def _other_model(their_name, theirs, our_name, ours):
    """A sentence about two models, by their names or, where these do not tell, by their hashes."""
    if their_name and their_name == our_name:
        name, theirs, ours = _short(our_name), _bare(theirs), _bare(ours)
        return (
            f"The solver was trained for another checkpoint of the kind {name}: {theirs}, "
            f"this one is {ours}."
        )
    return (
        f"The solver was trained for the model {_short(their_name or theirs)}, "
        f"this one is {_short(our_name or ours)}."
    )


def _bare(text):
    """The beginning of a hash, without its kind."""
    return text.rpartition(":")[2][:8]


def _short(text):
    return str(text)[:80]
