"""Ranking of the classical solvers by their distance to the teacher."""

import math

import pytest
from learners import changed, small

from s4s_core.candidates import candidates, rank, rmse
from s4s_core.teacher import default_teacher, draw_pairs


@pytest.fixture(scope="module")
def pairs():
    model = small()
    return draw_pairs(model, default_teacher(model), 8, 1)


def test_the_best_comes_first_with_its_error(pairs):
    model = small()
    found = candidates(model, 4, solvers=(("ddim", 1), ("ipndm", 3), ("dpmpp", 2)))
    ranked = rank(model.denoise, found, pairs, keep=len(found))
    errors = [error for error, _ in ranked]
    assert len(ranked) == len(found) and errors == sorted(errors) and errors[0] < errors[-1] / 2
    for error, candidate in ranked:
        assert error == rmse(model.denoise, candidate.table, pairs)


def test_only_the_most_promising_are_scored_on_all_pairs(pairs):
    model = small()
    found = candidates(model, 4)
    best = rank(model.denoise, found, pairs, keep=3, first=2)
    quick = sorted(found, key=lambda c: rmse(model.denoise, c.table, pairs[:2]))[:3]
    assert {c.label for _, c in best} == {c.label for c in quick}


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
