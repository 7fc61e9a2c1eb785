"""Runs over a part of the way: trained tables moved to a level, and what runs without one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import PROBLEMS

from s4s_core import SolverPack, classical_table, sample, schedule
from s4s_core.demo import load_demo
from s4s_core.mixture import GaussianMixture
from s4s_core.parts import FINE, part_table, relaid, stretched
from s4s_core.slicing import from_node
from s4s_core.spacing import lay_nodes, levels_at, places_of
from s4s_core.strength import Below, level_of

LOWEST = 0.002
KINDS = [("ipndm", 2), ("unipc-bh2", 3), ("dpm-solver", 2)]
TOPS = {"ve": 80.0, "flow": 1.0}


def table_of(space="ve", nfe=6, solver="ipndm", order=2, top=None, ending=0.0):
    """A table whose calls lie below its nodes, as learned ones may."""
    model = Below(GaussianMixture.random(2, (2,), seed=1, space=space), top or TOPS[space])
    steps = nfe // order if solver == "dpm-solver" else nfe
    table = classical_table(solver, schedule("edm", steps, model, ending), order, space)
    calls = table.call_sigmas * np.where(np.arange(table.nfe) > 0, 0.97, 1.0)
    return table.replace(call_sigmas=calls)


def snr(space, sigma):
    return np.log((1 - sigma if space == "flow" else 1.0) / sigma)


@given(
    st.sampled_from(["ve", "flow"]),
    st.sampled_from([0.0, 1e-3]),
    st.integers(1, 9),
    st.integers(1, 40),
    st.floats(0.002, 0.999),
    st.floats(0.05, 0.9),
)
def test_laid_nodes_decrease_between_their_ends(space, ending, nfe, steps, share, below):
    table = table_of(space, nfe, ending=ending)
    first = float(ending + share * (table.sigmas[0] - ending))
    last = float(ending + below * (first - ending))
    for end, stop in ((None, ending), (last, last)):
        nodes = lay_nodes(table.sigmas, steps, first, end)
        assert nodes[0] == first and nodes[-1] == stop and len(nodes) == steps + 1
        assert (np.diff(nodes) < 0).all()
    for at in (first, last):
        assert levels_at(table.sigmas, places_of(table.sigmas, at)) == pytest.approx(at, rel=1e-9)


@pytest.mark.parametrize("solver, order", KINDS)
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_a_stretched_table_is_itself_at_its_own_level(space, solver, order):
    table = table_of(space, solver=solver, order=order)
    same = stretched(table, float(table.sigmas[0]))
    for name, array in table.arrays.items():
        np.testing.assert_allclose(same.arrays[name], array, rtol=1e-12, atol=1e-15)
    lower = stretched(table, 0.7 * float(table.sigmas[0]))
    assert lower.sigmas[0] == 0.7 * table.sigmas[0]
    for name, array in table.coefficients.items():
        np.testing.assert_array_equal(lower.coefficients[name], array)
    assert (np.diff(lower.call_sigmas) <= 0).all() and lower.call_sigmas[0] == lower.sigmas[0]


@pytest.mark.parametrize("solver, order", [("ipndm", 2), ("dpmpp", 2)])
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_a_fine_table_from_any_level_lands_at_the_exact_solution(space, solver, order):
    """Its error falls as fast as that of the whole table: no order is lost."""
    problem, errors = PROBLEMS[space], []
    first = 0.6 * problem.start + 0.4 * problem.end
    start, want = problem.truth([first, problem.end])
    for steps in (32, 64):
        table = classical_table(solver, problem.nodes(steps), order, space)
        moved = relaid(table, first, steps)
        errors.append(float((sample(problem.model.denoise, start, moved) - want).abs().max()))
    assert errors[1] < errors[0] / 1.7 and errors[1] < 0.01


def pack_of(space="ve", guided=False):
    """Whole tables of 4 and 8 calls, and parts of 4 calls from two levels."""
    whole = [table_of(space, nfe) for nfe in (4, 8)]
    parts = [table_of(space, 4, top=top) for top in ((5.0, 1.0) if space == "ve" else (0.7, 0.4))]
    if guided:
        whole = [table.replace(guidance=np.full(table.nfe, 0.9)) for table in whole]
    return SolverPack.of(*whole, parts=parts)


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_the_nearest_trained_part_runs(space):
    """Within reach: the fewer the calls, the longer a step, and the farther a table may move."""
    pack = pack_of(space)
    levels = [float(part.sigmas[0]) for part in pack.parts]
    for part, level in zip(pack.parts, levels, strict=True):
        assert part_table(pack, level, 0.0, 4, LOWEST) == stretched(part, level)
        for shift in (0.3, -0.3):
            at = level_at_snr(space, snr(space, level) + shift)
            table = part_table(pack, at, 0.0, 4, LOWEST)
            assert table == stretched(part, at) and table.sigmas[0] == at
    for calls in (3, 5):  # no part has as many
        table = part_table(pack, levels[1], 0.0, calls, LOWEST)
        assert table.nfe == calls and table.call_sigmas.tolist() == table.sigmas[:-1].tolist()
    many = SolverPack.of(table_of(space, 8), parts=[table_of(space, 40, top=levels[0])])
    step = (snr(space, LOWEST) - snr(space, levels[0])) / 40
    for share, learned in ((0.5, True), (0.9, False)):
        at = level_at_snr(space, snr(space, levels[0]) + share * step)
        table = part_table(many, at, 0.0, 40, LOWEST)
        assert (table.coefficients.keys() == many.parts[0].coefficients.keys()) == learned


def level_at_snr(space, value):
    return float(1 / (1 + np.exp(value)) if space == "flow" else np.exp(-value))


@pytest.mark.parametrize("guided", [True, False])
def test_under_guidance_the_last_calls_of_a_whole_table_run_near_their_level(guided):
    """Without it, classical weights are better than learned ones that lack their history."""
    pack = pack_of(guided=guided)
    tail = from_node(pack[8], 3)
    level = 0.9 * float(tail.sigmas[0])
    table = part_table(pack, level, 0.0, 5, LOWEST)
    assert (table == stretched(tail, level)) == guided
    told = part_table(pack, level, 0.0, 5, LOWEST, guided=False)
    assert told != stretched(tail, level) and told.guidance is None
    assert (table.guidance is None) != guided


@pytest.mark.parametrize("guided, family", [(True, "lms"), (False, "pc")])
def test_elsewhere_nodes_are_laid_as_learned_ones_lie(guided, family):
    """With a classical solver's weights: the form's own under guidance, else UniPC's."""
    pack = SolverPack(pack_of(guided=guided).tables)
    level = float(pack[8].sigmas[4:6].prod() ** 0.5)
    table = part_table(pack, level, 0.0, 5, LOWEST)
    np.testing.assert_allclose(table.sigmas, lay_nodes(pack[8].sigmas, 5, level))
    assert table.family == family and table.guidance is None
    first = part_table(pack, 80.0, level, 2, LOWEST)  # the first of two samplers
    np.testing.assert_allclose(first.sigmas, lay_nodes(pack[8].sigmas, 2, 80.0, level))


@pytest.mark.parametrize("cfg, order", [([4.0, 4.0], 2), ([7.0, 8.0], 1)])
def test_coarse_steps_at_strong_guidance_are_eulers(cfg, order):
    pack = SolverPack(pack_of(guided=True).tables, {"cfg": cfg})
    level = float(pack[8].sigmas[4:6].prod() ** 0.5)
    table = part_table(pack, level, 0.0, 5, LOWEST)
    assert table.order == order and table.nfe == 5
    np.testing.assert_allclose(table.sigmas, lay_nodes(pack[8].sigmas, 5, level))


def test_many_calls_take_a_good_classical_solver_on_its_own_schedule():
    """It ends with a call at the model's lowest level, as Karras's schedule does in hosts."""
    pack, level = pack_of(), 20.0
    left = 8 - places_of(pack[8].sigmas, level)
    for calls in (int(FINE * left), int(FINE * left) + 1, 30):
        table = part_table(pack, level, 0.0, calls, LOWEST)
        assert table.nfe == calls and table.sigmas[0] == level
        fine = calls > FINE * left
        assert (table.sigmas[-2] == pytest.approx(LOWEST)) == fine
    until = part_table(pack, level, 3.0, 30, LOWEST)
    assert until.ending == 3.0 and until.nfe == 30


@pytest.mark.parametrize("kind", ["ve", "vp", "flow"])
def test_a_strength_begins_where_hosts_begin(kind):
    """ComfyUI's `simple` takes every so manieth of 1000 levels, counted from the highest."""
    model = load_demo(kind)
    count = torch.arange(1000, dtype=torch.float64)
    listed = {
        "vp": lambda: model.times.sigma(count),
        "ve": lambda: torch.logspace(*np.log10([0.002, 80.0]), 1000, dtype=torch.float64),
        "flow": lambda: (count + 1) / 1000,
    }[kind]()
    for strength in (0.2, 0.4, 0.7, 0.95):
        want = float(listed[round(1000 * strength) - 1])
        assert level_of(model, strength) == pytest.approx(want, rel=1e-2)


def test_a_model_below_a_level_is_the_model_otherwise():
    model = load_demo("vp", 4.0)
    below = Below(model, 3.0)
    assert below.sigma_max == 3.0 and below.times is model.times and below.takes_guidance
    assert schedule("edm", 5, below)[0] == 3.0
    assert not hasattr(below, "nothing")
