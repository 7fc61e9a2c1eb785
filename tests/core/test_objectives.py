"""Values of the plain distances; test_gauss_newton.py has those of LPIPS."""

import math

import pytest
import torch

from s4s_core.objectives import objective

TARGET = torch.zeros(2, 3, 2, 2)


def distances(name, difference):
    """Return the distances of two samples: one off by `difference` everywhere, one exact."""
    result = TARGET.clone()
    result[0] = difference
    return objective(name, None).distance(result, TARGET).tolist()


@pytest.mark.parametrize("difference", [-0.5, 0.01, 2.0])
@pytest.mark.parametrize(
    "name, value",
    [
        ("l2", lambda d: d * d),
        ("l1", abs),
        ("huber", lambda d: 0.03 * (math.sqrt(1 + (d / 0.03) ** 2) - 1)),
    ],
)
def test_a_distance_is_the_mean_over_a_sample(name, value, difference):
    off, same = distances(name, difference)
    assert off == pytest.approx(value(difference), rel=1e-4) and same == 0


def test_huber_is_quadratic_near_zero_and_linear_far_from_it():
    near, far = (distances("huber", d)[0] for d in (0.0003, 30.0))
    assert near == pytest.approx(0.0003**2 / (2 * 0.03), rel=1e-2)
    assert far == pytest.approx(30.0, rel=2e-3)
