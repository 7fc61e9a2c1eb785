"""Ranking of the classical solvers by their distance to the teacher."""

import math
from contextlib import suppress

import pytest
from learners import changed, small

from s4s_core.candidates import (
    KEPT,
    SEARCH_PAIRS,
    SEARCH_ROUNDS,
    candidates,
    mean_error,
    rank,
    rmse,
    search_runs,
)
from s4s_core.names import SPACES
from s4s_core.teacher import default_teacher, draw_pairs
from s4s_core.training.task import Meter


@pytest.fixture(scope="module")
def pairs():
    model = small()
    return draw_pairs(model, default_teacher(model), 8, 1)


def test_the_best_comes_first_with_its_error(pairs):
    model = small()
    found = candidates(model, 4, solvers=(("ddim", 1), ("ipndm", 3), ("dpmpp", 2)))
    ranked = rank(model.denoise, found, pairs, rounds=[(2, len(found)), (5, len(found))])
    errors = [error for error, _ in ranked]
    assert len(ranked) == len(found) and errors == sorted(errors) and errors[0] < errors[-1] / 2
    assert ranked == rank(model.denoise, found, pairs, rounds=()), "nobody was out of the race"
    for error, candidate in ranked:
        assert error == pytest.approx(rmse(model.denoise, candidate.table, pairs), rel=1e-12)


def test_only_the_most_promising_stay_in_the_race(pairs):
    """No candidate is run twice on a pair."""
    model = small()
    meter, found = Meter(model.denoise), candidates(model, 4)

    def best(among, count, keep):
        return sorted(among, key=lambda c: rmse(model.denoise, c.table, pairs[:count]))[:keep]

    ranked = rank(meter, found, pairs, rounds=[(2, 9), (5, 3)])
    assert [c for _, c in ranked] == best(best(best(found, 2, 9), 5, 3), 8, 3)
    assert meter.calls == 4 * (2 * len(found) + 3 * 9 + 3 * 3)


@pytest.mark.parametrize("space", SPACES)
def test_the_search_costs_what_is_planned(space):
    model = small(space)
    pairs = draw_pairs(model, default_teacher(model, 6), SEARCH_PAIRS, 1)
    for nfe in (3, 7):
        meter, found = Meter(model.denoise), candidates(model, nfe)
        ranked = rank(meter, found, pairs, batch=5, rounds=SEARCH_ROUNDS)
        assert len(ranked) == KEPT and meter.calls == nfe * search_runs(len(found))


@pytest.mark.parametrize("batch", [2, 32])
def test_a_race_that_was_interrupted_goes_on_with_what_it_knows(pairs, batch):
    """After every single measurement: it measures nothing twice, and the same ones win."""
    model, known, runs, leaders = small(), {}, [], set()
    meter, found = Meter(model.denoise), candidates(model, 4)

    def stop(count, best):
        runs.append(count)
        leaders.add(best.label)
        raise InterruptedError

    ranked = None
    while ranked is None:
        with suppress(InterruptedError):
            ranked = rank(meter, found, pairs, batch, SEARCH_ROUNDS, mean_error, known, stop)
    whole = rank(model.denoise, found, pairs, batch, SEARCH_ROUNDS, mean_error)
    assert ranked == whole and whole[0][1].label in leaders
    assert runs == sorted(set(runs)) and runs[-1] == search_runs(len(found)) == meter.calls / 4


def test_candidates_with_nan_come_last(pairs):
    """A model that fails at one noise level fails on the schedules that call it there."""
    inner, bad = small(), float(candidates(small(), 4, schedules=("edm",))[0].table.sigmas[1])

    def denoise(x, sigma):
        out = inner.denoise(x, sigma)
        return out * math.nan if abs(float(sigma[0]) / bad - 1) < 1e-6 else out

    found = candidates(inner, 4, solvers=(("ddim", 1),), schedules=("edm", "logsnr", "uniform"))
    ranked = rank(changed(inner, denoise=denoise).denoise, found, pairs)
    assert [math.isnan(error) for error, _ in ranked] == [False, False, True]
    assert ranked[-1][1].schedule == "edm"
