"""Equality with diffusers' schedulers: same nodes, same noise, same denoiser, step by step.

diffusers keeps its samples in VP scaling, x_vp = x / sqrt(1 + sigma^2) of our ve space; its flow
schedulers share our flow space. The schedulers get our nodes as their sigmas, in float64.
"""

import pytest
import torch
from problems import PROBLEMS

from s4s_core.classical import classical_table
from s4s_core.sampling import sample
from s4s_core.spaces import DiscreteTimes, log_snr, sigma_of_log_snr

diffusers = pytest.importorskip("diffusers", reason="diffusers is the oracle of these tests")

# diffusers does not support numpy 2 fully yet.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers")

FLOAT32 = 2e-6  # DPMSolverMultistep and Euler round the sample to float32 at every step
EXACT = 1e-10
STEPS = 6
ENDINGS = {"zero": 0.0, "sigma_min": 0.1}


def nodes_of(space, ending, n=STEPS):
    nodes = PROBLEMS[space].nodes(n)
    nodes[-1] = ENDINGS[ending]
    return nodes


def scaling(space, sigma):
    """Return the factor from our x to diffusers' sample."""
    return 1 / (1 + sigma**2).sqrt() if space == "ve" else torch.ones_like(sigma)


def drive(scheduler, space, nodes):
    """Run a scheduler that predicts x0 over our nodes; return the result in our scaling."""
    problem = PROBLEMS[space]
    scheduler.set_timesteps(len(nodes) - 1)
    scheduler.sigmas, scheduler.timesteps = nodes, torch.arange(len(nodes) - 1, 0, -1)
    scheduler.set_begin_index(0)
    state = problem.x * scaling(space, nodes[0])
    for time, sigma in zip(scheduler.timesteps, nodes[:-1], strict=True):
        x0 = problem.denoise(state / scaling(space, sigma), sigma)
        state = scheduler.step(x0, time, state).prev_sample
    return state / scaling(space, nodes[-1])


def ours(name, space, nodes, **options):
    problem = PROBLEMS[space]
    table = classical_table(name, nodes, space=space, **options)
    return sample(problem.model.denoise, problem.x, table)


def assert_close(result, expected, tolerance):
    error = float((result - expected).abs().max() / expected.abs().max())
    assert error < tolerance, f"relative error {error:.1e}"


def flags(space, ending, **options):
    """Return options for a scheduler that takes x0 and ends like the nodes."""
    flow = {"use_flow_sigmas": True} if space == "flow" else {}
    return {"prediction_type": "sample", "final_sigmas_type": ending, **flow, **options}


# Space, form, ending and lower_order_final; the noise forms of diffusers have no flow.
DATA = [(space, "data", e, lower) for space in PROBLEMS for e in ENDINGS for lower in (False, True)]
NOISE = ("ve", "noise", "sigma_min", False)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("space, form, ending, lower", [*DATA, NOISE])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_dpmpp_multistep(space, form, ending, lower, order):
    nodes = nodes_of(space, ending)
    algorithm = {"algorithm_type": "dpmsolver++" if form == "data" else "dpmsolver"}
    options = {"solver_order": order, "lower_order_final": lower, **algorithm}
    scheduler = diffusers.DPMSolverMultistepScheduler(**flags(space, ending, **options))
    result = ours("dpmpp", space, nodes, order=order, form=form, lower_order_final=lower)
    assert_close(result, drive(scheduler, space, nodes), FLOAT32)


@pytest.mark.parametrize(
    "space, form, ending, lower, variant",
    [
        (*case, variant)
        for case in [*DATA, NOISE, (*NOISE[:3], True)]
        for variant in ("bh1", "bh2")  # at zero, diffusers gives NaN in the other cases
        if case[2] == "sigma_min" or (variant == "bh2" and case[3])
    ],
)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_unipc(space, form, ending, lower, variant, order):
    nodes = nodes_of(space, ending)
    options = {"solver_order": order, "solver_type": variant, "predict_x0": form == "data"}
    scheduler = diffusers.UniPCMultistepScheduler(
        **flags(space, ending, lower_order_final=lower, **options)
    )
    solver = {"order": order, "form": form, "lower_order_final": lower}
    result = ours(f"unipc-{variant}", space, nodes, **solver)
    assert_close(result, drive(scheduler, space, nodes), EXACT)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "space, algorithm, form",
    [("ve", "dpmsolver++", "data"), ("ve", "dpmsolver", "noise"), ("flow", "dpmsolver++", "data")],
)
def test_dpm_solver_single_step_midpoint(space, algorithm, form):
    nodes = nodes_of(space, "sigma_min")
    lam = log_snr(space, nodes)
    middles = sigma_of_log_snr(space, (lam[1:] + lam[:-1]) / 2)
    levels = torch.cat([torch.stack([nodes[:-1], middles], 1).flatten(), nodes[-1:]])
    options = {"solver_order": 2, "lower_order_final": False, "algorithm_type": algorithm}
    scheduler = diffusers.DPMSolverSinglestepScheduler(**flags(space, "sigma_min", **options))
    result = ours("dpm-solver", space, nodes, order=2, form=form)
    assert_close(result, drive(scheduler, space, levels), EXACT)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("space", PROBLEMS)
def test_euler(space, ending):
    """Its samples already have our scaling; for flow, its model output is the velocity."""
    nodes, problem = nodes_of(space, ending), PROBLEMS[space]
    if space == "ve":
        scheduler = diffusers.EulerDiscreteScheduler(prediction_type="sample")
    else:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    scheduler.sigmas, scheduler.is_scale_input_called = nodes, True
    scheduler.set_begin_index(0)
    state = problem.x
    for sigma in nodes[:-1]:
        x0 = problem.denoise(state, sigma)
        output = x0 if space == "ve" else (state - x0) / sigma
        state = scheduler.step(output, float(sigma), state).prev_sample
    assert_close(ours("euler", space, nodes), state, FLOAT32)


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear"])
def test_ddim_and_discrete_times(schedule):
    """DDIM over integer times of a VP model is Euler over our sigmas of those times."""
    times = getattr(DiscreteTimes, schedule)()
    start, end = {"linear": (1e-4, 0.02), "scaled_linear": (0.00085, 0.012)}[schedule]
    betas = {"beta_start": start, "beta_end": end, "beta_schedule": schedule}
    scheduler = diffusers.DDIMScheduler(**betas, clip_sample=False, prediction_type="sample")
    scheduler.set_timesteps(5)
    sigmas = times.sigma(scheduler.timesteps.double())
    nodes = torch.cat([sigmas, sigmas.new_zeros(1)])
    problem = PROBLEMS["ve"]
    state = problem.x * scaling("ve", nodes[0])
    for time, sigma in zip(scheduler.timesteps, sigmas, strict=True):
        x0 = problem.denoise(state / scaling("ve", sigma), sigma)
        state = scheduler.step(x0, time, state).prev_sample
    assert_close(ours("ddim", "ve", nodes), state, 1e-5)  # its alphas_cumprod are float32
