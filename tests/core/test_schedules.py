"""Schedules: closed formulas, DMN's bound, GITS' shortest paths, AYS' tables, and errors."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s4s_core import classical_table, sample, schedule
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


def ranges(space="ve", low=0.002, high=80.0, times=None):
    """The part of a model that a schedule without model calls uses."""
    return SimpleNamespace(space=space, sigma_min=low, sigma_max=high, times=times)


TIMES = DiscreteTimes.scaled_linear()
MODELS = {
    "ve": ranges(),
    "flow": ranges("flow", 0.001, 1.0),
    "shifted": SimpleNamespace(space="flow", sigma_min=0.003, sigma_max=0.97),
    "vp": ranges("ve", TIMES.sigma_min, TIMES.sigma_max, TIMES),
}


def close(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=0)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([*CLOSED, *TABLES]),
    model=st.sampled_from(list(MODELS)),
    n=st.integers(1, 60),
    share=st.none() | st.floats(0.0, 0.9),
)
def test_ends_are_exact_and_nodes_decrease(name, model, n, share):
    name, options = ("ays", {"variant": name}) if name in TABLES else (name, {})
    model = MODELS["ve" if options and MODELS[model].space == "flow" else model]
    span = model.sigma_max / 2 - model.sigma_min
    ending = 0.0 if share is None else model.sigma_min + share * span
    nodes = schedule(name, n, model, ending, **options)
    assert nodes.dtype == torch.float64 and nodes.shape == (n + 1,)
    assert nodes[0].item() == model.sigma_max and nodes[-1].item() == ending
    assert bool((nodes[1:] < nodes[:-1]).all()) and bool((nodes[:-1] > 0).all())


@pytest.mark.parametrize("name", [*CLOSED, "ays"])
def test_an_ending_of_zero_only_moves_the_last_node(name):
    model = MODELS["ve"]
    kept, zero = schedule(name, 7, model, model.sigma_min), schedule(name, 7, model)
    assert zero[-1] == 0 and torch.equal(kept[:-1], zero[:-1])
    if name in CLOSED:  # the spacing ends at a positive ending, not at sigma_min
        shorter = ranges(low=0.5)
        assert torch.equal(schedule(name, 6, model, 0.5), schedule(name, 6, shorter, 0.5))


@pytest.mark.parametrize("rho", [7.0, 1.0, 3.5])
def test_edm_is_karras_formula(rho):
    low, high, n = 0.002, 80.0, 18
    roots = [
        high ** (1 / rho) + i / n * (low ** (1 / rho) - high ** (1 / rho)) for i in range(n + 1)
    ]
    close(schedule("edm", n, MODELS["ve"], low, rho=rho), np.array(roots) ** rho, 1e-9)


def test_edm_on_a_flow_model_is_the_same_in_sigma_over_alpha():
    model = ranges("flow", 0.01, 0.9)
    nodes = schedule("edm", 9, model, 0.01)
    ratio = (nodes / (1 - nodes)) ** (1 / 7)
    close(ratio.diff(), np.full(9, (ratio[-1] - ratio[0]).item() / 9), 1e-9)


@pytest.mark.parametrize(
    "model, first", [(ranges("ve"), 0), (ranges("flow", 0.01, 0.9), 0), (MODELS["flow"], 1)]
)
def test_logsnr_is_uniform(model, first):
    """On a full flow model after its singular start."""
    steps = log_snr(model.space, schedule("logsnr", 9, model, 0.01)[first:]).diff()
    close(steps, np.full(9 - first, steps.mean().item()), 1e-10)


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_time_is_sigma_if_a_model_has_no_times(space):
    model = MODELS[space]
    close(schedule("uniform", 8, model, 0.01), np.linspace(model.sigma_max, 0.01, 9))
    roots = np.linspace(math.sqrt(model.sigma_max), 0.1, 9)
    close(schedule("quadratic", 8, model, 0.01), roots**2)


@pytest.mark.parametrize("times", [DiscreteTimes.scaled_linear(), DiscreteTimes.linear(steps=400)])
def test_uniform_and_quadratic_in_discrete_time(times):
    model = ranges("ve", times.sigma_min, times.sigma_max, times)
    last = times.last

    def sigma(time):
        return np.exp(np.interp(time, np.arange(last + 1), times.log_sigmas.numpy()))

    uniform, quadratic = np.linspace(last, 0, 10), np.linspace(last**0.5, 0, 10) ** 2
    close(schedule("uniform", 9, model, model.sigma_min), sigma(uniform), 1e-9)
    close(schedule("quadratic", 9, model, model.sigma_min), sigma(quadratic), 1e-9)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 5, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_dmn_lowers_its_bound(space, n, power):
    pytest.importorskip("scipy")
    model = MODELS[space]
    nodes = dmn(n, model, model.sigma_min, model.sigma_max, power=power)
    start = logsnr(n, model, model.sigma_min, model.sigma_max)
    best, before = (float(error_bound(space, sigmas, power)) for sigmas in (nodes, start))
    assert best <= before * (1 + 1e-6) if n <= 2 else best < 0.99 * before
    assert nodes.shape == (n + 1,) and bool((nodes[1:] < nodes[:-1]).all())
    close(nodes[[0, -1]], start[[0, -1]])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("space, ending", [("ve", 0.0), ("flow", 0.05)])
def test_dmn_works_without_gradients_and_repeats_itself(mode, space, ending):
    pytest.importorskip("scipy")
    with mode():
        nodes = schedule("dmn", 3, MODELS[space], ending)
    assert nodes[-1] == ending and torch.equal(nodes, schedule("dmn", 3, MODELS[space], ending))


def test_dmn_weights_errors_as_for_latents_if_a_model_has_times():
    pytest.importorskip("scipy")
    model = MODELS["vp"]
    nodes = schedule("dmn", 3, model)
    assert torch.equal(nodes, schedule("dmn", 3, model, power=2))
    assert not torch.equal(nodes, schedule("dmn", 3, model, power=1))


def test_dmn_bound_is_the_weighted_sum_of_what_each_call_adds():
    """The response of the exponential Lagrange rule to a unit error of each call, measured."""
    for space, sigmas in (("ve", [9.0, 3.0, 1.0, 0.4, 0.1]), ("flow", [0.9, 0.7, 0.5, 0.2, 0.1])):
        nodes = torch.tensor(sigmas, dtype=torch.float64)
        lower = {"form": "data", "lower_order_final": True}
        table = classical_table("exp-lagrange", nodes, order=3, space=space, **lower)
        responses = []
        for call in range(4):
            answers = iter(torch.eye(4, dtype=torch.float64)[call])
            start = torch.zeros(1, 1, dtype=torch.float64)
            responses.append(sample(lambda x, s, a=answers: x * 0 + next(a), start, table).item())
        noise = nodes[:-1] if space == "ve" else nodes[:-1] / (1 - nodes[:-1])
        for power in (1, 2):
            eps = noise**power / (1 + noise**2) ** ((power - 1) / 2)
            expected = (eps * torch.tensor(responses, dtype=torch.float64).abs()).sum()
            alpha = 1.0 if space == "ve" else 1 - sigmas[-1]  # the bound is on x_N / alpha_N
            close(error_bound(space, nodes, power) * alpha, expected, 1e-9)


def test_dmn_without_scipy(monkeypatch):
    monkeypatch.setattr(dmn_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TableError, match=re.escape(pip_install_line("scipy"))):
        schedule("dmn", 5, MODELS["ve"])


class Counted:
    """A mixture that counts its calls and their rows."""

    def __init__(self, space="ve", scale=0.3, components=3):
        options = {"sigma_min": 0.01, "sigma_max": 10.0} if space == "ve" else {}
        mixture = {"seed": 3, "scale": scale, "space": space, **options}
        self.inner = GaussianMixture.random(components, (2,), **mixture)
        self.space, self.shape, self.times = space, (2,), None
        self.sigma_min, self.sigma_max = self.inner.sigma_min, self.inner.sigma_max
        self.rows = []

    def denoise(self, x, sigma):
        self.rows.append(len(x))
        return self.inner.denoise(x, sigma)

    def conditions(self, batch, generator):
        return None


def path_cost(matrix, path, gamma):
    """The value of one path under the recursion V_k(j) = min_i cost_ji + gamma V_{k-1}(i)."""
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
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(size, size, generator=generator, dtype=torch.float64)
    matrix = (matrix * 3).round() if whole else matrix  # whole numbers make ties
    matrix = matrix.masked_fill(torch.ones(size, size).tril().bool(), float("inf"))
    path = shortest_path(matrix, n, gamma)
    assert len(path) == n + 1 and path[0] == 0 and path[-1] == size - 1
    assert all(i < j for i, j in itertools.pairwise(path))
    every = [(0, *inner, size - 1) for inner in itertools.combinations(range(1, size - 1), n - 1)]
    best = min(path_cost(matrix, p, gamma) for p in every)
    assert path_cost(matrix, path, gamma) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("space", ["ve", "flow"])
def test_costs_grow_with_the_step_unless_trajectories_are_straight(space, metric):
    """Those of a point mass are: x0 never changes and one Euler step is exact."""
    point = Counted(space, scale=0.0, components=1)
    for model in (Counted(space), point):
        grid, matrix = gits_costs(model, points=12, samples=8, metric=metric)
        above = torch.ones(12, 12).triu(1).bool()
        assert bool((matrix[above] >= 0).all()) and bool(matrix[above].isfinite().all())
        assert bool((matrix[~above] == float("inf")).all())
        assert bool((grid[1:] < grid[:-1]).all()) and len(grid) == 12
        if model is point:
            assert float(matrix[above].max()) < 1e-5 * model.sigma_max
        else:
            assert float(matrix[0, -1]) > 10 * float(matrix[0, 1])


def test_costs_are_euler_errors_of_the_teacher():
    """One sample, two steps: the l1 and l2 costs by hand."""
    model = Counted()
    grid, matrix = gits_costs(model, points=3, samples=1, metric="l2", seed=5)
    _, mean = gits_costs(model, points=3, samples=1, metric="l1", seed=5)
    x = torch.randn(1, 2, generator=torch.Generator().manual_seed(5)) * float(grid[0])
    slope, states = [], [x]
    for i in range(2):
        x0 = model.denoise(states[i], grid[i : i + 1].float())
        slope.append((states[i] - x0) / float(grid[i]))
        used = slope[0] if i == 0 else 1.5 * slope[1] - 0.5 * slope[0]
        states.append(states[i] + float(grid[i + 1] - grid[i]) * used)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        gap = states[i] + float(grid[j] - grid[i]) * slope[i] - states[j]
        norms = float(gap.square().mean().sqrt()), float(gap.abs().mean())
        costs = float(matrix[i, j]), float(mean[i, j])
        assert costs == pytest.approx(norms, rel=1e-4, abs=1e-6)


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
    assert torch.equal(nodes[1:-1], costs.grid[1:-1])
    with pytest.raises(TableError, match="at most 14 steps"):
        schedule("gits", 15, model, costs=costs)


def test_gits_by_default_measures_256_trajectories_of_60_calls():
    model = Counted()
    nodes = schedule("gits", 4, model)
    assert sum(model.rows) == 60 * 256 and nodes[0] == 10 and nodes[-1] == 0
    costs = gits_costs(model, model.sigma_min)
    assert torch.equal(nodes, schedule("gits", 4, model, costs=costs))
    assert not torch.equal(nodes, schedule("gits", 4, model, costs=costs, gamma=30.0))
    other = gits_costs(model, model.sigma_min, seed=8)
    assert torch.equal(other.grid, costs.grid) and not torch.equal(other.matrix, costs.matrix)


PUBLISHED = {
    "sd1": (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029),
    "sdxl": (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029),
    "svd": (700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),
}


@pytest.mark.parametrize("variant, published", PUBLISHED.items())
def test_ays_recovers_the_published_values(variant, published):
    expected = np.array(published)
    model = ranges("ve", published[-1], published[0])
    close(schedule("ays", 10, model, published[-1], variant=variant), expected)
    twice = schedule("ays", 20, model, published[-1], variant=variant)
    close(twice[::2], expected)
    close(twice[1::2], np.sqrt(expected[1:] * expected[:-1]))  # log-linear between
    close(schedule("ays", 5, model, published[-1], variant=variant), expected[::2])


def test_ays_on_another_range_keeps_its_spacing():
    logs = schedule("ays", 10, MODELS["ve"], 0.002).log()
    published = np.log(PUBLISHED["sd1"])
    shares = (published - published[0]) / (published[-1] - published[0])
    np.testing.assert_allclose((logs - logs[0]) / (logs[-1] - logs[0]), shares, atol=1e-12)


SPAN = re.escape("must be 0 or lie between 0 and sigma_max (80)")
ENDINGS = (-1.0, -1e-9, 80.0, 81.0, float("nan"), float("inf"))
STEPS = (0, -1, 1001, 2.0, True, "5", None)


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("karas", {}, ", ".join(SCHEDULES)),
        ("logsmr", {}, "Did you mean 'logsnr'"),
        *(
            (name, {option: 1}, "has no option")
            for name, option in (("edm", "foo"), ("dmn", "rho"))
        ),
        ("uniform", {"low": 1}, "has no option"),
        *(("edm", {"n": n}, "integer from 1 to 1000") for n in STEPS),
        *(("edm", {"ending": ending}, SPAN) for ending in ENDINGS),
        *(("edm", {"rho": rho}, "rho must be > 0") for rho in (0, -7.0, float("nan"))),
        ("edm", {"model": ranges("vp", 0.1, 1.0)}, "Unknown space 'vp'"),
        ("edm", {"n": 1000, "model": ranges("ve", 1, 1 + 1e-14), "ending": 1}, "cannot place 1000"),
        ("ays", {"model": MODELS["flow"]}, "no table for flow models"),
        ("ays", {"variant": "sd3"}, "no table 'sd3'.*one of sd1, sdxl, svd"),
        ("gits", {"model": Counted(), "gamma": 0}, "gamma must be > 0"),
    ],
)
def test_wrong_choices_are_explained(name, changes, message):
    with pytest.raises(TableError, match=message):
        schedule(name, **{"n": 5, "model": MODELS["ve"]} | changes)


@pytest.mark.parametrize(
    "wrong", [{"points": 1}, {"samples": 0}, {"batch": 0}, {"batch": -1}, {"metric": "lpips"}]
)
def test_gits_refuses_unknown_metrics_and_measurements_that_never_end(wrong):
    with pytest.raises(TableError, match="points must be >= 2|Unknown metric 'lpips'"):
        gits_costs(Counted(), **wrong)


def test_the_distance_from_a_chord_is_the_length_of_the_perpendicular():
    """The `dev` metric of gits, on two times, three samples and four numbers."""
    generator = torch.Generator().manual_seed(0)
    start, end = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    away = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    axis = (start - end) / (start - end).norm(dim=-1, keepdim=True)
    away = away - (away * axis).sum(-1, keepdim=True) * axis
    points = end + 0.3 * (start - end) + away
    assert torch.allclose(_chord_distance(points, start, end), away.norm(dim=-1))
