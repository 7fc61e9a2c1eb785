"""Packs in hosts that work with lists of sigmas: which table runs, and its result."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s4s_core import SolverPack, classical_table, sample, schedule
from s4s_core.errors import HostError, TableError
from s4s_core.hosting import (
    AS_GIVEN,
    HostRun,
    follows,
    host_run,
    host_sigmas,
    image_metadata,
    mismatches,
    require_space,
    run_in_host,
)
from s4s_core.mixture import GaussianMixture
from s4s_core.schedules.closed import edm_levels
from s4s_core.slicing import until_node

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


LOWEST = 0.002


def plain_of(model, steps, levels=1000):
    """A host's plain schedule, as ComfyUI makes it: levels evenly spaced in its list, and 0."""
    known = levels_of(model, levels)
    picked = [known[-(1 + int(k * levels / steps))] for k in range(steps)]
    return torch.stack([*picked, torch.zeros(())]).float()


def levels_of(model, count=1000):
    """A host's list of a model's levels, ascending."""
    if model.space == "flow":
        return torch.linspace(1 / count, 1, count)
    return torch.linspace(math.log(LOWEST), math.log(80.0), count).exp()


def run_of(pack, sigmas, plain=True):
    return host_run(pack, [float(sigma) for sigma in sigmas], LOWEST, plain)


def table_of(pack, sigmas):
    """What runs over a plain schedule, without a word to the user."""
    table, notice = run_of(pack, sigmas)
    assert notice is None
    return table


@pytest.mark.parametrize("nfe", [4, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_a_full_run_is_the_table(nfe, dtype, space):
    """Whether the host's list is its own or the solver's."""
    pack, model = pack_of(space=space), model_of(space)
    for sigmas in (host_sigmas(pack, nfe).to(dtype), plain_of(model, nfe).to(dtype)):
        x = noise(float(sigmas[0]))
        assert table_of(pack, sigmas) == pack[nfe]
        expected = sample(model.denoise, x, pack[nfe])
        assert torch.equal(run_in_host(model.denoise, x, pack, sigmas, LOWEST), expected)


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


@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("ending", [0.0, 1e-3])
@given(st.data())
def test_any_piece_of_a_plain_schedule_runs_from_its_first_level_in_as_many_calls(
    space, ending, data
):
    """Any denoise, start step and end step, with as many steps as anybody asks for."""
    pack, model = pack_of(space=space, ending=ending), model_of(space)
    total = data.draw(st.integers(1, 400))
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    sigmas = plain_of(model, total)[start : stop + 1]
    assert follows(levels_of(model), sigmas)
    whole = start == 0 and stop == total
    if whole and total not in pack.nfes or sigmas[0] <= ending:
        return
    table = table_of(pack, sigmas)
    assert table.nfe == stop - start
    assert table.sigmas[0] == pytest.approx(float(sigmas[0]), rel=1e-6)
    assert table.ending == pytest.approx(max(float(sigmas[-1]), ending), rel=1e-6)


@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("steps", [3, 5, 20])
def test_other_schedules_are_not_the_plain_one(space, steps):
    model = model_of(space)
    levels, plain = levels_of(model), plain_of(model, steps)
    karras = edm_levels(space, float(levels[-1]), float(levels[0]), steps - 1)
    normal = levels[torch.linspace(999, 0, steps).round().long()]  # ends at the lowest level, and 0
    pushed = plain.clone()
    pushed[1] = (pushed[0] * pushed[1]).sqrt()
    for other in (torch.cat([karras, torch.zeros(1)]), torch.cat([normal, torch.zeros(1)]), pushed):
        assert not follows(levels, other.float())
    assert not follows(levels, plain.flip(0)) and not follows(levels, plain[:1])
    forced = torch.cat([plain[:-2], torch.zeros(1)])  # KSampler (Advanced), without leftover noise
    assert not follows(levels, forced) and not follows(levels, torch.zeros(2))
    between = levels.double()  # of sgm_uniform: the same places but for a share of a level
    between = (between[1:] * between[:-1]).sqrt()[torch.linspace(998, 0, steps + 1).round().long()]
    assert not follows(levels, torch.cat([between[:-1], torch.zeros(1)]).float())


@pytest.mark.parametrize("space, form", [("ve", "noise"), ("ve", "data"), ("flow", "velocity")])
def test_other_schedules_run_as_given_and_say_so(space, form):
    solver = "dpmpp" if form == "data" else "ipndm"
    pack, model = pack_of(space=space, solver=solver), model_of(space)
    sigmas = torch.cat([edm_levels(space, float(pack.begins), 0.01, 5), torch.zeros(1)]).float()
    table, notice = run_of(pack, sigmas, plain=False)
    assert table == classical_table(solver, sigmas.double(), 2, space) and notice == AS_GIVEN
    told = []
    x = noise(float(sigmas[0]))
    run_in_host(model.denoise, x, pack, sigmas, LOWEST, plain=False, tell=told.append)
    assert told == [AS_GIVEN]
    again = torch.cat([sigmas[:2], sigmas[1:]])  # a level twice is no step
    assert run_of(pack, again, plain=False).table == table


@pytest.mark.parametrize(
    "sigmas, options, message",
    [
        (plain_of(model_of(), 5), {}, "no table for 5 steps.*one of 4, 6, 8"),
        ([0.05, 0.01], {"ending": 0.1}, "Raise the denoise strength"),
        ([0.0, 1.0, 80.0], {}, "unsampling is not supported"),
        ([3.0, 1.0, 2.0], {}, "unsampling is not supported"),
        ([3.0, math.nan, 0.0], {}, "not finite"),
        ([3.0, 3.0, 3.0], {}, "begins and ends at one noise level"),
    ],
)
def test_runs_that_no_table_can_make_are_refused(sigmas, options, message):
    for plain in (True, False) if "table" not in message else (True,):
        with pytest.raises(HostError, match=message):
            run_of(pack_of(**options), sigmas, plain)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_the_solver_s_own_levels_run_its_table(solver, plain):
    """Sampler (S4S) gives them; a single-step table has fewer nodes than it makes calls."""
    pack = pack_of(solver=solver)
    for nfe in pack.nfes:
        assert run_of(pack, host_sigmas(pack, nfe).float(), plain) == HostRun(pack[nfe])


def test_near_its_highest_level_a_flow_model_begins_where_it_is_asked_to():
    """With a large shift, a strength of 0.97 is a level of 0.9984."""
    pack = pack_of(space="flow")
    sigmas = torch.cat([torch.tensor([0.9984, 0.9, 0.5, 0.2]), torch.zeros(1)])
    assert table_of(pack, sigmas).sigmas[0] == pytest.approx(0.9984)


@pytest.mark.parametrize("solver", SOLVER_NAMES)
def test_every_window_of_a_table_runs_just_its_nodes(solver):
    """Where a list of the learned levels is split between two runs."""
    pack = pack_of(solver=solver)
    sigmas = pack[8].sigmas
    steps = len(sigmas) - 1
    for start in range(steps):
        for stop in range(start + 1, steps + 1):
            part = sigmas[start : stop + 1]
            table = table_of(pack, part)
            assert table.sigmas.tolist() == part.tolist()
            assert table.nfe == (stop - start) * 8 // steps


def test_the_first_part_of_a_predictor_corrector_is_the_run_up_to_there():
    """It ends with the prediction, so it equals the trace of a full run."""
    pack, model = pack_of(solver="unipc-bh2", order=3), model_of()
    seen = []
    x = noise(float(pack[6].sigmas[0]))
    sample(model.denoise, x, pack[6], callback=lambda p: seen.append(p.x))
    assert torch.allclose(sample(model.denoise, x, until_node(pack[6], 3)), seen[3])


def test_a_model_with_another_range_begins_where_it_begins():
    """Its mismatch is a warning; the levels are its own."""
    pack = pack_of()
    for top in (14.6, 700.0):
        sigmas = torch.cat([torch.linspace(top, 1.0, 6), torch.zeros(1)])
        assert table_of(pack, sigmas).sigmas[0] == pytest.approx(top)


def test_edges_of_runs():
    """One sigma runs nothing, and spaces must agree."""
    x, pack = noise(1.0), pack_of()
    assert run_in_host(None, x, pack, [0.5], LOWEST) is x
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
