"""Several NFEs: the order they are trained in, and starts from each other's nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learners import small, table_of, tiny_fit

from s4s_core.candidates import candidates
from s4s_core.names import SPACES
from s4s_core.spacing import lay_nodes
from s4s_core.training import gauss_newton
from s4s_core.training.method import neighbour_start
from s4s_core.training.scoring import not_falling
from s4s_core.training.settings import Settings


@given(st.sets(st.integers(1, 60), min_size=1, max_size=14))
def test_most_nfes_are_trained_between_two_learned_ones(nfes):
    nfes = tuple(sorted(nfes))
    order = Settings(nfes=nfes).training_order
    assert sorted(order) == list(nfes)
    for number, nfe in enumerate(order[2:], 2):
        assert min(order[:number]) < nfe < max(order[:number])
    assert Settings(nfes=nfes, neighbours=False).training_order == nfes


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("ending", [0.0, 0.05])
@pytest.mark.parametrize("nfe", [3, 4, 6, 9])
def test_a_neighbours_nodes_and_multipliers_are_laid_alike(space, ending, nfe):
    model = small(space)
    learned = table_of("lms", space, 4, ending).replace(guidance=[2.0, 1.0, 0.0, 3.0])
    for solver in candidates(model, nfe, ending):
        start = neighbour_start(model, learned, solver, nfe)
        nodes = start.table.sigmas
        assert start.table.nfe == nfe and (np.diff(nodes) < 0).all()
        assert (nodes[0], nodes[-1]) == (learned.sigmas[0], ending)
    places = np.linspace(0, 3, nfe)
    np.testing.assert_allclose(start.table.guidance, np.interp(places, range(4), [2, 1, 0, 3]))
    assert start.schedule == "learned 4" and "learned nodes of 4 steps" in start.label
    plain = neighbour_start(model, learned.replace(guidance=None), solver, nfe)
    assert plain.table.guidance is None
    if nfe == 4:
        np.testing.assert_allclose(lay_nodes(learned.sigmas, 4), learned.sigmas, rtol=1e-14)


@pytest.mark.parametrize("neighbours", [True, False])
def test_the_nearest_learned_nodes_are_among_the_starts(monkeypatch, neighbours):
    """They stand where the search found them, among the classical solvers."""
    distinct, seen, first = gauss_newton.distinct, {}, set()

    def listen(starts, count):
        nfe = starts[0].table.nfe
        seen[nfe] = {s.schedule for s in starts if "learned" in s.schedule}
        first.update({nfe} if "learned" in starts[0].schedule else ())
        return distinct(starts, count)

    monkeypatch.setattr(gauss_newton, "distinct", listen)
    sizes = {"samples": 6, "validation": 4, "held_out": 4, "budget": 800}
    result = tiny_fit(small(), (3, 4, 5, 8), init="auto", neighbours=neighbours, **sizes)
    assert result.pack.nfes == (3, 4, 5, 8)
    near = {3: set(), 8: {"learned 3"}}
    near |= {4: {"learned 3", "learned 8"}, 5: {"learned 4", "learned 8"}}
    assert seen == (near if neighbours else {nfe: set() for nfe in (3, 4, 5, 8)})
    assert bool(first) == neighbours, "some of them are the best start"
    for scores in result.scores.values():
        assert "learned" not in scores["classical_name"]


def test_the_log_says_where_the_error_does_not_fall():
    errors = {"10": 0.1, "3": 0.5, "4": 0.3, "5": 0.3, "8": 0.35}
    lines = list(not_falling({nfe: {"rmse": error} for nfe, error in errors.items()}))
    assert [line.split(":")[0] for line in lines] == ["5 steps", "8 steps"]
    assert "at 5 steps 0.3" in lines[1] and "use 5 steps" in lines[1]
    assert not list(not_falling({"4": {"rmse": 1.0}}))
