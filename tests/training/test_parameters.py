"""Free numbers of a table: Gauss-Newton's `Parameters` and the paper's `Times`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import FAMILIES, SOLVER, changed, moved, small, table_of
from problems import PROBLEMS, SPACE_FORMS
from torch.autograd import gradcheck

from s4s_core.classical import classical_table
from s4s_core.errors import TrainingError
from s4s_core.names import SPACES
from s4s_core.sampling import sample
from s4s_core.schedules import schedule
from s4s_core.spaces import DiscreteTimes, log_snr
from s4s_core.training.parameters import Parameters, as_multistep, coefficient_basis, widened
from s4s_core.training.student import CLIP_SHARE, DOMAINS, Student, Times

LIMITS = {"ve": (0.002, 80.0), "flow": (0.001, 1.0)}
CASES = [(f, s) for f in FAMILIES for s in SPACES]


def parameters_of(family, space, **options):
    ending, form = options.pop("ending", 0.0), options.pop("form", None)
    table = table_of(family, space, ending=ending, form=form)
    return Parameters.of(table, LIMITS[space], **options)


# --- Parameters


@pytest.mark.parametrize("ending", [0.0, 0.05])
@pytest.mark.parametrize("family, space", CASES)
def test_zero_is_the_table(family, space, ending):
    parameters = parameters_of(family, space, ending=ending)
    arrays = parameters.table.arrays
    same = parameters.at(torch.zeros(parameters.count, dtype=torch.float64)).arrays
    for name in ("sigmas", "call_sigmas"):
        np.testing.assert_allclose(same[name], arrays[name], rtol=1e-14)
    for name in set(arrays) - {"sigmas", "call_sigmas"}:
        np.testing.assert_array_equal(same[name], arrays[name])


@pytest.mark.parametrize("family, space", CASES)
def test_coefficients_alone_leave_times_bit_for_bit(family, space):
    parameters = parameters_of(family, space, times=False)
    table = parameters.at(moved(parameters.count))
    np.testing.assert_array_equal(table.sigmas, parameters.table.sigmas)
    np.testing.assert_array_equal(table.call_sigmas, parameters.table.call_sigmas)


@pytest.mark.parametrize("family, space", CASES)
def test_times_alone_leave_coefficients_bit_for_bit(family, space):
    parameters = parameters_of(family, space, coefficients=False)
    table = parameters.at(moved(parameters.count))
    for name, array in parameters.table.coefficients.items():
        np.testing.assert_array_equal(table.coefficients[name], array)
    assert (table.sigmas[1:-1] != parameters.table.sigmas[1:-1]).all()


@pytest.mark.parametrize("nfe", [3, 5, 8])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_counts_are_the_papers(nfe, order):
    """k (2N + 1 - k) / 2 for a multistep solver of order k (table:solver-types)."""
    table = classical_table("ipndm", schedule("edm", nfe, small()), order, "ve")
    count = coefficient_basis(table).shape[1]
    assert count == order * (2 * nfe + 1 - order) // 2
    assert (nfe, order) != (5, 3) or count == 12


def test_counts_of_the_other_families():
    """The corrector adds one weight a row and starts one call later; a stage sees earlier ones."""
    assert coefficient_basis(table_of("pc", nfe=4)).shape[1] == (1 + 2 + 2 + 2) + (2 + 3 + 3)
    assert coefficient_basis(table_of("ss", nfe=6)).shape[1] == 3 * (2 + 1)


def test_every_free_coefficient_moves_alone_and_no_other_does():
    for family in FAMILIES:
        table = table_of(family)
        basis = coefficient_basis(table).numpy()
        free = np.concatenate([table.masks[name].flatten() for name in sorted(table.masks)])
        np.testing.assert_array_equal(basis.sum(1), free)
        np.testing.assert_array_equal(basis.sum(0), np.ones(free.sum()))


def test_fixed_ties_rows_of_the_same_order():
    table = classical_table("ipndm", schedule("edm", 6, small()), 3, "ve")
    parameters = Parameters.of(table, LIMITS["ve"], times=False, fixed=True)
    assert parameters.count == 1 + 2 + 3
    change = parameters.at(moved(parameters.count)).coefficients["b"] - table.coefficients["b"]
    np.testing.assert_allclose(change[2:], np.tile(change[2], (4, 1)), atol=1e-15)
    assert not np.allclose(change[0], change[1]) and not np.allclose(change[1], change[2])


@pytest.mark.parametrize("family", ["lms", "pc"])
def test_consistent_keeps_the_sum_of_each_row(family):
    table = table_of(family, nfe=5)
    parameters = Parameters.of(table, LIMITS["ve"], times=False, consistent="all")
    assert parameters.count == sum((m.sum(-1) - 1).sum() for m in table.masks.values())
    changed_table = parameters.at(moved(parameters.count, size=0.3))
    for name, array in table.coefficients.items():
        np.testing.assert_allclose(changed_table.coefficients[name].sum(-1), array.sum(-1))
        assert not np.allclose(changed_table.coefficients[name], array)


@pytest.mark.parametrize("family, space", CASES)
def test_a_node_takes_its_calls_along(family, space):
    parameters = parameters_of(family, space, coefficients=False, form="data")
    theta = torch.zeros(parameters.count, dtype=torch.float64)
    theta[0] = 0.1
    before, after = parameters.table, parameters.at(theta)
    stride = before.nfe_per_step

    def shift(old, new):
        old, new = (torch.tensor(a)[1:] for a in (old, new))
        return log_snr(space, new) - log_snr(space, old)

    node = shift(before.sigmas[:-1], after.sigmas[:-1])
    call = shift(before.call_sigmas, after.call_sigmas)
    assert torch.allclose(node, 0.1 * torch.eye(before.steps, dtype=torch.float64)[1, 1:])
    owned = torch.arange(1, before.nfe) // stride == 1
    assert torch.allclose(call, 0.1 * owned.double())


@pytest.mark.parametrize("family, space", CASES)
def test_a_call_shift_moves_that_call_only(family, space):
    parameters = parameters_of(family, space, coefficients=False, form="data")
    for k, call in enumerate(parameters.calls.tolist()):
        theta = torch.zeros(parameters.count, dtype=torch.float64)
        theta[len(parameters.nodes) + k] = -0.1
        table = parameters.at(theta)
        same = table.call_sigmas / parameters.table.call_sigmas
        np.testing.assert_allclose(np.delete(same, call), 1)
        assert same[call] > 1.0001
        np.testing.assert_allclose(table.sigmas, parameters.table.sigmas)


@pytest.mark.parametrize("space, form", SPACE_FORMS)
def test_calls_are_decoupled_where_a_node_is_more_than_its_factor(space, form):
    table = classical_table("ipndm", PROBLEMS[space].nodes(5), 3, space)
    free = Parameters.of(replace(table, form=form), LIMITS[space]).calls
    plain = form == "velocity" or (space, form) == ("ve", "noise")
    assert len(free) == (0 if plain else 4)


@pytest.mark.parametrize("family, space", CASES)
@pytest.mark.parametrize("size", [0.5, 30.0])
def test_ends_are_fixed_and_calls_stay_within_the_model(family, space, size):
    parameters = parameters_of(family, space, form="data")
    arrays = parameters.arrays(moved(parameters.count, size=size))
    sigmas, calls = arrays["sigmas"], arrays["call_sigmas"]
    assert sigmas[0] == parameters.table.sigmas[0] and sigmas[-1] == parameters.table.sigmas[-1]
    assert calls[0] == parameters.table.call_sigmas[0]
    low, high = LIMITS[space]
    assert (calls >= low).all() and (calls <= high).all()


@pytest.mark.parametrize("family, space", CASES)
def test_arrays_are_differentiable(family, space):
    parameters = parameters_of(family, space, form="data")

    def through(theta):
        return tuple(parameters.arrays(theta).values())

    assert gradcheck(through, moved(parameters.count).requires_grad_())


@pytest.mark.parametrize("family, space", CASES)
def test_rows_of_thetas_give_rows_of_arrays(family, space):
    parameters = parameters_of(family, space)
    thetas = torch.stack([moved(parameters.count, seed) for seed in range(3)])
    rows = parameters.arrays(thetas)
    for row, theta in enumerate(thetas):
        for name, array in parameters.arrays(theta).items():
            torch.testing.assert_close(rows[name][row], array, rtol=1e-14, atol=1e-15)


# --- a predictor-corrector as a multistep table


@pytest.mark.parametrize("space, form", [("ve", "noise"), ("ve", "data"), ("flow", "data")])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_as_multistep_is_the_same_solver(space, form, order):
    problem = PROBLEMS[space]
    nodes = problem.nodes(5)
    table = classical_table("unipc-bh2", nodes, order, space, form=form)
    calls = table.call_sigmas * (1 + 0.01 * np.arange(5))  # decoupled calls too
    table = table.replace(call_sigmas=calls)
    flat = as_multistep(table)
    assert (flat.family, flat.order) == ("lms", order + 1)
    ours, theirs = (sample(problem.model.denoise, problem.x, t) for t in (flat, table))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_as_multistep_leaves_other_families_alone():
    for family in ("lms", "ss"):
        table = table_of(family)
        assert as_multistep(table) is table


def test_a_widened_table_is_the_same_solver():
    model = small()
    table = table_of("lms").replace(guidance=[0.9, 1.2, 0.7, 0.4])
    wide = widened(table, 9)
    assert wide.order == 4 > table.order and wide.guidance.tolist() == table.guidance.tolist()
    assert not wide.coefficients["b"][:, table.order :].any()
    x = torch.randn(2, *model.shape) * 80
    same = (sample(model.denoise, x, each.replace(guidance=None)) for each in (table, wide))
    assert torch.equal(*same)
    for left in (wide, table_of("ss")):
        assert widened(left, 2) is left


# --- Times


def times_of(family, space, domain, ending=0.0, nfe=6):
    model = small(space)
    if domain == "time":
        times = DiscreteTimes.scaled_linear()
        model = changed(model, times=times, sigma_min=times.sigma_min, sigma_max=times.sigma_max)
    solver, order = SOLVER[family]
    steps = nfe // order if family == "ss" else nfe
    table = classical_table(solver, schedule("quadratic", steps, model, ending), order, space)
    return table, Times(model, table, domain)


TIME_CASES = [(f, s, d) for f, s in CASES for d in DOMAINS if (s, d) != ("flow", "time")]


@pytest.mark.parametrize("ending", [0.0, 0.05])
@pytest.mark.parametrize("family, space, domain", TIME_CASES)
def test_initial_xi_is_the_table(family, space, domain, ending):
    table, times = times_of(family, space, domain, ending)
    nodes, calls = times.arrays(times.initial, torch.zeros(table.nfe, dtype=torch.float64))
    np.testing.assert_allclose(nodes, table.sigmas, rtol=1e-9)
    np.testing.assert_allclose(calls, table.call_sigmas, rtol=1e-9)


@pytest.mark.parametrize("ending", [0.0, 0.05])
@pytest.mark.parametrize("family, space, domain", TIME_CASES)
def test_a_student_begins_with_the_calls_that_its_table_has(family, space, domain, ending):
    table, times = times_of(family, space, domain, ending)
    assert not times.offsets.any()  # classical calls sit on their nodes
    model, calls = times.model, table.call_sigmas.copy()
    first = slice(None, None, table.nfe_per_step)  # of a step: most of the way to the next node
    calls[first] = 0.3 * table.sigmas[:-1] + 0.7 * table.sigmas[1:]
    calls[-1] *= 0.5
    start = table.replace(call_sigmas=calls.clip(model.sigma_min))
    student = Student(model, start, domain)
    found = student.at(student.leaves)
    np.testing.assert_allclose(found.sigmas, start.sigmas, rtol=1e-7)
    np.testing.assert_allclose(found.call_sigmas, start.call_sigmas, rtol=1e-7)


@pytest.mark.parametrize("family, space, domain", TIME_CASES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_xi_is_ordered_and_any_offset_is_clipped(family, space, domain, data):
    table, times = times_of(family, space, domain)
    number = st.floats(-4, 4)
    xi = torch.tensor(
        data.draw(st.lists(number, min_size=table.steps + 1, max_size=table.steps + 1))
    )
    offsets = torch.tensor(data.draw(st.lists(number, min_size=table.nfe, max_size=table.nfe)))
    nodes, plain = times.arrays(xi.double(), torch.zeros(table.nfe, dtype=torch.float64))
    same, calls = times.arrays(xi.double(), 1e3 * offsets.double())
    assert (nodes.diff() < 0).all() and torch.equal(nodes, same)
    assert nodes[0] == table.sigmas[0] and nodes[-1] == table.sigmas[-1]
    assert calls[0] == plain[0] == table.sigmas[0]
    time = torch.cat([times.top.reshape(1), times.to_time(nodes[1:-1]), times.low.reshape(1)])
    bound = CLIP_SHARE * -time.diff().max() / times.stride
    gap = (times.to_time(calls) - times.to_time(plain))[1:].abs()
    assert (gap <= bound * (1 + 1e-6) + 1e-9).all()
    model = times.model
    assert (calls >= model.sigma_min * (1 - 1e-9)).all() and (calls <= model.sigma_max).all()


@pytest.mark.parametrize("space", SPACES)
def test_later_stages_keep_their_share_of_the_step(space):
    table, times = times_of("ss", space, "logsnr")
    xi = times.initial + moved(len(times.initial), size=1.0)
    nodes, calls = times.arrays(xi, torch.zeros(table.nfe, dtype=torch.float64))
    time = torch.cat([times.top.reshape(1), times.to_time(nodes[1:-1]), times.low.reshape(1)])
    share = (times.to_time(calls[1::2]) - time[:-1]) / (time[1:] - time[:-1])
    torch.testing.assert_close(share, times.shares[1::2])
    assert (share > 0.1).all() and (share < 0.9).all()


@pytest.mark.parametrize("family, space, domain", TIME_CASES)
def test_times_are_differentiable(family, space, domain):
    table, times = times_of(family, space, domain)
    offsets = moved(table.nfe, size=1e-4 * float(times.top - times.low))
    xi = times.initial + moved(len(times.initial))
    gradcheck(times.arrays, (xi.requires_grad_(), offsets.requires_grad_()), atol=1e-4)


def test_domains_that_do_not_exist_are_refused():
    table = table_of("lms")
    with pytest.raises(TrainingError, match="choose one of sigma, logsnr, time"):
        Times(small(), table, "seconds")
    with pytest.raises(TrainingError, match="no discrete times"):
        Times(small(), table, "time")
