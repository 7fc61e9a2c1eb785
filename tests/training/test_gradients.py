"""Gradients through the engine by finite differences (gradcheck); tables that differ by row."""

import pytest
import torch
from problems import PROBLEMS, SPACE_FORMS
from torch.autograd import gradcheck

from s4s_core.classical import classical_recipe
from s4s_core.program import lower
from s4s_core.sampling import Cursor, compiled, lower_table, run

STEPS = 3

# One recipe of each family that runs in any form: its weights are only a starting point here.
FAMILIES = {
    "lms": ("ipndm", {"order": 3}),
    "pc": ("unipc-bh1", {"order": 2}),
    "ss": ("heun", {}),
}

SOLVERS = [
    ("euler", {}),
    *(("ipndm", {"order": k}) for k in (2, 3, 4)),
    *(("adams-bashforth", {"order": k}) for k in (2, 4)),
    *(
        (name, {"order": k, "form": form})
        for form in ("data", "noise")
        for name, k in [
            ("dpm-solver", 2),
            ("dpm-solver", 3),
            ("dpmpp", 2),
            ("dpmpp", 3),
            ("exp-lagrange", 3),
            ("unipc-bh1", 2),
            ("unipc-bh1", 3),
            ("unipc-bh2", 2),
        ]
    ),
    ("heun", {}),
    ("gaussian", {"order": 2}),
]


def arrays_of(space, family, seed=0):
    """Arrays of a family, call times and coefficients moved off their classical values."""
    name, options = FAMILIES[family]
    arrays = classical_recipe(name, PROBLEMS[space].nodes(STEPS), space, **options).arrays
    generator = torch.Generator().manual_seed(seed)

    def jitter(key, value):
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return value if key == "sigmas" else value * (1 + 0.05 * noise)

    return {key: jitter(key, value.clone()) for key, value in arrays.items()}


def result(space, form, family, arrays, x):
    program = lower(family, space, form, arrays)
    return run(program, PROBLEMS[space].model.denoise, Cursor(x, x)).point


@pytest.mark.parametrize("space, form", SPACE_FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loop_is_differentiable_in_everything(space, form, family):
    arrays = arrays_of(space, family)
    names = list(arrays)
    inputs = [value.requires_grad_() for value in arrays.values()]
    x = PROBLEMS[space].x[:2].clone().requires_grad_()

    def through(x, *values):
        return result(space, form, family, dict(zip(names, values, strict=True)), x)

    assert gradcheck(through, (x, *inputs))
    gradients = torch.autograd.grad(through(x, *inputs).square().sum(), (x, *inputs))
    assert all(g.abs().max() > 0 for g in gradients), "something does not reach the result"


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name, options", SOLVERS)
def test_classical_tables_follow_their_nodes(space, name, options):
    """LD3 moves the nodes and recomputes the coefficients."""

    def through(nodes):
        arrays = classical_recipe(name, nodes, space, **options).arrays
        return torch.cat([value.flatten() for value in arrays.values()])

    assert gradcheck(through, PROBLEMS[space].nodes(4).requires_grad_())


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name, options", [s for s in SOLVERS if s[1].get("form") != "noise"])
def test_inner_nodes_have_gradients_between_singular_ends(space, name, options):
    """To 0, and for flow from 1, both ends fixed, through the table and the loop."""
    problem = PROBLEMS[space]
    high = torch.tensor([problem.start if space == "ve" else 1.0], dtype=torch.float64)
    inner = high * torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)

    def through(inner):
        nodes = torch.cat([high, inner, inner.new_zeros(1)])
        recipe = classical_recipe(name, nodes, space, **options)
        program = lower(recipe.family, space, recipe.form, recipe.arrays)
        return run(program, problem.model.denoise, Cursor(problem.x[:1], problem.x[:1])).point

    assert gradcheck(through, inner.requires_grad_())


@pytest.mark.parametrize("space, form", SPACE_FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_table_per_row_equals_separate_runs(space, form, family):
    tables = [arrays_of(space, family, seed) for seed in range(3)]
    for i, table in enumerate(tables):
        table["sigmas"] = table["sigmas"] * (1 - 0.01 * i)
    x = PROBLEMS[space].x[:3]
    stacked = {key: torch.stack([table[key] for table in tables]) for key in tables[0]}
    together = result(space, form, family, stacked, x)
    apart = [result(space, form, family, table, x[i : i + 1]) for i, table in enumerate(tables)]
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name, options", SOLVERS)
def test_plain_floats_equal_tensors(space, name, options):
    """`floats()` changes how the loop runs, not what it computes."""
    problem = PROBLEMS[space]
    table = classical_recipe(name, problem.nodes(4), space, **options).table()
    start = Cursor(problem.x, problem.x)
    fast, slow = (
        run(program, problem.model.denoise, start).point
        for program in (compiled(table), lower_table(table))
    )
    torch.testing.assert_close(fast, slow, rtol=1e-13, atol=1e-13)
