"""Nodes laid as other nodes lie: as densely, between other ends, in any number."""

import numpy as np
import numpy.typing as npt

from .table import Array


def levels_at(nodes: Array, places: npt.ArrayLike) -> Array:
    """Return the levels at places among decreasing nodes: 1.5 is halfway from node 1 to node 2.

    Levels are interpolated in log sigma, or in sigma where an interval ends at 0. Negative places
    lie above the first node.
    """
    places = np.asarray(places, dtype=np.float64)
    before = np.clip(places.astype(int), 0, len(nodes) - 2)
    share, above, below = places - before, nodes[before], nodes[before + 1]
    with np.errstate(divide="ignore"):
        between = above ** (1 - share) * below**share
    return np.asarray(np.where(below > 0, between, above * (1 - share)))


def places_of(nodes: Array, sigmas: npt.ArrayLike) -> Array:
    """Return where levels lie among nodes: the inverse of `levels_at`."""
    sigmas = np.asarray(sigmas, dtype=np.float64)
    index = np.clip(np.searchsorted(-nodes, -sigmas, "right") - 1, 0, len(nodes) - 2)
    above, below = nodes[index], nodes[index + 1]
    with np.errstate(divide="ignore"):
        between = np.log(above / sigmas) / np.log(above / below)
    return np.asarray(index + np.where(below > 0, between, 1 - sigmas / above))


def lay_nodes(
    nodes: Array, steps: int, first: float | None = None, last: float | None = None
) -> Array:
    """Return steps + 1 strictly decreasing nodes, laid as densely as others lie.

    They run from `first` to `last`, by default between the same ends.
    """
    ends = (
        0.0 if first is None else float(places_of(nodes, first)),
        len(nodes) - 1 if last is None else float(places_of(nodes, last)),
    )
    laid = levels_at(nodes, np.linspace(*ends, steps + 1))
    for at, end in ((0, first), (-1, last)):
        if end is not None:
            laid[at] = end
    return laid
