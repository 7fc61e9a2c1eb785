"""SolverTable and SolverPack: every rule broken once; names and options; times and schedules."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import mixture

from s4s_core.classical import classical_table
from s4s_core.errors import S4SError, TableError
from s4s_core.schedules import schedule
from s4s_core.schedules.ays import TABLES
from s4s_core.spaces import DiscreteTimes, listed_times, log_snr, sigma_of_log_snr
from s4s_core.table import MAX_NFE, MAX_ORDER, SolverPack, SolverTable

NODES = [3.0, 2.0, 1.0, 0.0]


def fields(kind="lms", **changes):
    """Valid fields of a three-step table of order 2, with some of them changed."""
    lower_b, ones = np.tril(np.ones((3, 2))), np.ones((3, 2))
    calls, coefficients = {
        "lms": (NODES[:-1], {"b": lower_b}),
        "pc": (NODES[:-1], {"b": lower_b, "a": np.tril(np.ones((2, 3)), 1)}),
        "ss": (
            [3.0, 2.5, 2.0, 1.5, 1.0, 0.5],
            {"b": ones, "a": np.tile([[0, 0], [1, 0]], (3, 1, 1))},
        ),
    }[kind]
    coefficients = {**coefficients, **changes.pop("coefficients", {})}
    table = {"family": kind, "order": 2, "form": "noise", "space": "ve", "sigmas": NODES}
    return {**table, "call_sigmas": calls, "coefficients": coefficients, **changes}


def table(kind="lms", **changes):
    return SolverTable(**fields(kind, **changes))


# --- rules


@pytest.mark.parametrize("family", ["lms", "pc", "ss"])
def test_the_base_case_is_valid(family):
    made = table(family)
    assert (made.steps, made.ending, made.nfe) == (3, 0.0, 6 if family == "ss" else 3)


def flow(**changes):
    return {
        "space": "flow",
        "form": "velocity",
        "sigmas": [0.9, 0.5, 0.2, 0.0],
        "call_sigmas": [0.9, 0.5, 0.2],
        **changes,
    }


def nan(shape):
    return np.full(shape, np.nan)


BROKEN = {
    "family": ("lms", {"family": "rk"}, "Unknown family 'rk'.*lms, pc, ss"),
    "space": ("lms", {"space": "vp"}, "Unknown space 'vp'.*ve, flow"),
    "form": ("lms", {"form": "score"}, "no form 'score'.*noise, data"),
    "form of the space": ("lms", {"form": "velocity"}, "ve space has no form 'velocity'"),
    "order zero": ("lms", {"order": 0}, f"whole number from 1 to {MAX_ORDER}"),
    "order too high": ("lms", {"order": MAX_ORDER + 1}, "whole number"),
    "order of float": ("lms", {"order": 2.0}, "whole number"),
    "order of bool": ("lms", {"order": True}, "whole number"),
    "one node": ("lms", {"sigmas": [1.0]}, "2 or more nodes"),
    "nodes as matrix": ("lms", {"sigmas": [NODES]}, "2 or more nodes"),
    "ragged nodes": ("lms", {"sigmas": [[3.0], [2.0, 1.0]]}, "sigmas"),
    "no calls": ("lms", {"call_sigmas": []}, "1 to"),
    "too many calls": ("lms", {"call_sigmas": np.ones(MAX_NFE + 1)}, f"1 to {MAX_NFE} calls"),
    "words": (
        "lms",
        {"sigmas": ["high", "low"], "call_sigmas": [1.0], "coefficients": {"b": np.ones((1, 2))}},
        "sigmas is not an array of numbers",
    ),
    "increasing": ("lms", {"sigmas": [0.0, 1.0, 2.0, 3.0]}, "strictly decreasing"),
    "repeated": ("lms", {"sigmas": [3.0, 2.0, 2.0, 0.0]}, "strictly decreasing"),
    "negative": ("lms", {"sigmas": [3.0, 2.0, 1.0, -1.0]}, "negative"),
    "call at zero": ("lms", {"call_sigmas": [3.0, 2.0, 0.0]}, "positive"),
    "nan in nodes": ("lms", {"sigmas": [3.0, np.nan, 1.0, 0.0]}, "sigmas.*not finite"),
    "infinite call": ("lms", {"call_sigmas": [np.inf, 2.0, 1.0]}, "call_sigmas.*not finite"),
    "nan in b": ("lms", {"coefficients": {"b": nan((3, 2))}}, "b contains.*not finite"),
    "shape of b": (
        "lms",
        {"coefficients": {"b": np.ones((3, 3))}},
        r"b has shape \(3, 3\).*\(3, 2\)",
    ),
    "shape of a": (
        "pc",
        {"coefficients": {"a": np.ones((3, 3))}},
        r"a has shape \(3, 3\).*\(2, 3\)",
    ),
    "extra array": ("lms", {"coefficients": {"a": np.ones((2, 3))}}, "holds exactly b"),
    "lms calls": ("lms", {"call_sigmas": [3.0, 1.0]}, "3 steps needs 3 calls, not 2"),
    "pc calls": ("pc", {"call_sigmas": [3.0, 1.0]}, "3 steps needs 3 calls, not 2"),
    "ss calls": ("ss", {"call_sigmas": [3.0] * 4}, "order 2 and 3 steps cannot have 4 calls"),
    "b before the first call": (
        "lms",
        {"coefficients": {"b": np.ones((3, 2))}},
        "b weighs an evaluation",
    ),
    "pc's b before the first": (
        "pc",
        {"coefficients": {"b": np.ones((3, 2))}},
        "b weighs an evaluation",
    ),
    "a before the first call": (
        "pc",
        {"coefficients": {"a": np.ones((2, 3))}},
        "a weighs an evaluation",
    ),
    "a not lower": ("ss", {"coefficients": {"a": np.ones((3, 2, 2))}}, "a weighs an evaluation"),
    "b on a missing stage": (
        "ss",
        {"call_sigmas": [3.0, 2.5, 2.0, 1.5, 1.0]},
        "b weighs an evaluation",
    ),
    "a on a missing stage": (
        "ss",
        {"call_sigmas": [3.0, 2.5, 2.0, 1.5, 1.0], "coefficients": {"b": [[1, 1], [1, 1], [1, 0]]}},
        "a weighs an evaluation",
    ),
    "flow above one": ("lms", flow(sigmas=[1.2, 0.5, 0.2, 0.0]), "must not exceed 1"),
    "flow call above one": ("lms", flow(call_sigmas=[1.2, 0.5, 0.2]), "must not exceed 1"),
    "flow noise from one": (
        "lms",
        flow(form="noise", sigmas=[1.0, 0.5, 0.2, 0.0]),
        "velocity or data",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_rule(case):
    kind, changes, message = BROKEN[case]
    with pytest.raises(TableError, match=message):
        table(kind, **changes)


def test_a_missing_array():
    broken = fields("pc")
    del broken["coefficients"]["a"]
    with pytest.raises(TableError, match="holds exactly a, b"):
        SolverTable(**broken)


# --- frozen, equal by content


@pytest.mark.parametrize("family", ["lms", "pc", "ss"])
def test_tables_cannot_be_changed(family):
    source = np.array(NODES)
    made = table(family, sigmas=source)
    source[0] = 99.0
    assert made.sigmas[0] == 3.0, "the table shares memory with its caller"
    for array in made.arrays.values():
        assert array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.order = 3
    with pytest.raises(TypeError):
        made.coefficients["b"] = source


def test_equality_and_hash_are_by_content():
    one, two = table(), table(sigmas=tuple(NODES))
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    for other in (
        table("pc"),
        table(form="data"),
        table(sigmas=[3.0, 2.0, 1.0 + 1e-15, 0.0]),
        table(call_sigmas=[3.0, 2.0, 1.5]),
        table(coefficients={"b": 2 * np.tril(np.ones((3, 2)))}),
        "a table",
    ):
        assert one != other


def test_replace_validates_again():
    made = table()
    moved = made.replace(sigmas=[4.0, 2.0, 1.0, 0.0])
    assert moved.sigmas[0] == 4.0 and made.sigmas[0] == 3.0
    assert moved.coefficients["b"] is not made.coefficients["b"]
    assert made.replace() == made
    with pytest.raises(TableError, match="decreasing"):
        made.replace(sigmas=[4.0, 5.0, 1.0, 0.0])
    with pytest.raises(TableError, match="holds exactly b"):
        made.replace(c=np.ones(2))


def test_errors_are_meant_for_people():
    """One base class, and a ValueError for code that does not know it."""
    assert issubclass(TableError, S4SError) and issubclass(TableError, ValueError)


# --- packs


def pack_table(n, space="ve"):
    return classical_table("euler", np.linspace(0.9, 0.0, n + 1), space=space)


def test_packs_hold_tables_by_nfe():
    pack = SolverPack.of(pack_table(5), pack_table(3), metadata={"model": "x"})
    assert pack.nfes == (3, 5) and pack.space == "ve" and pack.metadata["model"] == "x"
    assert pack[5] == pack_table(5)
    with pytest.raises(TableError, match="no table for 4 steps: choose one of 3, 5"):
        pack[4]
    with pytest.raises(TypeError):
        pack.tables[4] = pack_table(4)


@pytest.mark.parametrize(
    "tables, message",
    [
        ({}, "at least one"),
        ({4: pack_table(5)}, "entry 4 .* 4 calls"),
        ({5: "table"}, "entry 5"),
        ({"5": pack_table(5)}, "entry 5"),
        ({3: pack_table(3), 5: pack_table(5, "flow")}, "one space"),
    ],
)
def test_packs_are_validated(tables, message):
    with pytest.raises(TableError, match=message):
        SolverPack(tables)


def test_packs_are_identified_by_content():
    one, two = (SolverPack.of(pack_table(5), metadata={"model": name}) for name in "xx")
    assert one == two and one.digest == two.digest
    assert one.digest != SolverPack.of(pack_table(5), metadata={"model": "y"}).digest
    assert one.digest != SolverPack.of(pack_table(4), metadata={"model": "x"}).digest


# --- names and options of solvers


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: classical_table("eulr", NODES), "Unknown solver 'eulr'.*Did you mean 'euler'"),
        (lambda: classical_table("karras", NODES), "choose one of euler, ddim"),
        (lambda: classical_table("dpmpp", NODES, rho=3), "no option 'rho': it takes order, form"),
        (lambda: classical_table("euler", NODES, order=2), "euler has order 1"),
        (lambda: classical_table("heun", NODES, order=3), "heun has order 2"),
        (lambda: classical_table("ipndm", NODES, order=5), "orders 1 to 4"),
        (lambda: classical_table("dpm-solver", NODES, order=1), "orders 2 and 3"),
        (lambda: classical_table("dpmpp", NODES, order=4), "orders 1 to 3"),
        (lambda: classical_table("unipc-bh1", NODES, order=4), "orders 1 to 3"),
        (lambda: classical_table("gaussian", NODES, order=0), "whole number"),
        (lambda: classical_table("exp-lagrange", NODES, order=1.5), "whole number"),
        (lambda: classical_table("dpmpp", NODES, form="velocity"), "no form 'velocity'"),
        (lambda: classical_table("euler", NODES, space="vp"), "Unknown space 'vp'"),
        (lambda: classical_table("euler", [1.0]), "at least two nodes"),
        (lambda: classical_table("euler", [NODES]), "at least two nodes"),
        (lambda: schedule("logsnrr", 5, mixture("ve")), "Did you mean 'logsnr'"),
        (lambda: schedule("uniform", 5, mixture("ve"), rho=3), "no option 'rho': it takes none"),
        (lambda: schedule("edm", 0, mixture("ve")), "whole number from 1"),
        (lambda: schedule("edm", 2.0, mixture("ve")), "whole number from 1"),
        (lambda: schedule("edm", 5, mixture("ve"), ending=-1.0), "between 0 and sigma_max"),
        (lambda: schedule("edm", 5, mixture("ve"), ending=80.0), "between 0 and sigma_max"),
        (lambda: schedule("ays", 5, mixture("flow")), "no table for flow"),
        (lambda: schedule("ays", 5, mixture("ve"), variant="sd9"), "choose one of sd1, sdxl, svd"),
    ],
)
def test_wrong_choices_are_explained(call, message):
    with pytest.raises(TableError, match=message):
        call()


@pytest.mark.parametrize(
    "name", ["euler", "adams-bashforth", "exp-lagrange", "dpm-solver", "unipc-bh2", "heun"]
)
@pytest.mark.parametrize(
    "nodes",
    [
        [1.0, 2.0, 3.0],
        [3.0, 2.0, 2.0, 1.0],
        [2.0, 2.0],
        [3.0, 1.0, -1.0],
        [3.0, float("nan"), 1.0],
        [float("inf"), 2.0, 1.0],
        [3.0, 0.0, 0.0],
        ["high", "low"],
    ],
)
def test_nodes_that_no_solver_can_use(name, nodes):
    with pytest.raises(TableError):
        classical_table(name, nodes)


def test_gaussian_tables_follow_their_seed():
    one, same, other = (classical_table("gaussian", NODES, seed=s) for s in (1, 1, 2))
    assert one == same and one != other


# --- spaces and discrete times

TIMES = {"scaled_linear": DiscreteTimes.scaled_linear(), "linear": DiscreteTimes.linear()}


@given(st.sampled_from(["ve", "flow"]), st.floats(-12, 12))
def test_log_snr_inverse(space, lam):
    lam = torch.tensor(lam, dtype=torch.float64)
    assert abs(log_snr(space, sigma_of_log_snr(space, lam)) - lam) < 1e-9


@given(st.sampled_from(list(TIMES)), st.lists(st.floats(0, 999), min_size=1, max_size=5))
def test_discrete_times_inverse(name, times):
    times = torch.tensor(times, dtype=torch.float64)
    back = TIMES[name].time(TIMES[name].sigma(times))
    assert (back - times).abs().max() < 1e-9


@given(st.sampled_from(list(TIMES)), st.floats(0, 1))
def test_discrete_times_inverse_from_sigma(name, share):
    low, high = TIMES[name].sigma_min, TIMES[name].sigma_max
    sigma = torch.tensor(low * (high / low) ** share, dtype=torch.float64)
    assert abs(TIMES[name].sigma(TIMES[name].time(sigma)) / sigma - 1) < 1e-9


@given(
    st.sampled_from(list(TIMES)), st.lists(st.floats(0, 999), min_size=2, max_size=2, unique=True)
)
def test_discrete_times_are_increasing(name, pair):
    low, high = TIMES[name].sigma(torch.tensor(sorted(pair), dtype=torch.float64))
    assert low < high or max(pair) - min(pair) < 1e-9


def test_discrete_times_clamp_and_follow_their_definition():
    times = TIMES["scaled_linear"]
    ends = times.sigma(torch.tensor([-5.0, 0.0, 999.0, 2000.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([times.sigma_min] * 2 + [times.sigma_max] * 2, rel=1e-14)
    assert times.time(torch.tensor([0.0, 1e9], dtype=torch.float64)).tolist() == [0, times.last]
    assert (times.sigma_min, times.sigma_max) == pytest.approx((0.02917, 14.6146), rel=1e-4)
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = np.cumprod(1 - betas)[500]
    assert times.sigma(torch.tensor(500.0)).item() == pytest.approx(
        ((1 - kept) / kept) ** 0.5, rel=1e-12
    )


@pytest.mark.parametrize(
    "bad", [[0.5], [0.5, 0.5], [0.5, 0.9], [1.0, 0.5], [0.5, 0.0], [[0.9, 0.5]]]
)
def test_discrete_times_need_a_decreasing_list(bad):
    with pytest.raises(TableError, match="strictly decreasing"):
        DiscreteTimes(bad)


@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0])
def test_times_of_a_listed_flow_model(shift):
    """A float32 list, as hosts hold it, tells the shift that it was made with."""
    time = torch.arange(1, 1001) / 1000
    times = listed_times("flow", shift * time / (1 + (shift - 1) * time))
    assert times.shift == pytest.approx(shift, rel=1e-5)
    assert times.sigma_min == pytest.approx(shift / (999 + shift), rel=1e-5)
    some = torch.tensor([0.001, 0.4, 1.0], dtype=torch.float64)
    assert times.time(times.sigma(some)).tolist() == pytest.approx(some.tolist(), rel=1e-12)


def test_times_of_a_listed_discrete_model():
    want = TIMES["scaled_linear"]
    times = listed_times("ve", want.log_sigmas.exp().float())
    assert torch.allclose(times.log_sigmas, want.log_sigmas, atol=1e-6)


def test_discrete_times_are_differentiable():
    times = TIMES["linear"]
    at = torch.tensor([0.3, 10.7, 512.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(times.sigma, at)
    assert torch.autograd.gradcheck(times.time, times.sigma(at).detach().requires_grad_())


# --- schedules

MODELS = {
    "ve": SimpleNamespace(space="ve", sigma_min=0.002, sigma_max=80.0, times=None),
    "vp": SimpleNamespace(
        space="ve",
        times=TIMES["linear"],
        sigma_min=TIMES["linear"].sigma_min,
        sigma_max=TIMES["linear"].sigma_max,
    ),
    "flow": SimpleNamespace(space="flow", sigma_min=0.001, sigma_max=1.0, times=None),
    "shifted": SimpleNamespace(space="flow", sigma_min=0.003, sigma_max=0.97),
}
CLOSED = ["uniform", "quadratic", "edm", "logsnr"]


def check_nodes(nodes, n, model, ending):
    assert nodes.dtype == torch.float64 and nodes.shape == (n + 1,)
    assert nodes[0].item() == model.sigma_max and nodes[-1].item() == ending
    assert bool((nodes[1:] < nodes[:-1]).all()) and bool((nodes[:-1] > 0).all())


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CLOSED),
    st.sampled_from(list(MODELS)),
    st.integers(1, 50),
    st.one_of(st.just(0.0), st.just("sigma_min"), st.floats(0.01, 0.5)),
)
def test_closed_schedules(name, model, n, ending):
    """Strictly decreasing, n + 1 points, exact ends; the ending is in units of sigma_max."""
    model = MODELS[model]
    ending = model.sigma_min if ending == "sigma_min" else ending * model.sigma_max
    check_nodes(schedule(name, n, model, ending=ending), n, model, ending)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(TABLES)), st.sampled_from(["ve", "vp"]), st.integers(1, 50), st.booleans()
)
def test_ays_schedules(variant, model, n, to_zero):
    model = MODELS[model]
    ending = 0.0 if to_zero else model.sigma_min
    check_nodes(schedule("ays", n, model, ending=ending, variant=variant), n, model, ending)


def test_ays_gives_the_published_table_on_its_own_range():
    published = TABLES["sdxl"]
    model = SimpleNamespace(space="ve", sigma_min=published[-1], sigma_max=published[0])
    nodes = schedule("ays", 10, model, ending=published[-1], variant="sdxl")
    np.testing.assert_allclose(nodes.numpy(), published, rtol=1e-12)


@pytest.mark.parametrize(
    "name, warp",
    [
        ("uniform", lambda s: s),
        ("quadratic", np.sqrt),
        ("edm", lambda s: s ** (1 / 7)),
        ("logsnr", np.log),
    ],
)
def test_schedules_are_uniform_in_their_own_variable(name, warp):
    nodes = schedule(name, 8, MODELS["ve"], ending=0.002).numpy()
    steps = np.diff(warp(nodes))
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9)


@pytest.mark.parametrize("name, power", [("uniform", 1), ("quadratic", 2)])
def test_vp_schedules_are_uniform_in_discrete_time(name, power):
    model = MODELS["vp"]
    times = model.times.time(schedule(name, 8, model, ending=model.sigma_min)).numpy()
    np.testing.assert_allclose(np.diff(times ** (1 / power)), -(999 ** (1 / power)) / 8, rtol=1e-6)


def test_an_ending_of_zero_moves_only_the_last_node():
    model = MODELS["ve"]
    to_zero, to_min = (schedule("edm", 6, model, ending=e) for e in (0.0, model.sigma_min))
    assert torch.equal(to_zero[:-1], to_min[:-1])
