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


def check(space, expected, name, **options):
    assert slope(PROBLEMS[space], name, **options) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name, order", [("euler", 1), ("heun", 2)])
def test_plain_single_step(space, name, order):
    check(space, order, name)


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_adams_bashforth(space, order):
    check(space, order, "adams-bashforth", order=order)


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_ipndm_is_of_order_two_unless_steps_are_uniform(space, order):
    check(space, 2, "ipndm", order=order)
    check(space, order, "ipndm", order=order, spacing="uniform")


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_exponential_lagrange(space, form, order):
    check(space, order, "exp-lagrange", order=order, form=form)


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize("order", [2, 3])
def test_dpmpp_2m_and_3m_are_of_order_two(space, form, order):
    check(space, 2, "dpmpp", order=order, form=form)


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize("order", [2, 3])
def test_dpm_solver(space, form, order):
    check(space, order, "dpm-solver", order=order, form=form)


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize(
    "variant, order", [("bh1", 1), ("bh1", 2), ("bh2", 1), ("bh2", 2), ("bh2", 3)]
)
def test_unipc_gains_an_order_from_its_corrector(space, form, variant, order):
    """bh1 of order 3 is the same table as bh2 (test_formulas)."""
    check(space, order + 1, f"unipc-{variant}", order=order, form=form, lower_order_final=False)


@pytest.mark.parametrize("space", PROBLEMS)
def test_a_cold_start_is_of_order_two(space):
    """Its first step is an Euler step, with a local error of O(h^2)."""
    check(space, 2, "exp-lagrange", order=3, cold=True)


@pytest.mark.parametrize("space", PROBLEMS)
def test_a_small_error_in_one_coefficient_destroys_convergence(space):
    assert slope(PROBLEMS[space], "exp-lagrange", order=3, nudge=1e-4) < 0.2
