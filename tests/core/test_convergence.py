"""Orders of convergence, in float64, against the truth from DOP853 at 1e-12.

Exact starting values exclude the lower order of the warm-up, which has a test of its own.
"""

import math

import pytest
import torch
from problems import EXPONENTIAL, PROBLEMS

from s4s_core.classical import classical_recipe
from s4s_core.program import lower
from s4s_core.sampling import Cursor, run

FINEST = (256, 512)
TOLERANCE = 0.05


def entry(problem, form, x, sigma):
    """Return a history entry, x0 or x - q x0 (see program.py), without using the engine."""
    x0 = problem.denoise(x, sigma)
    if form == "data":
        return x0
    scale = 1 - sigma if (problem.model.space, form) == ("flow", "noise") else 1.0
    return x - scale * x0


def error(problem, name, n, spacing="smooth", cold=False, nudge=0.0, **options):
    """Return the error of a solver of n steps at the last node."""
    nodes = problem.nodes(n, spacing)
    recipe = classical_recipe(name, nodes, problem.model.space, **options)
    b = recipe.arrays["b"] + nudge * torch.eye(recipe.order)[0].double()
    arrays = {**recipe.arrays, "b": b}
    program = lower(recipe.family, recipe.space, recipe.form, arrays).floats()
    first = 0 if cold or recipe.family == "ss" else recipe.order
    *before, start, end = problem.truth([*nodes[: first + 1], nodes[-1]])
    known = zip(before, nodes[:first], strict=True)
    past = [entry(problem, recipe.form, x, sigma) for x, sigma in known]
    cursor = Cursor(start, start, tuple(reversed(past)))
    return float((run(program, problem.model.denoise, cursor, first).point - end).norm())


def slope(*case, **options):
    """Return the order of convergence between the two finest grids."""
    coarse, fine = (error(*case, n, **options) for n in FINEST)
    return math.log2(coarse / fine)


# Solver, its order, and the order of convergence.
PLAIN = [
    *(("euler", 1, 1), ("heun", 2, 2)),
    *(("adams-bashforth", order, order) for order in (1, 2, 3, 4)),
    *(("ipndm", order, 2) for order in (2, 3, 4)),
]
EXPONENTIAL_RULES = [
    *(("exp-lagrange", order, order) for order in (1, 2, 3, 4)),
    *(("dpmpp", order, 2) for order in (2, 3)),
    *(("dpm-solver", order, order) for order in (2, 3)),
    *(("unipc-bh1", order, order + 1) for order in (1, 2)),  # the corrector gains an order;
    *(("unipc-bh2", order, order + 1) for order in (1, 2, 3)),  # bh1 and bh2 agree from 3 on
]


@pytest.mark.parametrize(
    "space, form, name, order, expected",
    [
        *((space, None, *rule) for space in PROBLEMS for rule in PLAIN),
        *((*pair, *rule) for pair in EXPONENTIAL for rule in EXPONENTIAL_RULES),
    ],
)
def test_solvers_converge_with_their_order(space, form, name, order, expected):
    """ipndm is of order two unless steps are uniform."""
    options = {"order": order} | ({"form": form} if form else {})
    options |= {"lower_order_final": False} if "unipc" in name else {}
    problem = PROBLEMS[space]
    assert slope(problem, name, **options) == pytest.approx(expected, abs=TOLERANCE)
    if name == "ipndm":
        uniform = slope(problem, name, spacing="uniform", **options)
        assert uniform == pytest.approx(order, abs=TOLERANCE)


@pytest.mark.parametrize("space", PROBLEMS)
def test_a_cold_start_is_of_order_two_and_a_small_error_destroys_convergence(space):
    """The first step is Euler's, with a local error of O(h^2); the error is in a coefficient."""
    rule = PROBLEMS[space], "exp-lagrange"
    assert slope(*rule, order=3, cold=True) == pytest.approx(2, abs=TOLERANCE)
    assert slope(*rule, order=3, nudge=1e-4) < 0.2
