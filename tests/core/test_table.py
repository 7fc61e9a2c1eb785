"""SolverTable and SolverPack: every rule broken once; classical tables by name; model times."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import mixture

from s4s_core.classical import classical_recipe, classical_table
from s4s_core.errors import TableError
from s4s_core.slicing import from_node, until_node
from s4s_core.spaces import DiscreteTimes, listed_times, log_snr, sigma_of_log_snr
from s4s_core.table import MAX_NFE, MAX_ORDER, SolverPack, SolverTable
from s4s_core.training.parameters import as_multistep

NODES = [3.0, 2.0, 1.0, 0.0]
ONES = np.ones((3, 2))
FIVE = [3.0, 2.5, 2.0, 1.5, 1.0]


def table(kind="lms", **changes):
    """A valid three-step table of order 2, with some of its fields changed."""
    lower_b = np.tril(ONES)
    calls, coefficients = {
        "lms": (NODES[:-1], {"b": lower_b}),
        "pc": (NODES[:-1], {"b": lower_b, "a": np.tril(np.ones((2, 3)), 1)}),
        "ss": ([*FIVE, 0.5], {"b": ONES, "a": np.tile([[0, 0], [1, 0]], (3, 1, 1))}),
    }[kind]
    coefficients = {**coefficients, **changes.pop("coefficients", {})}
    kept = {name: array for name, array in coefficients.items() if array is not None}
    made = {"family": kind, "order": 2, "form": "noise", "space": "ve", "sigmas": NODES}
    return SolverTable(**{**made, "call_sigmas": calls, "coefficients": kept, **changes})


def flow(first=0.9, **changes):
    levels = [first, 0.5, 0.2, 0.0]
    return {
        **{"space": "flow", "form": "velocity", "sigmas": levels, "call_sigmas": [0.9, 0.5, 0.2]},
        **changes,
    }


FIELD_RULES = [
    ({"family": "rk"}, "Unknown family 'rk'.*lms, pc, ss"),
    ({"space": "vp"}, "Unknown space 'vp'.*ve, flow"),
    ({"form": "score"}, "no form 'score'.*noise, data"),
    ({"form": "velocity"}, "ve space has no form 'velocity'"),
    *(({"order": o}, f"order must .* 1 to {MAX_ORDER}") for o in (0, MAX_ORDER + 1, 2.0, True)),
    ({"sigmas": [1.0]}, "at least 2 nodes"),
    ({"sigmas": [NODES]}, "at least 2 nodes"),
    ({"sigmas": [[3.0], [2.0, 1.0]]}, "sigmas"),
    ({"sigmas": ["high", "mid", "low", "none"]}, "sigmas must be an array of numbers"),
    ({"call_sigmas": []}, "1 to"),
    ({"call_sigmas": np.ones(MAX_NFE + 1)}, f"1 to {MAX_NFE} calls"),
    ({"sigmas": [0.0, 1.0, 2.0, 3.0]}, "strictly decreasing"),
    ({"sigmas": [3.0, 2.0, 2.0, 0.0]}, "strictly decreasing"),
    ({"sigmas": [3.0, 2.0, 1.0, -1.0]}, "sigmas must be >= 0"),
    ({"call_sigmas": [3.0, 2.0, 0.0]}, "call_sigmas must be > 0"),
    ({"sigmas": [3.0, np.nan, 1.0, 0.0]}, "sigmas must be finite"),
    ({"call_sigmas": [np.inf, 2.0, 1.0]}, "call_sigmas must be finite"),
    ({"call_sigmas": [3.0, 1.0]}, "3 steps needs 3 calls, not 2"),
    ({"guidance": [1.0, 1.0]}, r"guidance must have shape \(3,\), not \(2,\)"),
    ({"guidance": [1.0, -1e-9, 1.0]}, "guidance must be >= 0"),
    ({"guidance": [1.0, np.nan, 1.0]}, "guidance must be finite"),
    (flow(1.2), "must be <= 1"),
    (flow(call_sigmas=[1.2, 0.5, 0.2]), "must be <= 1"),
    (flow(1.0, form="noise"), "velocity or data"),
]
UNSEEN = "has a weight on an evaluation that does not exist"
ARRAY_RULES = [
    ("lms", {"b": np.full((3, 2), np.nan)}, "b must be finite"),
    ("lms", {"b": np.ones((3, 3))}, r"b must have shape \(3, 2\), not \(3, 3\)"),
    ("pc", {"a": np.ones((3, 3))}, r"a must have shape \(2, 3\), not \(3, 3\)"),
    ("lms", {"a": np.ones((2, 3))}, "needs exactly b"),
    ("pc", {"a": None}, "needs exactly a, b"),
    ("lms", {"b": ONES}, f"b {UNSEEN}"),
    ("pc", {"b": ONES}, f"b {UNSEEN}"),
    ("pc", {"a": np.ones((2, 3))}, f"a {UNSEEN}"),
    ("ss", {"a": np.ones((3, 2, 2))}, f"a {UNSEEN}"),
]
OTHER_RULES = [
    ("pc", {"call_sigmas": [3.0, 1.0]}, "3 steps needs 3 calls, not 2"),
    ("ss", {"call_sigmas": [3.0] * 4}, "order 2 and 3 steps cannot have 4 calls"),
    ("ss", {"call_sigmas": FIVE}, f"b {UNSEEN}"),
    ("ss", {"call_sigmas": FIVE, "coefficients": {"b": np.eye(2)[[0, 0, 0]]}}, f"a {UNSEEN}"),
]


@pytest.mark.parametrize(
    "kind, changes, message",
    [
        *(("lms", changes, message) for changes, message in FIELD_RULES),
        *((kind, {"coefficients": arrays}, message) for kind, arrays, message in ARRAY_RULES),
        *OTHER_RULES,
    ],
)
def test_each_rule(kind, changes, message):
    with pytest.raises(TableError, match=message):
        table(kind, **changes)


@pytest.mark.parametrize("family", ["lms", "pc", "ss"])
def test_tables_are_immutable(family):
    source = np.array(NODES)
    made = table(family, sigmas=source)
    assert (made.steps, made.ending, made.nfe) == (3, 0.0, 6 if family == "ss" else 3)
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


def test_tables_are_equal_by_content():
    one, two = table(), table(sigmas=tuple(NODES))
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    for other in (
        table("pc"),
        table(form="data"),
        table(sigmas=[3.0, 2.0, 1.0 + 1e-15, 0.0]),
        table(call_sigmas=[3.0, 2.0, 1.5]),
        table(coefficients={"b": 2 * np.tril(ONES)}),
        table(guidance=[1.0, 1.0, 1.0]),
        "a table",
    ):
        assert one != other


def test_replace_validates_again():
    made = table()
    assert made.replace(sigmas=[4.0, 2.0, 1.0, 0.0]).sigmas[0] == 4.0 and made.replace() == made
    for wrong in ({"sigmas": [4.0, 5.0, 1.0, 0.0]}, {"c": np.ones(2)}):
        with pytest.raises(TableError, match="decreasing|needs exactly b"):
            made.replace(**wrong)


@pytest.mark.parametrize("family", ["lms", "pc", "ss"])
def test_multipliers_follow_their_calls(family):
    """Whatever cuts, changes or rewrites a table keeps the multiplier of each call."""
    plain, per_step = table(family), 2 if family == "ss" else 1
    values = np.arange(plain.nfe) / 4
    made = plain.replace(guidance=values)
    assert made != plain and made.replace(guidance=None) == plain
    assert not plain.arrays.keys() & {"guidance"} and plain.guidance is None
    assert (made.replace(sigmas=[4.0, *NODES[1:]]).guidance == values).all()
    with pytest.raises(ValueError, match="read-only"):
        made.guidance[0] = 2.0
    for node in (1, 2):
        late, early = from_node(made, node), until_node(made, node)
        assert late.guidance.tolist() == values[node * per_step :].tolist()
        assert early.guidance.tolist() == values[: node * per_step].tolist()
        assert late.replace(guidance=None) == from_node(plain, node)
        assert early.replace(guidance=None) == until_node(plain, node)
    flat = as_multistep(made)
    assert flat.guidance.tolist() == values.tolist()
    assert flat.replace(guidance=None) == as_multistep(plain)
    assert SolverPack.of(made).sets_guidance and not SolverPack.of(plain).sets_guidance


def pack_table(n, space="ve"):
    return classical_table("euler", np.linspace(0.9, 0.0, n + 1), space=space)


def test_packs_hold_tables_by_nfe():
    pack = SolverPack.of(pack_table(5), pack_table(3), metadata={"model": "x"})
    assert pack.nfes == (3, 5) and pack.space == "ve" and pack[5] == pack_table(5)
    with pytest.raises(TableError, match="no table for 4 steps.*one of 3, 5"):
        pack[4]
    with pytest.raises(TypeError):
        pack.tables[4] = pack_table(4)
    assert pack == SolverPack.of(pack_table(3), pack_table(5), metadata={"model": "x"})


@pytest.mark.parametrize(
    "tables, message",
    [
        ({}, "at least one"),
        ({4: pack_table(5)}, "Entry 4 .* 4 calls"),
        ({5: "table"}, "Entry 5"),
        ({"5": pack_table(5)}, "Entry 5"),
        ({3: pack_table(3), 5: pack_table(5, "flow")}, "same space"),
    ],
)
def test_packs_are_validated(tables, message):
    with pytest.raises(TableError, match=message):
        SolverPack(tables)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("eulr", {}, "Unknown solver 'eulr'.*Did you mean 'euler'"),
        ("karras", {}, "one of euler, ddim"),
        ("dpmpp", {"rho": 3}, "no option 'rho'.*order, form"),
        ("euler", {"order": 2}, "order 1"),
        ("heun", {"order": 3}, "order 2"),
        ("ipndm", {"order": 5}, "orders 1 to 4"),
        ("dpm-solver", {"order": 1}, "orders 2 and 3"),
        ("dpmpp", {"order": 4}, "orders 1 to 3"),
        ("unipc-bh1", {"order": 4}, "orders 1 to 3"),
        *(("gaussian", {"order": order}, "order must be an integer") for order in (0, 1.5)),
        ("dpmpp", {"form": "velocity"}, "no form 'velocity'"),
        ("euler", {"space": "vp"}, "Unknown space 'vp'"),
        *(("euler", {"sigmas": nodes}, "at least two nodes") for nodes in ([1.0], [NODES])),
    ],
)
def test_wrong_choices_are_explained(name, options, message):
    with pytest.raises(TableError, match=message):
        classical_table(name, **{"sigmas": NODES, "space": "ve"} | options)


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_a_space_must_be_given_as_its_name_a_model_or_a_table(space):
    """A default of ve would silently give wrong coefficients on a flow model's nodes."""
    for missing in ({}, {"space": None}, {"space": object()}):
        with pytest.raises(TableError, match="Pass space='ve' or 'flow', or the model itself"):
            classical_table("dpmpp", NODES, 2, **missing)
    nodes = torch.linspace(0.9, 0.1, 5, dtype=torch.float64)
    named = classical_table("dpmpp", nodes, 2, space)
    assert named.space == space
    for owner in (mixture(space), named, SolverPack.of(named)):
        assert classical_table("dpmpp", nodes, order=2, space=owner) == named
        assert classical_recipe("dpmpp", nodes, owner, order=2).table() == named


@pytest.mark.parametrize(
    "name", ["euler", "adams-bashforth", "exp-lagrange", "dpm-solver", "unipc-bh2", "heun"]
)
def test_nodes_that_no_solver_can_use_are_refused(name):
    nan, inf = float("nan"), float("inf")
    rising, equal, negative = [1.0, 2.0, 3.0], [3.0, 2.0, 2.0, 1.0], [3.0, 1.0, -1.0]
    others = [2.0, 2.0], [3.0, nan, 1.0], [inf, 2.0, 1.0], [3.0, 0.0, 0.0], ["high", "low"]
    for nodes in (rising, equal, negative, *others):
        with pytest.raises(TableError):
            classical_table(name, nodes, space="ve")


def test_gaussian_tables_follow_their_seed():
    one, same, other = (classical_table("gaussian", NODES, space="ve", seed=s) for s in (1, 1, 2))
    assert one == same and one != other


TIMES = {"scaled_linear": DiscreteTimes.scaled_linear(), "linear": DiscreteTimes.linear()}


@given(st.sampled_from(["ve", "flow"]), st.floats(-12, 12))
def test_log_snr_has_an_inverse(space, lam):
    lam = torch.tensor(lam, dtype=torch.float64)
    assert abs(log_snr(space, sigma_of_log_snr(space, lam)) - lam) < 1e-9


@given(
    st.sampled_from(list(TIMES)),
    st.lists(st.floats(0, 999), min_size=2, max_size=5),
    st.floats(0, 1),
)
def test_discrete_times_increase_and_have_an_inverse(name, values, share):
    model, times = TIMES[name], torch.tensor(sorted(values), dtype=torch.float64)
    sigmas = model.sigma(times)
    assert (model.time(sigmas) - times).abs().max() < 1e-9
    assert ((sigmas.diff() > 0) | (times.diff() < 1e-9)).all()
    low, high = model.sigma_min, model.sigma_max
    sigma = torch.tensor(low * (high / low) ** share, dtype=torch.float64)
    assert abs(model.sigma(model.time(sigma)) / sigma - 1) < 1e-9


def test_discrete_times_are_clamped_and_follow_their_definition():
    times = TIMES["scaled_linear"]
    ends = times.sigma(torch.tensor([-5.0, 0.0, 999.0, 2000.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([times.sigma_min] * 2 + [times.sigma_max] * 2, rel=1e-14)
    assert times.time(torch.tensor([0.0, 1e9], dtype=torch.float64)).tolist() == [0, times.last]
    assert (times.sigma_min, times.sigma_max) == pytest.approx((0.02917, 14.6146), rel=1e-4)
    abar = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)[500]
    expected = ((1 - abar) / abar) ** 0.5
    assert times.sigma(torch.tensor(500.0)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "bad", [[0.5], [0.5, 0.5], [0.5, 0.9], [1.0, 0.5], [0.5, 0.0], [[0.9, 0.5]]]
)
def test_discrete_times_need_a_decreasing_list(bad):
    with pytest.raises(TableError, match="strictly decreasing"):
        DiscreteTimes(bad)


@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0])
def test_a_listed_flow_model_reveals_its_shift(shift):
    time = torch.arange(1, 1001) / 1000  # float32, as hosts hold it
    times = listed_times("flow", shift * time / (1 + (shift - 1) * time))
    assert times.shift == pytest.approx(shift, rel=1e-5)
    assert times.sigma_min == pytest.approx(shift / (999 + shift), rel=1e-5)
    values = torch.tensor([0.001, 0.4, 1.0], dtype=torch.float64)
    assert times.time(times.sigma(values)).tolist() == pytest.approx(values.tolist(), rel=1e-12)


def test_a_listed_discrete_model_reveals_its_times_which_are_differentiable():
    want = TIMES["scaled_linear"]
    times = listed_times("ve", want.log_sigmas.exp().float())
    assert torch.allclose(times.log_sigmas, want.log_sigmas, atol=1e-6)
    times = TIMES["linear"]
    at = torch.tensor([0.3, 10.7, 512.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(times.sigma, at)
    assert torch.autograd.gradcheck(times.time, times.sigma(at).detach().requires_grad_())
