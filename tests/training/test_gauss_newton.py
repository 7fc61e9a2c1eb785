"""Gauss-Newton: steps, stopping, budget and quality, with models that can only sample."""

import math
import sys
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from learners import (
    FAMILIES,
    TINY,
    Counted,
    changed,
    large,
    message_of,
    moved,
    small,
    table_of,
    task_of,
    tiny_fit,
)

from s4s_core.candidates import candidates, rank, rmse
from s4s_core.errors import ObjectiveError
from s4s_core.names import SPACES
from s4s_core.objectives import Lpips, objective
from s4s_core.teacher import choice_calls, default_teacher, draw_pairs
from s4s_core.training import gauss_newton
from s4s_core.training.fit import fit
from s4s_core.training.parameters import Parameters

TEACHING = choice_calls() + 20 * (TINY["samples"] + TINY["validation"] + TINY["held_out"])


# --- the model is only sampled from


def test_a_model_that_cannot_be_differentiated_is_enough():
    """The denoiser computes in numpy, in place, and its trainable weight records no graph."""
    inner, weight = small(), torch.nn.Parameter(torch.ones(()))

    def denoise(x, sigma):
        assert torch.is_inference_mode_enabled() or not torch.is_grad_enabled()
        data = x.detach().clone().numpy()
        data *= 1.0
        out = inner.denoise(torch.from_numpy(data), sigma) * weight
        assert not out.requires_grad
        return torch.from_numpy(out.numpy().copy())

    hard = tiny_fit(changed(inner, denoise=denoise))
    assert hard.pack[4] == tiny_fit(inner).pack[4]
    assert hard.scores["4"]["rmse"] < hard.scores["4"]["initial"]


@pytest.mark.parametrize("ending", [0.0, 0.05])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_is_within_the_models_range_and_nodes_stay_ordered(family, space, ending):
    counted, tables = Counted(small(space).denoise), []
    model = changed(small(space), denoise=counted)
    options = {"init": table_of(family, space, ending=ending), "ending": ending}
    result = tiny_fit(model, callback=lambda e: tables.append(e.table), **options)
    sigmas = torch.cat(counted.sigmas).double()
    low, high = (torch.tensor(v).float() for v in (model.sigma_min, model.sigma_max))
    assert sigmas.min() >= low and sigmas.max() <= high
    for table in [*tables, result.pack[4]]:
        assert (np.diff(table.sigmas) < 0).all()
        assert (table.sigmas[0], table.ending) == (model.sigma_max, ending)
    assert result.scores["4"]["rmse"] < result.scores["4"]["initial"]
    assert result.pack[4].family == ("ss" if family == "ss" else "lms")


def test_ordered_nodes_stay_ordered_however_long_the_step():
    parameters = parameters_of(nfe=6, coefficients=False)
    product = torch.eye(parameters.count, dtype=torch.float64)
    for seed in range(20):
        slope = moved(parameters.count, seed, size=20.0)
        theta = gauss_newton.propose(parameters, 0 * slope, product, slope, 1e-6)
        tables = parameters.at(theta), parameters.table
        gaps, old = (-np.diff(np.log(table.sigmas[:-1])) for table in tables)
        assert (gaps >= 0.999 * gauss_newton.SMALLEST_GAP * old).all()
        assert theta.abs().max() > 0


# --- chunks


def test_chunks_go_around_the_pairs_in_order():
    task = task_of(small(), samples=20)
    rows = [gauss_newton.chunk(task.train, 8, i).x for i in range(5)]
    assert torch.equal(torch.cat(rows), torch.cat([task.train.x] * 2))
    assert torch.equal(gauss_newton.chunk(task.train, 20, 7).x, task.train.x)


@pytest.mark.parametrize("budget", [300, 10**6, None])
def test_a_small_budget_is_spent_on_iterations_of_fewer_pairs(budget):
    task, state = task_of(small(), samples=20, budget=budget), {}
    gauss_newton.refine(task, parameters_of(), state, iterations=3)
    assert state["iteration"] == 3
    assert (1 <= state["chunk"] < gauss_newton.CHUNK) == (budget == 300)


def parameters_of(nfe=4, **options):
    return Parameters.of(table_of("lms", nfe=nfe), (0.002, 80.0), **options)


def iterations_of(task, parameters, count):
    """The states after each of the first iterations."""
    state, states = {}, []
    for i in range(count):
        gauss_newton.refine(task, parameters, state, iterations=i + 1)
        states.append(dict(state))
    return states


def test_the_model_of_all_chunks_is_their_faded_sum_at_the_current_point():
    """The gradient of an old quadratic model at a new point is g + H (theta - theta_old)."""
    task = task_of(small(), samples=20)
    task.scale = 0.1
    parameters = parameters_of()
    states = iterations_of(task, parameters, count := 8)
    parts, theta = [], torch.zeros(parameters.count, dtype=torch.float64)
    for i, state in enumerate(states):
        columns = gauss_newton.Columns(parameters, theta, state["step"])
        pairs = gauss_newton.chunk(task.train, state["chunk"], i)
        normal = gauss_newton.normal_equations(task, columns, pairs)
        weights = gauss_newton.robust_weights(normal.errors, task.scale)
        fade = math.prod(gauss_newton.fading(k) for k in range(i + 1, count))
        parts.append((fade, theta, *normal.weighted(weights)))
        theta = state["theta"]
    product = sum(fade * h for fade, _, h, _ in parts)
    slope = sum(fade * (g + h @ (theta - at)) for fade, at, h, g in parts)
    torch.testing.assert_close(states[-1]["product"], product, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(states[-1]["slope"], slope, rtol=1e-7, atol=1e-10)
    assert len({tuple(at.tolist()) for _, at, *_ in parts}) > 1  # how many depends on rounding


def test_a_rejected_step_is_kept_in_the_model_and_increases_the_damping(monkeypatch):
    monkeypatch.setattr(gauss_newton, "propose", lambda parameters, theta, *rest: theta + 0.5)
    first, second = iterations_of(task_of(small(), samples=20), parameters_of(times=False), 2)
    for state in (first, second):
        assert not state["theta"].any() and len(state["history"]) == 1
    assert second["damping"] == gauss_newton.HARDER * first["damping"]
    fresh = second["product"] - gauss_newton.fading(1) * first["product"]
    assert (fresh.diagonal() > 0).all()


def test_an_iteration_costs_what_was_planned():
    """One that is rejected is not validated."""
    counted = Counted(small().denoise)
    task = task_of(changed(small(), denoise=counted), samples=20)
    parameters, state, accepted = parameters_of(), {}, 0
    gauss_newton.refine(task, parameters, state, iterations=1)
    for last in range(2, 8):
        theta, before = state["theta"], counted.calls
        planned = gauss_newton._cost(task, parameters, state)
        gauss_newton.refine(task, parameters, state, iterations=last)
        moved = not torch.equal(state["theta"], theta)
        accepted += moved
        validation = 4 * len(task.validation)
        assert counted.calls - before == planned - (0 if moved else validation)
    assert accepted > 1


# --- robustness, stopping, budget


def test_a_wild_sample_hardly_changes_the_step():
    """One target is far off: the robust first step moves much less than the plain one."""
    task, parameters = task_of(small(), samples=24), parameters_of()
    theta = torch.zeros(parameters.count, dtype=torch.float64)
    columns = gauss_newton.Columns(parameters, theta, 2e-3)

    def steps(shift):
        pairs = task.train
        target = torch.cat([pairs.target[:1] + shift, pairs.target[1:]])
        normal = gauss_newton.normal_equations(task, columns, type(pairs)(pairs.x, None, target))
        for scale in (gauss_newton.robust_scale(normal.errors), 1e6):
            weights = gauss_newton.robust_weights(normal.errors, scale)
            yield gauss_newton.propose(parameters, theta, *normal.weighted(weights), 0.1)

    pairs = zip(steps(0.0), steps(20.0), strict=True)
    robust, plain = ((wild - step).norm() / step.norm() for step, wild in pairs)
    assert robust < 0.5 < 5 < plain / robust


def test_robust_weights_are_those_of_the_loss():
    errors = torch.tensor([1e-4, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    loss = (2 * 0.7**2 * ((1 + errors / 0.7**2).sqrt() - 1)).mean()
    assert gauss_newton.robust_loss(errors.detach(), 0.7) == pytest.approx(loss.item())
    (slope,) = torch.autograd.grad(loss, errors)
    torch.testing.assert_close(3 * slope, gauss_newton.robust_weights(errors.detach(), 0.7))
    assert gauss_newton.robust_loss(errors.detach(), 1e4) == pytest.approx(errors.mean().item())


def test_training_stops_when_it_no_longer_improves():
    result = tiny_fit(small(), budget=10**7)
    errors = [error for _, error in result.history[4]]
    assert len(errors) <= gauss_newton.MAX_ITERATIONS and result.calls < 10**5
    for last in range(len(errors) - gauss_newton.PATIENCE, len(errors)):
        assert errors[last] >= (1 - gauss_newton.GAIN) * min(errors[:last])
    assert min(errors) < 0.5 * errors[0]


def test_trials_that_fail_do_not_overrun_the_budget(monkeypatch):
    """Every damping proposes a bad table, and the budget is for one round of trials only."""
    monkeypatch.setattr(gauss_newton, "propose", lambda parameters, theta, *rest: theta + 0.5)
    for budget in range(200, 400, 25):
        result = tiny_fit(small(), budget=budget, times=False)
        assert result.calls <= budget + TEACHING + 3 * 4 * TINY["held_out"]
        for name, array in table_of("lms").arrays.items():
            np.testing.assert_allclose(result.pack[4].arrays[name], array, rtol=1e-14)


# --- quality, with default settings and on fresh noise


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("nfe, bound", [(4, 0.8), (5, 0.6), (6, 0.8), (8, 0.8)])
def test_better_than_the_best_classical_solver(space, nfe, bound):
    model = large(space)
    result = fit(model, nfe)
    fresh = draw_pairs(model, result.teacher, 128, seed=987_654)
    learned = rmse(model.denoise, result.pack[nfe], fresh, 128)
    best, winner = rank(model.denoise, candidates(model, nfe), fresh, 128)[0]
    assert learned <= bound * best, f"{learned:.4g} against {best:.4g} of {winner.label}"


# --- LPIPS


class Layers(torch.nn.Module):
    """A tiny stand-in for the network of the lpips package, with random weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = [(3, 4), (4, 5)]
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 3, 2, 1) for a, b in sizes)
        self.scaling_layer = torch.nn.Identity()
        lins = [torch.nn.Conv2d(b, 1, 1, bias=False) for _, b in sizes]
        self.lins = [SimpleNamespace(model=[torch.nn.Dropout(), lin]) for lin in lins]
        for lin in lins:
            lin.weight.data.abs_()

    def net(self, x):
        first = self.convs[0](x).tanh()
        return [first, self.convs[1](first).tanh()]


def test_gauss_newton_fits_lpips():
    weight = torch.nn.Parameter(torch.ones(()))  # a decoder's weights may ask for gradients
    decode = lambda x: x.reshape(len(x), 1, 2, 3).expand(-1, 3, -1, -1) * weight  # noqa: E731
    model, lpips = small(), Lpips(Layers(), decode=decode)
    result = tiny_fit(model, objective=lpips)
    assert result.pack.metadata["training"]["objective"] == "lpips-alex"
    fresh = draw_pairs(model, default_teacher(model), 32, seed=55)
    task = task_of(model)
    task.objective = lpips
    before, after = (task.errors(t, fresh).mean() for t in (table_of("lms"), result.pack[4]))
    assert after < 0.7 * before


@pytest.mark.filterwarnings("ignore:.*weights.*:UserWarning")
@pytest.mark.parametrize("net", ["alex", pytest.param("vgg", marks=pytest.mark.slow), "squeeze"])
def test_features_have_the_distance_of_the_lpips_package(net):
    lpips = pytest.importorskip("lpips")
    network = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    objective = Lpips(network, f"lpips-{net}")
    torch.manual_seed(1)
    first, second = (torch.rand(2, 3, 64, 64) * 2 - 1 for _ in range(2))
    with torch.no_grad():
        theirs = network(first, second).flatten()
        ours = objective.distance(first, second)
    assert (theirs > 1e-4).all()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_lpips_needs_pictures_and_the_lpips_package(monkeypatch):
    with pytest.raises(ObjectiveError, match="RGB pictures") as error:
        Lpips(Layers()).embed(torch.zeros(1, 4, 8, 8))
    message_of(error)
    monkeypatch.setitem(sys.modules, "lpips", None)
    for name in ("l2", "l1", "huber"):
        assert objective(name).name == name
    with pytest.raises(ObjectiveError, match="pip install lpips"):
        objective("lpips-vgg")


@pytest.mark.parametrize("fault", [URLError("no route"), OSError("disk"), RuntimeError("hash")])
def test_weights_that_cannot_be_downloaded_are_explained(monkeypatch, fault):
    def fail(**_):
        raise fault

    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=fail, __spec__=object()))
    with pytest.raises(ObjectiveError, match="use the objective 'l2'") as error:
        objective("lpips-alex")
    message_of(error)
