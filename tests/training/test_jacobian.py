"""Finite-difference columns: against autograd, what they cost, and in half precision."""

import pytest
import torch
from learners import FAMILIES, Counted, changed, large, moved, small, table_of, task_of, tiny_fit
from torch.autograd.functional import jacobian as autograd_jacobian

from s4s_core import classical_table, schedule
from s4s_core.names import SPACES
from s4s_core.sampling import Cursor, run
from s4s_core.teacher import Pairs
from s4s_core.training import gauss_newton
from s4s_core.training.jacobian import Columns
from s4s_core.training.parameters import Parameters, as_multistep

CASES = [(f, s) for f in FAMILIES for s in SPACES]


def flat(x):
    return x.flatten(1)


def setup(family, space, **options):
    """(parameters, a theta off zero, two pairs in float64)."""
    model = small(space)
    parameters = Parameters.of(
        table_of(family, space), (model.sigma_min, model.sigma_max), **options
    )
    generator = torch.Generator().manual_seed(4)
    x = model.sigma_max * torch.randn(2, *model.shape, generator=generator, dtype=torch.float64)
    return parameters, moved(parameters.count), Pairs(x, None, x)


def columns_of(model, parameters, theta, pairs, step, batch=64):
    plan = Columns(parameters, theta, step)
    denoise = Counted(model.denoise)
    features, columns = plan.compute(denoise, pairs, batch, flat)
    assert denoise.calls == plan.calls() * len(pairs)
    return features, columns


def exact(model, parameters, theta, pairs):
    def through(theta):
        program = parameters.program(theta)
        return flat(run(program, model.denoise, Cursor(pairs.x, pairs.x)).point)

    return autograd_jacobian(through, theta).movedim(-1, 0)


@pytest.mark.parametrize("family, space", CASES)
def test_columns_equal_those_of_autograd(family, space):
    model = small(space)
    parameters, theta, pairs = setup(family, space)
    truth = exact(model, parameters, theta, pairs)
    features, columns = columns_of(model, parameters, theta, pairs, 1e-6)
    scale = truth.abs().amax((1, 2), keepdim=True)
    # What corrects the last node but one is scaled by A = 0 in a data-form step to sigma 0.
    assert int((scale == 0).sum()) == (3 if family == "pc" else 0)
    assert ((columns - truth).abs() <= 1e-4 * scale + 1e-8).all()
    base = run(parameters.program(theta), model.denoise, Cursor(pairs.x, pairs.x)).point
    torch.testing.assert_close(features, flat(base), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family, space", CASES)
def test_the_batch_size_changes_nothing(family, space):
    model = small(space)
    parameters, theta, pairs = setup(family, space)
    one, few, many = (
        columns_of(model, parameters, theta, pairs, 1e-3, batch=b)[1] for b in (1, 5, 1000)
    )
    torch.testing.assert_close(one, many, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(few, many, rtol=1e-9, atol=1e-9)


def test_no_batch_exceeds_the_given_size():
    parameters, theta, pairs = setup("lms", "ve")
    sizes = []

    def denoise(x, sigma, guidance, rows):
        assert len(rows) == len(x) == len(sigma)
        sizes.append(len(x))
        return small().denoise(x, sigma)

    Columns(parameters, theta, 1e-3).compute(denoise, pairs, 6, flat)
    assert max(sizes) == 6


def test_what_columns_cost_for_lms_3_at_5_calls():
    """12 coefficients cost 19 calls per sample; those of the last step cost none."""
    model = small()
    table = classical_table("ipndm", schedule("edm", 5, model), 3, model)
    limits = model.sigma_min, model.sigma_max

    def calls(**options):
        parameters = Parameters.of(table, limits, **options)
        theta = torch.zeros(parameters.count, dtype=torch.float64)
        return parameters.count, Columns(parameters, theta, 1e-3).calls()

    assert calls(times=False) == (12, 5 + 19)
    # A node of a noise-form table moves with its call: it enters in the step that ends there.
    assert calls(coefficients=False) == (4, 5 + 4 + 3 + 2 + 1)


def test_a_call_at_the_end_of_the_range_is_moved_the_other_way():
    """The second call stands at the model's sigma_max: moving it up changes nothing."""
    _, _, pairs = setup("lms", "flow")
    model, table = small("flow"), table_of("pc", "flow")
    sigma = float(table.sigmas[1])
    parameters = Parameters.of(as_multistep(table), (model.sigma_min, sigma))
    theta = torch.zeros(parameters.count, dtype=torch.float64)
    own = parameters.count - len(parameters.calls)
    plan = Columns(parameters, theta, -1e-5)
    assert [group.offset for group, members in plan.groups.items() if own in members] == [1e-5]
    free = Parameters.of(as_multistep(table), (model.sigma_min, model.sigma_max))
    truth = exact(model, free, theta, pairs)[own]
    found = plan.compute(lambda x, s, _, rows: model.denoise(x, s), pairs, 64, flat)[1][own]
    torch.testing.assert_close(found, truth, rtol=1e-2, atol=1e-3 * float(truth.abs().max()))


def test_rows_say_which_pair_a_perturbed_sample_belongs_to():
    model = small()
    parameters, theta, pairs = setup("lms", "ve")

    def denoise(x, sigma, guidance, rows):
        return model.denoise(x, sigma) * (1 + rows.reshape(-1, 1) / 10)

    _, together = Columns(parameters, theta, 1e-3).compute(denoise, pairs, 1000, flat)
    for row in range(2):

        def alone(x, sigma, guidance, rows, row=row):
            return denoise(x, sigma, guidance, rows + row)

        one = Columns(parameters, theta, 1e-3).compute(alone, pairs[row : row + 1], 1000, flat)[1]
        torch.testing.assert_close(one[:, 0], together[:, row], rtol=1e-9, atol=1e-9)


# --- models in half precision


def rounding(model, dtype):
    """A model whose outputs are rounded as those of a half-precision network."""
    return changed(model, denoise=lambda x, s: model.denoise(x, s).to(dtype).to(x.dtype))


def test_the_step_grows_with_the_models_rounding():
    steps = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        model = rounding(large(), dtype)
        task = task_of(model)
        parameters = Parameters.of(table_of("lms"), (model.sigma_min, model.sigma_max))
        theta = torch.zeros(parameters.count, dtype=torch.float64)
        steps.append(gauss_newton.difference_step(task, parameters, theta))
    low, high = gauss_newton.STEP_LIMITS
    assert low <= steps[0] < 2 * low and 2 * steps[0] < steps[1] < steps[2] <= high


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_can_be_trained_on(dtype):
    model = rounding(large(), dtype)
    result = tiny_fit(model, 5, samples=24, validation=16, held_out=16, budget=8000)
    scores = result.scores["5"]
    assert scores["rmse"] < 0.7 * scores["initial"], scores
