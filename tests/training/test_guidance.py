"""Learned guidance: its columns and what they cost, what every method does with it, and weights
that keep their sum."""

import numpy as np
import pytest
import torch
from learners import FAMILIES, changed, guided, moved, small, table_of, tiny_fit

from s4s_core import classical_table, fit
from s4s_core.demo import load_demo
from s4s_core.names import SPACES
from s4s_core.sampling import sample
from s4s_core.schedules import schedule
from s4s_core.teacher import Pairs, default_teacher, draw_noise
from s4s_core.training.jacobian import Columns
from s4s_core.training.parameters import Parameters
from s4s_core.training.settings import Settings


def parameters_of(family, space="ve", **options):
    model = guided(space)
    table = table_of(family, space).replace(guidance=[0.9, 1.2, 0.7, 0.4])
    limits = float(model.sigma_min), float(model.sigma_max)
    return Parameters.of(table, limits, guidance=True, **options)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_columns_equal_differences_of_separate_runs(family, space):
    """Rows with different multipliers share batches; the first multiplier is among them."""
    model, parameters = guided(space), parameters_of(family, space, coefficients=False)
    x = draw_noise(model, 2, 4)[0].double()
    theta, calls = moved(parameters.count), 0

    def denoise(x, sigma, guidance, rows):
        nonlocal calls
        calls += len(x)
        return model.denoise(x, sigma, None, guidance)

    plan = Columns(parameters, theta, 1e-6)
    columns = plan.compute(denoise, Pairs(x, None, x), 7, lambda x: x.flatten(1))[1]
    assert calls == 2 * plan.calls()
    for k in range(parameters.count):
        step = 1e-5 * torch.eye(parameters.count, dtype=torch.float64)[k]
        up, down = (sample(model.denoise, x, parameters.at(theta + s)) for s in (step, -step))
        truth = (up - down) / 2e-5
        close = (columns[k] - truth).abs().max() <= 1e-3 * truth.abs().max() + 1e-6
        assert close and (truth.any() or k < parameters.count - 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_multiplier_costs_its_call_and_those_behind_it(family):
    parameters = parameters_of(family, coefficients=False, times=False)
    plan = Columns(parameters, torch.zeros(4, dtype=torch.float64), 1e-3)
    assert parameters.count == 4 and plan.calls() == 4 + (4 + 3 + 2 + 1)


def test_multipliers_are_clipped_at_zero_and_kept_where_they_are_not_learned():
    parameters = parameters_of("lms")
    theta = torch.zeros(parameters.count, dtype=torch.float64)
    theta[-2:] = torch.tensor([-5.0, 0.1])
    np.testing.assert_allclose(parameters.at(theta).guidance, [0.9, 1.2, 0, 0.5])
    frozen = Parameters.of(parameters.table, (0.002, 80.0))
    table = frozen.at(moved(frozen.count))
    assert table.guidance.tolist() == [0.9, 1.2, 0.7, 0.4]
    plain = Parameters.of(table_of("lms"), (0.002, 80.0))
    assert plain.at(moved(plain.count)).guidance is None


@pytest.mark.parametrize("method", ["gauss-newton", "joint", "s4s-alt"])
def test_methods_that_can_set_guidance_do(method):
    options = {"samples": 12, "budget": 6000, "epochs": 4, "rate": 0.02, "init": "ipndm:2:edm"}
    free, held = (
        tiny_fit(guided(), 4, method, consistent="last", guidance=g, **options)
        for g in (True, False)
    )
    guidance = free.pack[4].guidance
    assert np.abs(guidance - 1).max() > 1e-3 and (guidance >= 0).all()
    assert free.scores["4"]["rmse"] < free.scores["4"]["initial"]
    assert held.pack[4].guidance is None and not held.pack.sets_guidance


@pytest.mark.parametrize(
    "model, method",
    [(small(), "gauss-newton"), (small(), "joint"), (guided(), "s4s"), (guided(), "ld3")],
)
def test_a_table_says_nothing_of_guidance_that_is_not_learned(model, method):
    """By a model that cannot be told, or a method that sets none: the file is of format 1."""
    assert tiny_fit(model, 4, method).pack[4].guidance is None


def test_the_bundled_model_learns_guidance_at_cfg_4():
    model = load_demo("ve", 4.0)
    teacher = default_teacher(model, 10, solver=("unipc-bh2", 2))
    sizes = {"samples": 8, "validation": 8, "held_out": 8, "budget": 1200, "consistent": "all"}
    free, held = (
        fit(model, 4, init="ddim:1:ays", teacher=teacher, guidance=g, **sizes)
        for g in (True, False)
    )
    assert np.abs(free.pack[4].guidance - 1).max() > 0.05 and held.pack[4].guidance is None
    ours, theirs = (min(loss for _, loss in each.history[4]) for each in (free, held))
    assert ours < theirs and free.scores["4"]["rmse"] < free.scores["4"]["initial"]


# --- weights that keep their sum


@pytest.mark.parametrize("solver, form", [("ipndm", "noise"), ("dpmpp", "data")])
def test_weights_sum_to_one_and_calls_stay_at_their_nodes(solver, form):
    """ "last" is the default; where guidance is learned, all calls are told the noise there is."""
    model, init = small(), f"{solver}:2:edm"
    assert classical_table(solver, schedule("edm", 4, model), 2, "ve").form == form
    last, free = (tiny_fit(model, init=init, consistent=c).pack[4] for c in ("auto", "free"))
    sums, loose = (table.coefficients["b"].sum(1) for table in (last, free))
    assert sums[-1] == pytest.approx(1, abs=1e-12) and np.abs(sums[:-1] - 1).max() > 1e-4
    assert np.abs(loose - 1).min() > 1e-6
    for table in (
        tiny_fit(guided(), init=init).pack[4],
        tiny_fit(model, init=init, consistent="all").pack[4],
    ):
        np.testing.assert_allclose(table.coefficients["b"].sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(table.call_sigmas, table.sigmas[:-1], rtol=1e-12)
        assert (table.sigmas[1:-1] != schedule("edm", 4, model).numpy()[1:-1]).all()


def test_a_start_of_order_1_gets_a_second_weight_where_sums_are_kept():
    """Under guidance the best start is often DDIM, whose only weight could not move."""
    sizes = {"samples": 24, "validation": 12, "held_out": 12, "budget": 5000}
    for options in ({}, {"consistent": "last"}):
        table = tiny_fit(guided(), init="ddim:1:edm", **options, **sizes).pack[4]
        assert table.order == 2 and (np.abs(table.coefficients["b"][1:, 1]) > 1e-4).all()
    assert tiny_fit(guided(), init="ddim:1:edm", consistent="free").pack[4].order == 1
    assert tiny_fit(guided(), 1, init="ddim:1:edm").pack[1].order == 1


def test_which_steps_are_consistent():
    assert [Settings().consistent_steps(g) for g in (True, False)] == ["all", "last"]
    assert [Settings(consistent="free").consistent_steps(g) for g in (True, False)] == ["free"] * 2
    old = [Settings.of({"consistent": value}).consistent for value in (True, False)]
    assert old == ["all", "free"], "the switch of version 0.1"
    told = changed(guided(), takes_guidance=False)
    assert tiny_fit(told).pack[4].guidance is None
