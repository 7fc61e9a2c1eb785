"""Schedules: closed formulas, DMN's bound, GITS' dynamic programme, AYS' tables, and refusals."""

import itertools
import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s4s_core import schedule
from s4s_core.errors import TableError, pip_install_line
from s4s_core.mixture import GaussianMixture
from s4s_core.names import SCHEDULES
from s4s_core.schedules import dmn as dmn_module
from s4s_core.schedules.ays import TABLES
from s4s_core.schedules.closed import logsnr
from s4s_core.schedules.dmn import dmn, error_bound
from s4s_core.schedules.gits import METRICS, _chord_distance, gits_costs, shortest_path
from s4s_core.spaces import DiscreteTimes, log_snr

CLOSED = ("uniform", "quadratic", "edm", "logsnr")


def ranges(space="ve", low=None, high=None, times=None):
    """What a schedule without model calls needs to know of a model."""
    low, high = low or (0.002 if space == "ve" else 0.001), high or (80.0 if space == "ve" else 1.0)
    return SimpleNamespace(space=space, sigma_min=low, sigma_max=high, times=times)


def vp():
    """A Stable Diffusion-like model: its discrete times, and their range of sigma."""
    times = DiscreteTimes.scaled_linear()
    return ranges("ve", times.sigma_min, times.sigma_max, times)


MODELS = {"ve": ranges(), "flow": ranges("flow"), "vp": vp()}


def close(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=0)


# All of them -------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(CLOSED),
    model=st.sampled_from(list(MODELS)),
    n=st.integers(1, 60),
    share=st.none() | st.floats(0.0, 0.9),
)
def test_ends_are_exact_and_nodes_decrease(name, model, n, share):
    model = MODELS[model]
    ending = (
        0.0 if share is None else model.sigma_min + share * (model.sigma_max / 2 - model.sigma_min)
    )
    nodes = schedule(name, n, model, ending)
    assert nodes.dtype == torch.float64 and nodes.shape == (n + 1,)
    assert nodes[0].item() == model.sigma_max and nodes[-1].item() == ending
    assert bool((nodes[1:] < nodes[:-1]).all())


@pytest.mark.parametrize("name", [*CLOSED, "ays"])
def test_an_ending_of_zero_only_moves_the_last_node(name):
    model = MODELS["ve"]
    kept, zero = schedule(name, 7, model, model.sigma_min), schedule(name, 7, model)
    assert zero[-1] == 0 and torch.equal(kept[:-1], zero[:-1])


@pytest.mark.parametrize("name", ["edm", "logsnr", "uniform", "quadratic"])
def test_a_positive_ending_is_where_the_spacing_ends(name):
    model = MODELS["ve"]
    shorter = ranges(low=0.5)
    assert torch.equal(schedule(name, 6, model, ending=0.5), schedule(name, 6, shorter, ending=0.5))


# Closed forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [7.0, 1.0, 3.5])
def test_edm_is_karras_formula(rho):
    low, high, n = 0.002, 80.0, 18
    expected = [
        (high ** (1 / rho) + i / n * (low ** (1 / rho) - high ** (1 / rho))) ** rho
        for i in range(n + 1)
    ]
    close(schedule("edm", n, MODELS["ve"], low, rho=rho), expected, 1e-9)


def test_edm_on_a_flow_model_is_the_same_in_sigma_over_alpha():
    model = ranges("flow", 0.01, 0.9)
    nodes = schedule("edm", 9, model, 0.01)
    ratio = (nodes / (1 - nodes)) ** (1 / 7)
    close(ratio.diff(), np.full(9, (ratio[-1] - ratio[0]).item() / 9), 1e-9)


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_logsnr_is_uniform(space):
    model = ranges(space, 0.01, 0.9)
    steps = log_snr(space, schedule("logsnr", 9, model, 0.01)).diff()
    close(steps, np.full(9, steps.mean().item()), 1e-10)


def test_logsnr_of_a_full_flow_model_is_uniform_but_for_its_singular_start():
    steps = log_snr("flow", schedule("logsnr", 9, MODELS["flow"], 0.001)[1:]).diff()
    close(steps, np.full(8, steps.mean().item()), 1e-10)


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_time_is_sigma_where_a_model_has_no_times(space):
    model = MODELS[space]
    close(schedule("uniform", 8, model, 0.01), np.linspace(model.sigma_max, 0.01, 9))
    roots = np.linspace(math.sqrt(model.sigma_max), 0.1, 9)
    close(schedule("quadratic", 8, model, 0.01), roots**2)


@pytest.mark.parametrize("times", [DiscreteTimes.scaled_linear(), DiscreteTimes.linear(steps=400)])
def test_uniform_and_quadratic_in_discrete_time(times):
    model = ranges("ve", times.sigma_min, times.sigma_max, times)
    last = times.last
    abar = 1 / (1 + np.exp(2 * times.log_sigmas.numpy()))
    log_sigma = np.log(np.sqrt((1 - abar) / abar))

    def sigma(time):
        return np.exp(np.interp(time, np.arange(last + 1), log_sigma))

    close(schedule("uniform", 9, model, model.sigma_min), sigma(np.linspace(last, 0, 10)), 1e-9)
    close(
        schedule("quadratic", 9, model, model.sigma_min),
        sigma(np.linspace(last**0.5, 0, 10) ** 2),
        1e-9,
    )


# DMN ---------------------------------------------------------------------------------------------


def dmn_case(space, n, power):
    """Nodes, their bound and that of the starting nodes, and the processor time it took."""
    pytest.importorskip("scipy")
    model = MODELS[space]
    started = time.process_time()
    nodes = dmn(n, model, model.sigma_min, model.sigma_max, power=power)
    took = time.process_time() - started
    start = logsnr(n, model, model.sigma_min, model.sigma_max)
    bounds = [float(error_bound(space, sigmas, power)) for sigmas in (nodes, start)]
    assert nodes.shape == (n + 1,) and bool((nodes[1:] < nodes[:-1]).all())
    close(nodes[[0, -1]], start[[0, -1]])
    return nodes, *bounds, took


@pytest.mark.parametrize(
    ("space", "n", "power"),
    [(s, n, p) for n in (1, 2) for s in ("ve", "flow") for p in (1, 2)] + [("ve", 5, 2)],
)
def test_dmn_lowers_its_bound(space, n, power):
    nodes, best, start, took = dmn_case(space, n, power)
    assert took < 15
    assert best <= start * (1 + 1e-6) if n <= 2 else best < 0.99 * start


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_dmn_lowers_its_bound_with_more_steps(space, n, power):
    nodes, best, start, took = dmn_case(space, n, power)
    assert took < 15 and best < 0.99 * start


def test_dmn_by_name():
    pytest.importorskip("scipy")
    for space, ending in (("ve", 0.0), ("flow", 0.05)):
        model = MODELS[space]
        nodes = schedule("dmn", 2, model, ending)
        assert nodes[0].item() == model.sigma_max and nodes[-1].item() == ending
        assert bool((nodes[1:] < nodes[:-1]).all())
    assert torch.equal(nodes, schedule("dmn", 2, model, ending))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_dmn_works_where_gradients_are_off(mode):
    pytest.importorskip("scipy")
    model = MODELS["ve"]
    with mode():
        nodes = schedule("dmn", 3, model)
    assert torch.equal(nodes, schedule("dmn", 3, model))


def test_dmn_weighs_latents_by_default_where_there_are_times():
    pytest.importorskip("scipy")
    model = MODELS["vp"]
    nodes = schedule("dmn", 3, model)
    assert torch.equal(nodes, schedule("dmn", 3, model, power=2))
    assert not torch.equal(nodes, schedule("dmn", 3, model, power=1))


def test_dmn_bound_is_the_weighted_sum_of_what_each_call_adds():
    """The response of the exponential Lagrange rule to a unit error of each call, measured."""
    from s4s_core import classical_table, sample

    for space, sigmas in (("ve", [9.0, 3.0, 1.0, 0.4, 0.1]), ("flow", [0.9, 0.7, 0.5, 0.2, 0.1])):
        nodes = torch.tensor(sigmas, dtype=torch.float64)
        lower = {"form": "data", "lower_order_final": True}
        table = classical_table("exp-lagrange", nodes, order=3, space=space, **lower)
        responses = []
        for call in range(4):
            calls = iter(range(4))
            unit = lambda x, sigma, c=call, n=calls: torch.full_like(x, float(next(n) == c))  # noqa: E731
            responses.append(sample(unit, torch.zeros(1, 1, dtype=torch.float64), table).item())
        noise = nodes[:-1] if space == "ve" else nodes[:-1] / (1 - nodes[:-1])
        for power in (1, 2):
            eps = noise**power / (1 + noise**2) ** ((power - 1) / 2)
            expected = (eps * torch.tensor(responses, dtype=torch.float64).abs()).sum()
            alpha = 1.0 if space == "ve" else 1 - sigmas[-1]  # the bound is on x_N / alpha_N
            close(error_bound(space, nodes, power) * alpha, expected, 1e-9)


def test_dmn_without_scipy(monkeypatch):
    find = dmn_module.importlib.util.find_spec
    monkeypatch.setattr(
        dmn_module.importlib.util,
        "find_spec",
        lambda name, *a: None if name == "scipy" else find(name, *a),
    )
    with pytest.raises(
        TableError, match=re.escape(f"needs scipy: install it with {pip_install_line('scipy')}")
    ):
        schedule("dmn", 5, MODELS["ve"])


# GITS --------------------------------------------------------------------------------------------


class Counted:
    """A mixture that counts its calls and the rows it was asked for."""

    def __init__(self, space="ve", scale=0.3, components=3):
        options = {"sigma_min": 0.01, "sigma_max": 10.0} if space == "ve" else {}
        self.inner = GaussianMixture.random(
            components, (2,), seed=3, scale=scale, space=space, **options
        )
        self.space, self.shape, self.times = space, (2,), None
        self.sigma_min, self.sigma_max = self.inner.sigma_min, self.inner.sigma_max
        self.rows = []

    def denoise(self, x, sigma):
        self.rows.append(len(x))
        return self.inner.denoise(x, sigma)

    def conditions(self, batch, generator):
        return None


def path_cost(matrix, path, gamma):
    """What the recursion V_k(j) = min_i cost_ji + gamma V_{k-1}(i) makes of one path."""
    cost = 0.0
    for i, j in reversed(list(itertools.pairwise(path))):
        cost = float(matrix[i, j]) + gamma * cost
    return cost


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(2, 7),
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.5, 1.0, 1.15, 3.0]),
    whole=st.booleans(),
    data=st.data(),
)
def test_shortest_path_is_the_best_of_all(size, seed, gamma, whole, data):
    n = data.draw(st.integers(1, size - 1))
    matrix = torch.rand(
        size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    matrix = (matrix * 3).round() if whole else matrix  # whole numbers make ties
    matrix = matrix.masked_fill(torch.ones(size, size).tril().bool(), float("inf"))
    path = shortest_path(matrix, n, gamma)
    assert len(path) == n + 1 and path[0] == 0 and path[-1] == size - 1
    assert all(i < j for i, j in itertools.pairwise(path))
    every = [(0, *inner, size - 1) for inner in itertools.combinations(range(1, size - 1), n - 1)]
    best = min(path_cost(matrix, p, gamma) for p in every)
    assert path_cost(matrix, path, gamma) == pytest.approx(best, abs=1e-12)


def test_a_greater_gamma_makes_later_steps_dearer():
    """Costs at which the first step's share decides where the middle node lies."""
    inf = float("inf")
    matrix = torch.tensor(
        [
            [inf, 1.0, 2.0, 9.0],
            [inf, inf, 9.0, 2.1],
            [inf, inf, inf, 1.0],
            [inf, inf, inf, inf],
        ]
    )
    assert shortest_path(matrix, 2, 0.5) == [0, 1, 3]  # 1 + 1.05 against 2 + 0.5
    assert shortest_path(matrix, 2, 2.0) == [0, 2, 3]  # 1 + 4.2 against 2 + 2


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_cost_matrix(space, metric):
    grid, matrix = gits_costs(Counted(space), points=12, samples=8, metric=metric)
    above = torch.ones(12, 12).triu(1).bool()
    assert bool((matrix[above] >= 0).all()) and bool(matrix[above].isfinite().all())
    assert bool((matrix[~above] == float("inf")).all())
    assert float(matrix[0, -1]) > 10 * float(matrix[0, 1])  # long steps are worse than short ones
    assert bool((grid[1:] < grid[:-1]).all()) and len(grid) == 12


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_straight_trajectories_cost_nothing(space, metric):
    """A point mass: x0 never changes, the slope is constant, one Euler step is exact."""
    model = Counted(space, scale=0.0, components=1)
    _, matrix = gits_costs(model, points=9, samples=4, metric=metric)
    above = torch.ones(9, 9).triu(1).bool()
    assert float(matrix[above].max()) < 1e-5 * model.sigma_max


def test_costs_are_euler_errors_of_the_teacher():
    """One sample, two steps: the l1 and l2 costs by hand."""
    model = Counted()
    grid, matrix = gits_costs(model, points=3, samples=1, metric="l2", seed=5)
    _, mean = gits_costs(model, points=3, samples=1, metric="l1", seed=5)
    x = torch.randn(1, 2, generator=torch.Generator().manual_seed(5)) * float(grid[0])
    slope = [None, None]
    states = [x]
    for i in range(2):
        slope[i] = (states[i] - model.denoise(states[i], grid[i : i + 1].float())) / float(grid[i])
        used = slope[0] if i == 0 else 1.5 * slope[1] - 0.5 * slope[0]
        states.append(states[i] + float(grid[i + 1] - grid[i]) * used)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        gap = states[i] + float(grid[j] - grid[i]) * slope[i] - states[j]
        assert float(matrix[i, j]) == pytest.approx(
            float(gap.square().mean().sqrt()), rel=1e-4, abs=1e-6
        )
        assert float(mean[i, j]) == pytest.approx(float(gap.abs().mean()), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("samples", "batch"), [(8, 4), (9, 4), (3, 32), (1, 1)])
def test_model_calls_are_counted(samples, batch):
    model, points = Counted(), 7
    gits_costs(model, points=points, samples=samples, batch=batch)
    assert len(model.rows) == (points - 1) * math.ceil(samples / batch)
    assert sum(model.rows) == (points - 1) * samples and max(model.rows) <= batch


def test_one_matrix_for_every_number_of_steps():
    model = Counted()
    costs = gits_costs(model, points=15, samples=4)
    made = len(model.rows)
    for n in range(1, 15):
        nodes = schedule("gits", n, model, model.sigma_min, costs=costs)
        assert len(nodes) == n + 1 and set(nodes[1:-1].tolist()) <= set(costs.grid.tolist())
    assert len(model.rows) == made
    assert torch.equal(
        schedule("gits", 14, model, model.sigma_min, costs=costs)[1:-1], costs.grid[1:-1]
    )
    with pytest.raises(TableError, match="at most 14 steps"):
        schedule("gits", 15, model, costs=costs)


def test_gits_by_default_measures_256_trajectories_of_60_calls():
    model = Counted()
    nodes = schedule("gits", 4, model)
    assert sum(model.rows) == 60 * 256 and nodes[0] == 10 and nodes[-1] == 0
    costs = gits_costs(model, model.sigma_min)
    assert torch.equal(nodes, schedule("gits", 4, model, costs=costs))
    assert not torch.equal(nodes, schedule("gits", 4, model, costs=costs, gamma=30.0))


def test_gits_is_deterministic_for_a_seed():
    options = {"points": 9, "samples": 6, "batch": 4}
    one, two = (gits_costs(Counted(), seed=7, **options) for _ in range(2))
    other = gits_costs(Counted(), seed=8, **options)
    assert torch.equal(one.matrix, two.matrix) and torch.equal(one.grid, two.grid)
    assert not torch.equal(one.matrix, other.matrix)


@pytest.mark.parametrize("wrong", [{"points": 1}, {"samples": 0}, {"batch": 0}, {"batch": -1}])
def test_gits_refuses_measurements_that_never_end(wrong):
    with pytest.raises(TableError, match="at least 2 points, 1 sample and a batch of 1"):
        gits_costs(Counted(), **wrong)


def test_gits_refuses_other_options():
    with pytest.raises(TableError, match="Unknown metric 'lpips': choose one of dev, l1, l2"):
        gits_costs(Counted(), metric="lpips")
    with pytest.raises(TableError, match="gamma above 0"):
        schedule("gits", 3, Counted(), gamma=0)


# AYS ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("sd1", [14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029]),
        ("sdxl", [14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029]),
        ("svd", [700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002]),
    ],
)
def test_ays_recovers_the_published_values(variant, expected):
    model = ranges("ve", expected[-1], expected[0])
    close(schedule("ays", 10, model, expected[-1], variant=variant), expected)
    twice = schedule("ays", 20, model, expected[-1], variant=variant)
    close(twice[::2], expected)
    close(
        twice[1::2], np.sqrt(np.array(expected[1:]) * np.array(expected[:-1]))
    )  # log-linear between
    close(schedule("ays", 5, model, expected[-1], variant=variant), expected[::2])


def test_ays_on_another_range_keeps_its_spacing():
    logs = schedule("ays", 10, MODELS["ve"], 0.002).log()
    published = np.log(TABLES["sd1"])
    shares = (published - published[0]) / (published[-1] - published[0])
    np.testing.assert_allclose((logs - logs[0]) / (logs[-1] - logs[0]), shares, atol=1e-12)


def test_ays_is_for_ve_models():
    with pytest.raises(TableError, match="no table for flow models"):
        schedule("ays", 10, MODELS["flow"])
    with pytest.raises(TableError, match="no table 'sd3': choose one of sd1, sdxl, svd"):
        schedule("ays", 10, MODELS["ve"], variant="sd3")


# Refusals ----------------------------------------------------------------------------------------


def test_unknown_schedule():
    with pytest.raises(TableError) as caught:
        schedule("karas", 5, MODELS["ve"])
    assert all(name in str(caught.value) for name in SCHEDULES)
    with pytest.raises(TableError, match="Did you mean 'logsnr'?"):
        schedule("logsmr", 5, MODELS["ve"])


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("edm", "rho"),
        ("dmn", "power"),
        ("gits", "costs, gamma"),
        ("ays", "variant"),
        ("uniform", "none"),
    ],
)
def test_unknown_option(name, takes):
    with pytest.raises(TableError, match=f"'{name}' has no option 'foo': it takes {takes}"):
        schedule(name, 5, MODELS["ve"], foo=1)


@pytest.mark.parametrize("option", ["n", "model", "low", "high"])
def test_positional_arguments_are_no_options(option):
    with pytest.raises((TableError, TypeError)):
        schedule("edm", 5, MODELS["ve"], **{option: 1})


@pytest.mark.parametrize("n", [0, -1, 1001, 2.0, True, "5", None])
def test_bad_number_of_steps(n):
    with pytest.raises(TableError, match="whole number from 1 to 1000"):
        schedule("edm", n, MODELS["ve"])


@pytest.mark.parametrize("ending", [-1.0, -1e-9, 80.0, 81.0, float("nan"), float("inf")])
def test_bad_ending(ending):
    with pytest.raises(
        TableError, match=re.escape("must be 0 or lie between 0 and sigma_max (80)")
    ):
        schedule("edm", 5, MODELS["ve"], ending)


@pytest.mark.parametrize("rho", [0, -7.0, float("nan")])
def test_bad_rho(rho):
    with pytest.raises(TableError, match="rho above 0"):
        schedule("edm", 5, MODELS["ve"], rho=rho)


def test_unknown_space():
    with pytest.raises(TableError, match="Unknown space 'vp'"):
        schedule("edm", 5, ranges("vp", 0.1, 1.0))


def test_a_range_too_narrow_for_the_steps():
    with pytest.raises(TableError, match="'edm' cannot place 1000 steps"):
        schedule("edm", 1000, ranges("ve", 1.0, 1.0 + 1e-14), 1.0)


def test_the_distance_from_a_chord_is_the_length_of_the_perpendicular():
    """gits' measure, on points with leading dimensions: two times, three samples, four numbers."""
    generator = torch.Generator().manual_seed(0)
    start, end = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    away = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    axis = (start - end) / (start - end).norm(dim=-1, keepdim=True)
    away = away - (away * axis).sum(-1, keepdim=True) * axis
    points = end + 0.3 * (start - end) + away
    assert torch.allclose(_chord_distance(points, start, end), away.norm(dim=-1))
