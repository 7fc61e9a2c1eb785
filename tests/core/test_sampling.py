"""The contract of `sample`: calls, callbacks, late starts, masks, shapes, dtypes, no host reads."""

import numpy as np
import pytest
import torch
from problems import PROBLEMS
from torch.utils._python_dispatch import TorchDispatchMode

from s4s_core.classical import classical_table
from s4s_core.errors import ModelError, TableError
from s4s_core.names import SOLVERS
from s4s_core.sampling import Cursor, advance, call_vectors, compiled, evaluate, run, sample
from s4s_core.slicing import from_node

SINGLE_STEP = {"dpm-solver": 2, "heun": 2}


class Recorder:
    """A denoiser that keeps what it was called with and what it returned."""

    def __init__(self, denoise):
        self.denoise, self.points, self.sigmas, self.outputs = denoise, [], [], []

    def __call__(self, x, sigma, guidance=None):
        self.points.append(x)
        self.sigmas.append(sigma)
        self.outputs.append(self.denoise(x, sigma))
        return self.outputs[-1]


def half(x, sigma, guidance=None):
    """A null model: no host reads, any shape, any dtype."""
    return x * 0.5


def nodes_of(space, n, ending=None):
    nodes = PROBLEMS[space].nodes(n)
    if ending is not None:
        nodes[-1] = ending
    return nodes


def setup(name="exp-lagrange", space="ve", n=4, **options):
    """(problem, table, recorder) of a short run."""
    problem = PROBLEMS[space]
    table = classical_table(name, nodes_of(space, n), space=space, **options)
    return problem, table, Recorder(problem.model.denoise)


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("ending", [None, 0.0])
@pytest.mark.parametrize("name", SOLVERS)
def test_nfe_is_the_number_of_model_calls(space, ending, name):
    table = classical_table(name, nodes_of(space, 5, ending), space=space)
    expected = 5 * SINGLE_STEP.get(name, 1) - (name == "heun" and ending == 0)
    problem, model = PROBLEMS[space], Recorder(PROBLEMS[space].model.denoise)
    sample(model, problem.x, table)
    assert len(model.sigmas) == table.nfe == expected
    for seen, expected in zip(model.sigmas, table.call_sigmas, strict=True):
        assert seen.tolist() == [expected] * len(problem.x)


def test_runs_are_bitwise_repeatable():
    for name in SOLVERS:
        problem, table, model = setup(name)
        before = problem.x.clone()
        first, second = (sample(model, before, table) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(before, problem.x), "the input was changed in place"


def test_the_callback_sees_every_call_and_can_stop_the_run():
    problem, table, model = setup("dpm-solver", order=3)
    seen, cond = [], object()
    sample(
        lambda x, sigma, c: model(x, sigma if c is cond else None),
        problem.x,
        table,
        cond,
        callback=seen.append,
    )
    assert [(p.call, p.nfe) for p in seen] == [(i, 12) for i in range(12)]
    for i, progress in enumerate(seen):
        assert torch.equal(progress.x, model.points[i])
        assert torch.equal(progress.denoised, model.outputs[i])
        assert torch.equal(progress.sigma, model.sigmas[i])

    def stop(progress):
        if progress.call == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        sample(model, problem.x, table, callback=stop)
    assert len(model.sigmas) == 12 + 2


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name", ["exp-lagrange", "adams-bashforth"])
@pytest.mark.parametrize("start", [1, 2, 4])
@pytest.mark.parametrize("ending", [None, 0.0])
def test_a_late_start_is_the_classical_table_of_the_remaining_nodes(space, name, start, ending):
    nodes = nodes_of(space, 6, ending)
    late = from_node(classical_table(name, nodes, order=3, space=space), start)
    fresh = classical_table(name, nodes[start:], order=3, space=space)
    for key, array in fresh.arrays.items():
        np.testing.assert_allclose(late.arrays[key], array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SOLVERS)
def test_start_runs_the_remaining_calls(name):
    problem, table, model = setup(name, n=5)
    skipped = 2 * SINGLE_STEP.get(name, 1)
    seen = []
    x = problem.truth(table.sigmas[2:3])[0]
    out = sample(model, x, table, start=2, callback=seen.append)
    assert len(model.sigmas) == table.nfe - skipped == seen[0].nfe
    assert model.sigmas[0][0] == table.sigmas[2]
    if name != "gaussian":
        torch.testing.assert_close(out, problem.truth(table.sigmas[-1:])[0], rtol=0, atol=0.5)


def test_a_late_start_keeps_rows_that_still_have_their_history():
    _, table, model = setup("gaussian", n=6, order=3)
    b, late = table.coefficients["b"], from_node(table, 2).coefficients["b"]
    np.testing.assert_array_equal(late[2:], b[4:])
    assert not late[0, 1:].any() and not late[1, 2:].any()
    np.testing.assert_allclose(late[:2].sum(1), 1, rtol=1e-12)
    for start in (-1, 6, 9):
        with pytest.raises(TableError, match=f"cannot start at node {start}"):
            sample(model, PROBLEMS["ve"].x, table, start=start)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_late_start_of_a_predictor_corrector_refills_both_arrays(order):
    nodes = nodes_of("ve", 6)
    options = {"order": order, "space": "ve", "lower_order_final": False}
    late = from_node(classical_table("unipc-bh2", nodes, **options), 2).coefficients
    fresh = classical_table("unipc-bh2", nodes[2:], **options).coefficients
    np.testing.assert_array_equal(late["a"][order:], fresh["a"][order:])
    np.testing.assert_allclose(late["b"].sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(late["a"].sum(1), 1, rtol=1e-12)
    if order == 3:  # the full-order warm-up rows of the refill are the exponential Lagrange rule
        rule = classical_table("exp-lagrange", nodes[2:], 3, "ve").coefficients["b"]
        np.testing.assert_allclose(late["b"], rule, rtol=1e-10)


@pytest.mark.parametrize("name", ["unipc-bh2", "ipndm", "dpm-solver"])
def test_a_run_continues_exactly_from_any_cursor(name):
    """Gauss-Newton relies on this for perturbed continuations."""
    problem, table, model = setup(name, n=5)
    program, cursor = compiled(table), Cursor(problem.x, problem.x)
    whole = run(program, model, cursor)
    for call in range(program.nfe):
        seen = []
        rest = run(program, model, cursor, first=call, callback=seen.append)
        assert torch.equal(rest.point, whole.point)
        assert [p.call for p in seen] == list(range(program.nfe - call))
        cursor, _ = evaluate(program, call, cursor, model, model.sigmas[call])
        assert len(cursor.history) <= program.depth
        cursor = advance(program, call, cursor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
@pytest.mark.parametrize("denoise", [half, lambda x, sigma: x * float("nan")])
def test_keep_is_exact_where_the_mask_is_zero(dtype, kind, denoise):
    """Soft masks are ignored: hosts blend them inside their model calls already."""
    _, table, _ = setup()
    x, original = torch.randn(2, 4, 8, 8).to(dtype), torch.randn(2, 4, 8, 8).to(dtype)
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 1
    mask[..., 0] = 0.25 if kind.is_floating_point else 1
    free = sample(denoise, x, table)
    out = sample(denoise, x, table, keep=(mask.to(kind), original))
    assert out.dtype == dtype
    assert torch.equal(out[..., 4:], original[..., 4:])
    torch.testing.assert_close(out[..., :4], free[..., :4], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(3,), (2, 7), (2, 4, 8, 8), (1, 16, 3, 8, 8)])
@pytest.mark.parametrize("name", ["ipndm", "unipc-bh2", "dpm-solver"])
def test_any_shape(shape, name):
    """Scalars, vectors, images and video latents give the same numbers."""
    _, table, _ = setup(name)
    x, model = torch.randn(shape, dtype=torch.float64), Recorder(half)
    out = sample(model, x, table)
    assert {(p.shape, s.shape) for p, s in zip(model.points, model.sigmas, strict=True)} == {
        (x.shape, x.shape[:1])
    }
    flat = sample(half, x.reshape(shape[0], -1), table)
    assert torch.equal(out.reshape(flat.shape), flat)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype):
    """The model gets x in its own dtype; sigma and the state are float32 or better."""
    problem, table, _ = setup("dpmpp", n=8)
    model = Recorder(lambda x, sigma: problem.model.denoise(x.double(), sigma.double()).to(dtype))
    out = sample(model, problem.x.to(dtype), table)
    work = torch.promote_types(dtype, torch.float32)
    assert out.dtype == dtype
    assert {x.dtype for x in model.points} == {dtype}
    assert {s.dtype for s in model.sigmas} == {work}
    exact = sample(problem.model.denoise, problem.x.to(dtype).double(), table)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda x: x[:, :1], r"shape \(2, 1\) for an input of shape \(2, 3\)"),
        (lambda x: x.numpy(), "a ndarray"),
        (lambda x: x.long(), "a tensor of torch.int64"),
        (lambda x: x.to_sparse(), "a tensor of the layout torch.sparse_coo"),
        (lambda x: torch.nested.nested_tensor(list(x)), "a nested tensor"),
    ],
)
def test_a_wrong_answer_is_a_model_error(answer, message):
    """test_extremes has more of them."""
    _, table, _ = setup()
    with pytest.raises(ModelError, match=message):
        sample(lambda x, sigma: answer(x), torch.randn(2, 3), table)


READS = {"_local_scalar_dense", "item", "equal", "nonzero"}


class NoReads(TorchDispatchMode):
    """Fails if the host reads a tensor's value; counts copies between dtypes or devices."""

    copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func._opname not in READS, f"{func} reads a device tensor in the loop"
        self.copies += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("space", PROBLEMS)
@pytest.mark.parametrize("name", SOLVERS)
def test_the_loop_reads_nothing_back(space, name):
    """Checked by intercepting reads, and with tensors that have no values (meta)."""
    _, table, _ = setup(name, space, n=6)
    program, x = compiled(table), torch.randn(2, 4, dtype=torch.float32)
    with NoReads() as mode:
        run(program, half, Cursor(x, x), callback=lambda progress: None)
    assert mode.copies == 1, "only the sigmas are copied, once"
    out = sample(half, x.to("meta"), table, callback=lambda progress: None)
    assert out.device.type == "meta" and out.shape == x.shape


def test_the_read_detector_detects():
    _, table, _ = setup()
    program, x = compiled(table), torch.randn(2, 4)

    def peeking(x, sigma, guidance=None):
        return x * float(sigma[0])

    with pytest.raises(AssertionError, match="reads a device tensor"), NoReads():
        run(program, peeking, Cursor(x, x))
    with pytest.raises(RuntimeError):
        sample(peeking, x.to("meta"), table)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_call_vectors(dtype):
    """[nfe, batch], one level for all rows or one for each, never in half precision."""
    _, table, _ = setup()
    program, x = compiled(table), torch.zeros(3, 2, dtype=dtype)
    levels = torch.tensor(table.call_sigmas)
    per_row = torch.stack([levels, 2 * levels, 3 * levels])
    work = torch.promote_types(dtype, torch.float32)
    assert torch.equal(call_vectors(program.sigmas, x), levels.to(work)[:, None].expand(-1, 3))
    assert torch.equal(call_vectors(per_row, x), per_row.T.to(work))
    assert compiled(setup()[1]) is program, "equal tables are lowered once"
