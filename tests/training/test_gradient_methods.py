"""The gradient methods: what each learns, the relaxed objective, and the optimiser."""

import math

import numpy as np
import pytest
import torch
from learners import (
    FAMILIES,
    GRADIENT_RUNS,
    METHODS,
    SOLVER,
    message_of,
    moved,
    name_of,
    small,
    table_of,
    task_of,
    tiny_fit,
)

from s4s_core import classical_table, schedule
from s4s_core.errors import TrainingDiverged
from s4s_core.names import SPACES
from s4s_core.sampling import sample
from s4s_core.training import gradient
from s4s_core.training.gradient import Descent, radius
from s4s_core.training.method import find_method
from s4s_core.training.parameters import coefficient_basis
from s4s_core.training.student import Student

MAX_RELAX = 1e6


def descent_of(method="s4s", family="lms", space="ve", samples=8, model=None, batch=8, **options):
    """A Descent that has not begun to train."""
    model = model or small(space)
    task = task_of(model, samples=samples, batch=batch)
    recompute = SOLVER[family] if method == "ld3" else None
    student = Student(model, table_of(family, space), recompute=recompute)
    phases = find_method(method).phases_of(family)
    return Descent(task, student, phases, {"seed": 0}, **options)


# --- what each method learns


@pytest.mark.parametrize(
    "method, space, options",
    [
        *((m, s, {"init": name_of(f), "budget": 1000}) for m, f, s in GRADIENT_RUNS),
        *((m, s, {"init": "gaussian:3:edm", "epochs": 1}) for m in METHODS for s in SPACES),
        *((m, s, {"init": table_of("pc", s)}) for m in METHODS[:-1] for s in SPACES),
        *(("s4s", "ve", {"objective": name}) for name in ("l1", "huber", "l2")),
        *(("joint", s, {"domain": name}) for name in ("sigma", "logsnr") for s in SPACES),
    ],
)
def test_every_method_is_at_least_as_good_as_its_start(method, space, options):
    result = tiny_fit(small(space), 4, method, **options)
    scores = result.scores["4"]
    assert scores["rmse"] <= scores["initial"] and math.isfinite(scores["rmse"])
    assert result.pack.metadata["training"]["objective"] == options.get("objective", "l2")
    assert len(result.history[4]) > 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_improves_with_a_little_time(method):
    result = tiny_fit(small(), 4, method, samples=16, budget=12_000, epochs=6, rate=0.02)
    scores = result.scores["4"]
    assert scores["rmse"] < 0.85 * scores["initial"], scores


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", ["lms", "pc"])
def test_s4s_leaves_times_bit_for_bit(family, space):
    table = tiny_fit(small(space), 4, "s4s", init=name_of(family)).pack[4]
    start = table_of(family, space)
    np.testing.assert_array_equal(table.sigmas, start.sigmas)
    np.testing.assert_array_equal(table.call_sigmas, start.call_sigmas)
    assert any((table.coefficients[k] != start.coefficients[k]).any() for k in table.coefficients)


@pytest.mark.parametrize("space", SPACES)
def test_s4s_of_a_single_step_solver_moves_its_stages_but_not_its_nodes(space):
    descent = descent_of("s4s", "ss", space)
    for _ in range(3):
        descent._step(torch.arange(8), descent.phases[0])
    table, start = descent.table(descent._copy(descent.student.leaves)), table_of("ss", space)
    np.testing.assert_allclose(table.sigmas, start.sigmas, rtol=1e-9)
    np.testing.assert_allclose(table.call_sigmas[::2], start.call_sigmas[::2], rtol=1e-9)
    assert abs(table.call_sigmas[3] / start.call_sigmas[3] - 1) > 1e-7


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_ld3_is_the_classical_solver_at_its_own_nodes(family, space):
    descent = descent_of("ld3", family, space, epochs=2)
    descent.run()
    table = descent.table(descent._copy(descent.student.leaves))
    solver, order = SOLVER[family]
    classical = classical_table(solver, torch.tensor(table.sigmas), order, space)
    assert (table.sigmas[1:-1] != table_of(family, space).sigmas[1:-1]).all()
    for name, array in classical.coefficients.items():
        np.testing.assert_array_equal(table.coefficients[name], array)


@pytest.mark.parametrize("space", SPACES)
def test_coefficients_that_follow_a_solver_are_its_own_at_the_nodes_plus_offsets(space):
    """The relation holds for every table of a run, and both parts of it have moved."""
    model, tables = small(space), []
    options = {"follow": "dpmpp:3", "init": "dpmpp:3:edm", "rate": 0.02}
    tiny_fit(model, 4, "joint", callback=lambda e: tables.append(e.table), **options)
    start = classical_table("dpmpp", schedule("edm", 4, model), 3, space)
    student = Student(model, start, recompute=("dpmpp", 3))
    with torch.no_grad():
        student.leaves["xi"][1] += 0.3
        student.leaves["phi"] += 0.01
    shifted = student.at(student.leaves)
    theory = classical_table("dpmpp", torch.tensor(shifted.sigmas), 3, space)
    assert (shifted.sigmas[1:-1] != start.sigmas[1:-1]).all()
    gap = shifted.coefficients["b"] - theory.coefficients["b"]
    np.testing.assert_allclose(gap, 0.01 * start.masks["b"], atol=1e-12)
    trained = tables[-1]
    theory = classical_table("dpmpp", torch.tensor(trained.sigmas), 3, space)
    assert (trained.sigmas[1:-1] != start.sigmas[1:-1]).any()
    assert 0 < np.abs(trained.coefficients["b"] - theory.coefficients["b"]).max() < 0.2


@pytest.mark.parametrize("method", ["s4s", "s4s-alt", "joint"])
def test_fixed_and_consistent_coefficients(method):
    start = table_of("lms").coefficients["b"]
    fixed = tiny_fit(small(), 4, method, fixed=True).pack[4].coefficients["b"] - start
    np.testing.assert_allclose(fixed[2], fixed[3], atol=1e-12)
    consistent = tiny_fit(small(), 4, method, consistent=True).pack[4].coefficients["b"]
    np.testing.assert_allclose(consistent.sum(1), start.sum(1), atol=1e-12)


def test_phases_alternate_and_share_one_radius():
    alt = gradient.S4S_ALT.phases
    assert len(alt) == 16 and alt[0] == ("xi", "offsets") and alt[1] == ("phi", "guidance")
    descent = descent_of("s4s-alt")
    assert descent.phases[1] == ("phi",), "this model cannot be told its guidance"
    assert descent.radius == descent_of("joint").radius > 0


# --- the relaxed objective


@pytest.mark.parametrize("nfe", [1, 2, 3, 5, 8])
def test_the_radius_equals_ld3s_at_the_count_of_lms_3_and_falls_with_the_count(nfe):
    model = small()
    table = classical_table("ipndm", torch.linspace(80, 0, nfe + 1), 3, "ve")
    count = coefficient_basis(table).shape[1]
    assert radius(model, nfe, count) == pytest.approx(0.001 * 6 / nfe**2)
    assert radius(model, nfe, 2 * count) / radius(model, nfe, count) == pytest.approx(2**-2.5)


@pytest.mark.parametrize("space", SPACES)
def test_noise_moves_and_stays_in_the_ball(space):
    descent = descent_of(space=space, epochs=3)
    descent.run()
    moves = (descent.state["starts"] - descent.task.train.x).flatten(1).norm(dim=1)
    bound = radius(descent.task.model, 4, 9) * descent.task.model.sigma_max
    assert descent.radius == pytest.approx(bound)
    assert (moves > 0).all() and (moves <= bound + 1e-6 * descent.task.model.sigma_max).all()


def test_a_hard_objective_keeps_the_noise():
    descent = descent_of(relax=False, epochs=2)
    descent.run()
    assert torch.equal(descent.state["starts"], descent.task.train.x)


def test_noise_follows_the_gradient_of_its_pair():
    """One step: x' = x - 12 / N sigma_T^2 dL/dx, then projected."""
    descent = descent_of(relax=MAX_RELAX)
    task = descent.task
    x = task.train.x.clone().requires_grad_()
    losses = task.objective.distance(
        descent.student.result(small().denoise, x, move_times=False), task.train.target
    )
    (pull,) = torch.autograd.grad(losses.sum(), x)
    descent._step(torch.arange(8), ("phi",))
    expected = task.train.x - 12 / 4 * 80.0**2 * pull
    torch.testing.assert_close(descent.state["starts"], expected, rtol=1e-4, atol=1e-4)


def test_validation_uses_the_true_noise():
    descent = descent_of(relax=MAX_RELAX, epochs=1)
    descent.run()
    assert not torch.equal(descent.state["starts"], descent.task.train.x)
    pairs = descent.task.validation
    table = descent.table(descent.state["average"])
    error = (sample(small().denoise, pairs.x, table) - pairs.target).square().mean().sqrt()
    assert descent.state["history"][-1][1] == pytest.approx(float(error), rel=1e-5)


def test_a_larger_radius_is_easier_to_fit():
    """The training loss falls with r (app:relaxed-obj)."""
    losses = []
    for relax in (0, 1, 100):
        descent = descent_of(relax=relax, samples=16, epochs=1)
        for _ in range(5):
            loss = descent._epoch(("phi",))
        losses.append(loss)
    assert losses[0] > losses[1] > losses[2]


# --- gradients


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rematerialised_and_plain_gradients_are_equal_and_counted(family, space):
    gradients, costs = [], []
    for rematerialise in (True, False):
        descent = descent_of("joint", family, space, rematerialise=rematerialise)
        pairs = descent.task.train
        pairs = type(pairs)(pairs.x.double(), None, pairs.target.double())
        before = descent.task.meter.calls
        losses, pull = descent._backward(pairs)
        costs.append((descent.task.meter.calls - before) / (4 * len(pairs)))
        gradients.append([pull, losses, *(leaf.grad for leaf in descent.student.leaves.values())])
    assert costs == [gradient.REMATERIALISED_COST, gradient.PLAIN_COST] == [3, 2]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_accumulated_gradients_are_those_of_the_whole_batch(method):
    leaves = []
    for batch in (8, 3):
        descent = descent_of(method, batch=batch)
        for _ in range(3):
            descent._step(torch.arange(8), descent.phases[0])
        leaves.append(descent._copy(descent.student.leaves))
    for name in leaves[0]:
        torch.testing.assert_close(leaves[0][name], leaves[1][name], rtol=1e-4, atol=1e-7)


def test_gradients_equal_difference_quotients():
    """Of the mean loss, in float64."""
    descent = descent_of("joint")
    pairs = descent.task.train
    pairs = type(pairs)(pairs.x.double(), None, pairs.target.double())
    leaves = descent.student.leaves

    def loss():
        with torch.no_grad():
            result = descent.student.result(small().denoise, pairs.x)
            return float(descent.task.objective.distance(result, pairs.target).sum())

    descent._backward(pairs)
    for name, leaf in leaves.items():
        direction = moved(len(leaf), size=1.0)
        values = []
        for side in (1, -1):
            with torch.no_grad():
                leaf += side * 1e-5 * direction
                values.append(loss())
                leaf -= side * 1e-5 * direction
        slope = (values[0] - values[1]) / 2e-5
        assert float(leaf.grad @ direction) == pytest.approx(slope, rel=1e-4, abs=1e-7), name


def test_a_step_follows_the_mean_gradient():
    descent = descent_of("joint")
    names, leaves = descent.phases[0], descent.student.leaves
    result = descent.student.result(small().denoise, descent.task.train.x)
    loss = descent.task.objective.distance(result, descent.task.train.target).mean()
    expected = torch.autograd.grad(loss, [leaves[name] for name in names])
    descent._backward(descent.task.train)
    for ours, theirs in zip(descent._shared_gradients(names, 8), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_only_what_a_phase_learns_moves():
    descent = descent_of("s4s-alt")
    before = descent._copy(descent.student.leaves)
    descent._step(torch.arange(8), ("xi", "offsets"))
    after = descent.student.leaves
    assert torch.equal(before["phi"], after["phi"]) and not torch.equal(before["xi"], after["xi"])


# --- bookkeeping


def test_the_average_follows_the_leaves():
    descent = descent_of()
    old = descent.state["average"]["phi"].clone()
    descent._step(torch.arange(8), ("phi",))
    leaf = descent.student.leaves["phi"].detach()
    expected = gradient.EMA * old + (1 - gradient.EMA) * leaf
    torch.testing.assert_close(descent.state["average"]["phi"], expected)


def test_the_best_is_kept_and_a_stall_returns_to_it_at_a_lower_rate():
    descent = descent_of()
    state, rate = descent.state, descent.optimisers["phi"].param_groups[0]["lr"]
    with torch.no_grad():
        descent.student.leaves["phi"] += 0.5
    worse = state["validation"] + 1
    state["average"] = descent._copy(descent.student.leaves)
    for stall in range(1, gradient.STALL + 1):
        assert descent.optimisers["phi"].param_groups[0]["lr"] == rate
        assert (descent.student.leaves["phi"] == 0.5).all()
        descent._after_epoch(worse)
        assert state["stalls"] == stall % gradient.STALL
    assert descent.optimisers["phi"].param_groups[0]["lr"] == pytest.approx(rate * gradient.DECAY)
    assert (descent.student.leaves["phi"] == 0).all() and (state["average"]["phi"] == 0).all()
    better = state["validation"] - 1e-3
    state["average"] = {name: leaf + 0.1 for name, leaf in state["average"].items()}
    descent._after_epoch(better)
    assert state["validation"] == better and (state["best"]["phi"] == 0.1).all()


def test_the_best_validation_error_is_that_of_the_best_leaves():
    descent = descent_of("joint", epochs=4, rate=0.3)  # a rate that overshoots
    descent.run()
    errors = [error for _, error in descent.state["history"]]
    assert descent.state["validation"] == min(errors) < errors[-1]
    assert descent._validate(descent.state["best"]) == pytest.approx(min(errors))


@pytest.mark.parametrize("method", ["s4s-alt", "joint", "ld3"])
def test_nodes_that_become_equal_are_rolled_back(method):
    """A rate that is far too high makes xi so uneven that two nodes round to one."""
    result = tiny_fit(small(), 4, method, rate=30.0, budget=20_000, epochs=3)
    assert result.scores["4"]["rmse"] <= result.scores["4"]["initial"]
    with pytest.raises(TrainingDiverged) as error:
        tiny_fit(small(), 4, method, rate=1e4)
    assert "epoch 0" in message_of(error)
