"""Packs in hosts that work with lists of sigmas: which table runs, and its result."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import PROBLEMS

from s4s_core import SolverPack, classical_table, sample, schedule
from s4s_core.errors import HostError, TableError
from s4s_core.hosting import (
    host_sigmas,
    image_metadata,
    mismatches,
    require_space,
    run_in_host,
    table_for,
)
from s4s_core.mixture import GaussianMixture
from s4s_core.slicing import from_node, until_node

SOLVER_NAMES = ["ipndm", "dpmpp", "unipc-bh2", "dpm-solver"]


def model_of(space="ve"):
    return GaussianMixture.random(4, (6,), seed=1, spread=1.0, scale=0.5, rank=2, space=space)


def pack_of(nfes=(4, 6, 8), solver="ipndm", order=2, space="ve", ending=0.0, **about):
    model = model_of(space)
    steps = (n // order if solver == "dpm-solver" else n for n in nfes)
    tables = [
        classical_table(solver, schedule("edm", n, model, ending), order, space) for n in steps
    ]
    return SolverPack.of(*tables, metadata=about)


def noise(sigma, count=3):
    return sigma * torch.randn(count, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("nfe", [4, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_full_run_is_the_table(nfe, dtype):
    pack, model = pack_of(), model_of()
    sigmas = host_sigmas(pack, nfe).to(dtype)
    x = noise(float(sigmas[0]))
    assert table_for(pack, sigmas.double()) is pack[nfe]
    expected = sample(model.denoise, x, pack[nfe])
    assert torch.equal(run_in_host(model.denoise, x, pack, sigmas), expected)


@given(
    st.lists(st.floats(0.01, 0.99), max_size=12),
    st.sampled_from([0.0, 1e-3]),
    st.sampled_from(["ve", "flow"]),
    st.integers(1, 200),
)
def test_any_length_of_any_table_decreases_to_its_ending(ratios, ending, space, steps):
    """Equal neighbours would make other samplers divide by zero."""
    top = 1.0 if space == "flow" else 80.0
    nodes = ending + (top - ending) * np.cumprod([1.0, *ratios])
    nodes = nodes[nodes > 1.01 * ending]
    table = classical_table("euler", torch.tensor([*nodes, ending]), 1, space)
    sigmas = host_sigmas(SolverPack.of(table), steps)
    assert len(sigmas) == steps + 1 and (sigmas.diff() < 0).all()
    assert sigmas[0] == table.sigmas[0] and sigmas[-1] == ending
    if steps % table.steps == 0:
        assert np.allclose(sigmas[:: steps // table.steps], table.sigmas, rtol=1e-9)


def test_a_low_strength_goes_below_the_last_node_above_zero():
    pack = SolverPack.of(classical_table("euler", torch.tensor([80.0, 0.0]), 1, "ve"))
    assert host_sigmas(pack, 2).tolist() == [80.0, 40.0, 0.0]
    assert table_for(pack, host_sigmas(pack, 4)[-2:]).sigmas.tolist() == [20.0, 0.0]
    pack = pack_of((4,))
    starts = [float(host_sigmas(pack, int(4 / strength))[-5]) for strength in (0.5, 0.2, 0.1, 0.05)]
    assert starts == sorted(set(starts), reverse=True) and starts[-1] < pack[4].sigmas[-2]


def test_a_run_at_full_strength_takes_the_table_of_as_many_steps():
    """With any scheduler; a last sigma of nearly zero counts as zero."""
    pack, sigmas = pack_of(), schedule("uniform", 6, model_of())
    assert table_for(pack, sigmas) is pack[6]
    sigmas[-1] = 1e-6
    assert table_for(pack, sigmas) is pack[6]


def stopped(start, stop):
    return schedule("uniform", 12, model_of())[start : stop + 1]


@pytest.mark.parametrize(
    "sigmas, options, message",
    [
        (host_sigmas(pack_of(), 5), {}, "no table for 5 steps.*one of 4, 6, 8"),
        # A split list of another scheduler, or leftover noise, must not run on to 0.
        *((stopped(0, n), {}, "Let it run to the end, .* 's4s' at one of 4, 6, 8") for n in (6, 8)),
        *((stopped(3, n), {}, "Let it run to the end") for n in (6, 8, 11)),
        (host_sigmas(pack_of(), 12)[2:9], {}, "cannot stop at noise level"),
        ([0.05, 0.01], {"ending": 0.1}, "Raise the denoise strength"),
    ],
)
def test_runs_that_no_table_can_make_are_refused(sigmas, options, message):
    with pytest.raises(HostError, match=message):
        table_for(pack_of(**options), sigmas)


@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_every_window_of_a_table_runs_just_its_nodes(solver):
    """A refiner, or KSampler (Advanced), splits a list of sigmas between two runs."""
    pack = pack_of(solver=solver)
    sigmas = pack[8].sigmas
    steps = len(sigmas) - 1
    for start in range(steps):
        for stop in range(start + 1, steps + 1):
            part = sigmas[start : stop + 1]
            table = table_for(pack, part)
            assert table.sigmas.tolist() == part.tolist()
            assert table.nfe == (stop - start) * 8 // steps


def test_the_first_part_of_a_predictor_corrector_is_the_run_up_to_there():
    """It ends with the prediction, so it equals the trace of a full run."""
    pack, model = pack_of(solver="unipc-bh2", order=3), model_of()
    seen = []
    x = noise(float(pack[6].sigmas[0]))
    sample(model.denoise, x, pack[6], callback=lambda p: seen.append(p.x))
    assert torch.allclose(sample(model.denoise, x, until_node(pack[6], 3)), seen[3])


@pytest.mark.parametrize("solver", SOLVER_NAMES)
@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 0.93])
def test_a_partial_run_begins_at_the_sigma_it_is_given(solver, space, share):
    pack = pack_of(solver=solver, space=space)
    sigmas = host_sigmas(pack, 9)
    sigmas = sigmas[round(9 * (1 - share)) :] * 0.97
    table = table_for(pack, sigmas)
    assert table.sigmas[0] == pytest.approx(float(sigmas[0]), rel=1e-12)
    assert abs(table.nfe - (len(sigmas) - 1)) <= 4


@pytest.mark.parametrize("solver", SOLVER_NAMES)
@pytest.mark.parametrize("start", range(4))
def test_a_partial_run_lands_near_the_exact_solution(solver, start):
    """A fine table entered anywhere still solves the ODE: the moved node loses no order."""
    problem = PROBLEMS["ve"]
    nodes = problem.nodes(64)
    table = classical_table(solver, nodes, 2, problem.model.space)
    at = 1 + 2 * start
    sigma = float((nodes[at] * nodes[at + 1]).sqrt())
    moved = from_node(table, at, sigma)
    exact = problem.truth([sigma, problem.end])
    got = sample(problem.model.denoise, exact[0], moved)
    crude = sample(problem.model.denoise, exact[0], from_node(table, at))
    error, without = ((r - exact[1]).abs().max() for r in (got, crude))
    assert error < 0.02 * exact[1].abs().max()
    assert error < without / 3


def test_the_table_with_the_nearest_number_of_calls_is_entered():
    pack = pack_of((4, 8, 16))
    sigma = float(pack[8].sigmas[4]) * 1.01
    for asked, nfe in ((2, 4), (4, 8), (8, 16)):
        sigmas = np.append(np.geomspace(sigma, 0.01, asked), 0)
        assert abs(table_for(pack, sigmas).nfe - nfe // 2) <= 1


def test_among_tables_with_equal_calls_left_the_nearest_node_is_entered():
    near = [10.0, 8.0, 4.1, 2.0, 1.0, 0.0]
    far = [10.0, 3.0, 1.5, 0.5, 0.0]
    nodes = (torch.tensor(n, dtype=torch.float64) for n in (near, far))
    pack = SolverPack.of(*(classical_table("euler", n, 1, "ve") for n in nodes))
    assert table_for(pack, [4.0, 2.5, 1.2, 0.0]).sigmas.tolist() == [4.0, 2.0, 1.0, 0.0]


def test_edges_of_runs():
    """One sigma runs nothing, a node cannot pass the next one, and spaces must agree."""
    x, pack = noise(1.0), pack_of()
    assert run_in_host(None, x, pack, [0.5]) is x
    with pytest.raises(TableError, match="past the next node"):
        from_node(pack[6], 2, float(pack[6].sigmas[3]))
    with pytest.raises(TableError, match="cannot stop"):
        until_node(pack[6], 0)
    require_space(pack, "ve")
    with pytest.raises(HostError, match="flow models"):
        require_space(pack, "flow")


def test_mismatches_and_images_name_the_solver():
    model = {"name": "alpha", "hash": "weights:1"}
    pack = pack_of(model=model, cfg=[3.0, 5.0], resolution=[512, 768])
    same = dict(model_hash="weights:1", cfg=4.0, width=512, height=768, sigma_max=79.0)
    assert mismatches(pack, **same) == []
    changed = {
        "alpha.*beta": dict(model_hash="weights:2", model_name="beta"),
        "CFG 3 to 5.*CFG 7": dict(cfg=7.0),
        "512x768.*768x512": dict(width=768, height=512),
        "begins at noise level 80, this model at 14.6": dict(sigma_max=14.6),
        "begins at noise level 80, this model at 4518": dict(sigma_max=4518.0),
    }
    for pattern, change in changed.items():
        (found,) = mismatches(pack, **same | change)
        assert re.search(pattern, found)
    (found,) = mismatches(pack, model_hash="weights:0123456789", model_name="alpha")
    assert "another version of alpha (1, this one is 01234567)." in found
    assert mismatches(pack, model_hash="file:2") == []
    assert mismatches(pack_of(), **same) == []
    two = pack_of(model={"name": "alpha", "hash": "ab12", "comfy": "comfy:1"})  # its file and ours
    for right, wrong in (("ab12", "cd34"), ("comfy:1", "comfy:2")):
        assert mismatches(two, model_hash=right) == [] != mismatches(two, model_hash=wrong)
    named = pack_of(name="x" * 500)
    assert image_metadata(named, 4) == {"name": "x" * 200, "hash": named.digest[:12], "nfe": 4}
