"""Classical tables against their published formulas, derived here in other ways.

Quadrature and numpy replace the engine's moment equations; phi is checked in exact fractions.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from problems import EXPONENTIAL, PROBLEMS, SPACE_FORMS, mixture
from scipy.integrate import quad

from s4s_core.classical import classical_table
from s4s_core.classical.lagrange import phi
from s4s_core.errors import TableError
from s4s_core.sampling import sample
from s4s_core.spaces import log_snr
from s4s_core.table import SolverTable

EXACT = 1e-10
STEPS = 6


@pytest.fixture(params=PROBLEMS)
def space(request):
    return request.param


def grid(space, n=STEPS):
    """Return non-uniform nodes with regular ends and their lambdas, as numpy arrays."""
    nodes = PROBLEMS[space].nodes(n)
    return nodes.numpy(), log_snr(space, nodes).numpy()


def b_of(name, space, nodes, **options):
    return classical_table(name, nodes, space=space, **options).coefficients["b"]


def assert_equal(weights, expected):
    np.testing.assert_allclose(weights, expected, rtol=EXACT, atol=EXACT)


def signed(form, h):
    """The authors' hh: h in the noise form, -h in the data form."""
    return h if form == "noise" else -h


def exact_phi(k, z):
    """sum_n z^n / (n + k)! in rational arithmetic."""
    z, term, total = Fraction(z), Fraction(1, math.factorial(k)), Fraction(0)
    for n in range(150):
        total += term
        term = term * z / (n + k + 1)
    return float(total)


@pytest.mark.parametrize("k", range(1, 7))
def test_phi_against_rational_arithmetic(k):
    negative = -20, -5, -2, -1.5, -1 - 1e-9, -1 + 1e-9, -0.3, -1e-6
    points = *negative, 0, 1e-12, 0.2, 0.999, 1, 1.3, 4, 15
    for z in points:
        value = float(phi(k, torch.tensor(z, dtype=torch.float64)))
        assert value == pytest.approx(exact_phi(k, z), rel=1e-12), z


@pytest.mark.parametrize("k", range(1, 5))
@pytest.mark.parametrize("z", [-1.0, 1.0])
def test_phi_and_its_slope_are_continuous_where_the_series_ends(k, z):
    def both(at):
        at = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        value = phi(k, at)
        return value.item(), torch.autograd.grad(value, at)[0].item()

    assert both(z * (1 - 1e-14)) == pytest.approx(both(z * (1 + 1e-14)), rel=1e-12)


def lagrange_by_quadrature(form, at, step, columns):
    """Weights as integrals of the Lagrange basis over a step, `at` being the nodes."""
    points = at[columns]
    start, end = at[step], at[step + 1]
    exponent = {"data": 1.0, "noise": -1.0, "plain": 0.0}[form]

    def kernel(u):
        return math.exp(exponent * (u - start))

    total = quad(kernel, start, end, epsabs=0, epsrel=1e-13)[0]
    weights = []
    for j, own in enumerate(points):
        others = np.delete(points, j)

        def basis(u, own=own, others=others):
            return kernel(u) * np.prod((u - others) / (own - others))

        weights.append(quad(basis, start, end, epsabs=1e-14, epsrel=1e-13)[0] / total)
    return np.array(weights)


@pytest.mark.parametrize("space, form", [*EXPONENTIAL, ("ve", "plain"), ("flow", "plain")])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_lagrange_rules_by_quadrature(space, form, order):
    """Exponential rules integrate over lambda, Adams-Bashforth (plain) over sigma."""
    nodes, lam = grid(space)
    if form == "plain":
        at, b = nodes, b_of("adams-bashforth", space, nodes, order=order)
    else:
        at, b = lam, b_of("exp-lagrange", space, nodes, order=order, form=form)
    for step in range(STEPS):
        seen = min(order, step + 1)
        columns = step - np.arange(seen)
        assert_equal(b[step, :seen], lagrange_by_quadrature(form, at, step, columns))
        assert not b[step, seen:].any()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_ipndm_is_adams_bashforth_of_uniform_steps(space, order):
    uniform = PROBLEMS[space].nodes(STEPS, "uniform")
    expected = b_of("adams-bashforth", space, uniform, order=order)
    for nodes in (uniform, PROBLEMS[space].nodes(STEPS)):
        assert_equal(b_of("ipndm", space, nodes, order=order), expected)
    known = {1: [24], 2: [36, -12], 3: [46, -32, 10], 4: [55, -59, 37, -9]}
    assert_equal(expected[3] * 24, known[order])


@pytest.mark.parametrize("space, form", EXPONENTIAL)
def test_dpmpp_second_and_third_order(space, form):
    """The authors' D0, D1, D2 as linear maps of the history."""
    nodes, lam = grid(space)
    h = np.diff(lam)
    second, third = (b_of("dpmpp", space, nodes, order=o, form=form) for o in (2, 3))
    assert_equal(second[0], [1, 0])
    for i in range(1, STEPS):
        half = h[i] / (2 * h[i - 1])
        assert_equal(second[i], [1 + half, -half])
    m0, m1, m2 = np.eye(3)
    for i in range(2, STEPS):
        r0, r1 = h[i - 1] / h[i], h[i - 2] / h[i]
        near, far = (m0 - m1) / r0, (m1 - m2) / r1
        d1, d2 = near + r0 / (r0 + r1) * (near - far), (near - far) / (r0 + r1)
        phi1 = math.expm1(signed(form, h[i]))
        phi2 = phi1 / h[i] + (1 if form == "data" else -1)
        phi3 = phi2 / h[i] - 0.5
        d1_factor = -phi2 / phi1 if form == "data" else phi2 / phi1
        assert_equal(third[i], m0 + d1_factor * d1 + phi3 / phi1 * d2)


def authors_rho(form, h, ratios, variant, order):
    """(R, b, g) of the system that the authors write; ratios r_m of the older nodes, then 1."""
    hh = signed(form, h)
    phi1 = math.expm1(hh)
    gain = hh if variant == "bh1" else phi1
    psi, rows, right = phi1 / hh - 1, [], []
    for k in range(1, order + 1):
        rows.append(np.array(ratios) ** (k - 1))
        right.append(math.factorial(k) * psi / gain)
        psi = psi / hh - 1 / math.factorial(k + 1)
    return np.array(rows), np.array(right), gain / phi1


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize("variant", ["bh1", "bh2"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_unipc_solves_the_authors_system(space, form, variant, order):
    nodes, lam = grid(space)
    options = {"order": order, "form": form, "lower_order_final": False}
    found = classical_table(f"unipc-{variant}", nodes, space=space, **options).coefficients
    for i in range(STEPS):
        p, h = min(order, i + 1), lam[i + 1] - lam[i]
        older = [(lam[i - m] - lam[i]) / h for m in range(1, p)]
        system, right, gain = authors_rho(form, h, [*older, 1.0], variant, p)
        rho = np.array([0.5]) if p == 2 else np.linalg.solve(system[:-1, :-1], right[:-1])
        rest = gain * rho / older
        assert_equal(found["b"][i, :p], [1 - rest.sum(), *rest])
        if i == STEPS - 1:
            break
        rho = np.array([0.5]) if p == 1 else np.linalg.solve(system, right)
        rest, ahead = gain * rho[:-1] / older, gain * rho[-1]
        assert_equal(found["a"][i, : p + 1], [ahead, 1 - ahead - rest.sum(), *rest])


@pytest.mark.parametrize("name", ["dpmpp", "exp-lagrange", "unipc-bh1", "unipc-bh2"])
def test_the_orders_of_the_last_steps(space, name):
    """Orders 2 and 1 with lower_order_final; without it, 1 on a step to zero."""
    b = b_of(name, space, grid(space)[0], order=3, lower_order_final=True)
    assert [np.count_nonzero(row) for row in b] == [1, 2, 3, 3, 2, 1]
    b = b_of(name, space, singular_nodes(space, 5), order=3, lower_order_final=False)
    assert [np.count_nonzero(row) for row in b] == [1, 2, 3, 3, 1] and b[-1, 0] == 1


def dpm_stages(order, h, sign):
    """(a, b) of one DPM-Solver step as the authors write them."""
    if order == 2:
        return [[0, 0], [1, 0]], [0, 1]
    r1, r2 = 1 / 3, 2 / 3
    phi12, phi1 = np.expm1(sign * r2 * h), np.expm1(sign * h)
    phi22, phi2 = phi12 / (r2 * h) - sign, phi1 / h - sign
    a32, beta = sign * r2 / r1 * phi22 / phi12, sign * phi2 / (r2 * phi1)
    return [[0, 0, 0], [1, 0, 0], [1 - a32, a32, 0]], [1 - beta, 0, beta]


@pytest.mark.parametrize("space, form", EXPONENTIAL)
@pytest.mark.parametrize("order", [2, 3])
def test_dpm_solver(space, form, order):
    nodes, lam = grid(space)
    table = classical_table("dpm-solver", nodes, space=space, order=order, form=form)
    calls = log_snr(space, torch.tensor(table.call_sigmas)).numpy().reshape(STEPS, order)
    h = np.diff(lam)
    assert_equal(calls, lam[:-1, None] + h[:, None] * np.arange(order) / order)
    for i in range(STEPS):
        a, b = dpm_stages(order, h[i], 1 if form == "noise" else -1)
        assert_equal(table.coefficients["a"][i], a)
        assert_equal(table.coefficients["b"][i], b)


def test_heun_is_the_trapezium_of_two_calls(space):
    nodes, _ = grid(space)
    table = classical_table("heun", nodes, space=space)
    assert_equal(table.call_sigmas.reshape(STEPS, 2), np.stack([nodes[:-1], nodes[1:]], 1))
    assert_equal(table.coefficients["b"], np.full((STEPS, 2), 0.5))


@pytest.mark.parametrize("space, form", SPACE_FORMS)
@pytest.mark.parametrize("ending", [None, 0.0])
def test_order_one_is_the_same_step_in_every_form(space, form, ending):
    """x_i = alpha_i x0 + sigma_i eps in every form: DDIM."""
    problem = PROBLEMS[space]
    nodes = problem.nodes(3)
    if ending is not None:
        nodes[-1] = ending
    x = problem.x
    for start, end in zip(nodes[:-1], nodes[1:], strict=True):
        x0 = problem.denoise(x, start)
        keep, scale = (1 - start, 1 - end) if space == "flow" else (1.0, 1.0)
        x = scale * x0 + end * (x - keep * x0) / start
    levels = nodes.numpy()
    table = SolverTable("lms", 1, form, space, levels, levels[:-1], {"b": np.ones((3, 1))})
    result = sample(problem.model.denoise, problem.x, table)
    torch.testing.assert_close(result, x, rtol=1e-13, atol=1e-13)


MULTISTEP = [
    *(("euler", 1), ("ddim", 1), ("ipndm", 3), ("adams-bashforth", 4), ("gaussian", 3)),
    *(("dpmpp", 2), ("dpmpp", 3), ("exp-lagrange", 3), ("unipc-bh1", 2), ("unipc-bh2", 3)),
]
SOLVERS = [*MULTISTEP, ("dpm-solver", 2), ("dpm-solver", 3), ("heun", 2)]


def singular_nodes(space, n):
    """From sigma_max, which is 1 for flow, down to 0."""
    high = 80.0 if space == "ve" else 1.0
    return np.append(np.geomspace(high, 0.02 * high, n) if n > 1 else [high], 0.0)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("name, order", SOLVERS)
def test_singular_ends_are_finite(space, name, order, n):
    table = classical_table(name, singular_nodes(space, n), space=space, order=order)
    model = mixture(space)
    out = sample(model.denoise, table.sigmas[0] * torch.randn(3, 2, dtype=torch.float64), table)
    assert out.isfinite().all()
    assert (table.call_sigmas > 0).all() and table.ending == 0


@pytest.mark.parametrize("order", [2, 3])
def test_dpm_solver_ends_on_the_last_stage(space, order):
    """The result of a step to zero is the x0 of its last call, made inside the step."""
    table = classical_table(
        "dpm-solver", singular_nodes(space, 4), space=space, order=order, form="data"
    )
    last = table.call_sigmas[-order:]
    assert last[0] == table.sigmas[-2] and (np.diff(last) < 0).all()
    seen = []
    model = mixture(space)

    out = sample(model.denoise, PROBLEMS[space].x, table, callback=seen.append)
    torch.testing.assert_close(out, seen[-1].denoised, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name, order", MULTISTEP)
def test_order_above_the_number_of_steps(space, name, order, n):
    """Only warm-up rows, the same as the first rows of a longer table; the first is Euler's."""
    nodes = PROBLEMS[space].nodes(5)
    options = {} if "unipc" not in name else {"lower_order_final": False}
    short = b_of(name, space, nodes[: n + 1], order=order, **options)
    assert short.shape == (n, order) and (name == "gaussian" or short[0, 0] == 1)
    assert_equal(short, b_of(name, space, nodes, order=order, **options)[:n])


def test_a_flow_start_at_one_changes_only_the_first_steps():
    """Only the first step is measured from a clipped end; the noise form has no such start."""
    nodes = np.array([1.0, 0.8, 0.5, 0.3, 0.1])
    inner = b_of("exp-lagrange", "flow", nodes[1:], order=2)
    assert_equal(b_of("exp-lagrange", "flow", nodes, order=2)[2:], inner[1:])
    with pytest.raises(TableError, match="velocity or data"):
        b_of("exp-lagrange", "flow", nodes, form="noise")
