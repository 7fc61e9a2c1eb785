"""Models that write into their arguments or reuse their result: the clean model's bits, or a line.

Sampling, pairs and gauss-newton give the clean result. Gradient methods refuse before any pair.
"""

from collections import defaultdict
from dataclasses import astuple

import pytest
import torch
from learners import (
    METHODS,
    SOLVER,
    changed,
    message_of,
    moved,
    pictures,
    small,
    table_of,
    task_of,
    tiny_fit,
)
from writers import FAULTS, WRITERS

from s4s_core import sample
from s4s_core.errors import TrainingError
from s4s_core.schedules.gits import gits_costs
from s4s_core.teacher import default_teacher, draw_pairs
from s4s_core.training.check import CHECK_CALLS
from s4s_core.training.gauss_newton import normal_equations
from s4s_core.training.jacobian import Columns
from s4s_core.training.parameters import Parameters

each_fault = pytest.mark.parametrize("fault", FAULTS)


def faulty(fault, model=None):
    """(the clean model, the same with a fault)."""
    model = model or small()
    return model, changed(model, denoise=FAULTS[fault](model.denoise))


@each_fault
@pytest.mark.parametrize("family", SOLVER)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype, batch", [(torch.float32, 3), (torch.float64, 1)])
def test_sampling_is_that_of_the_clean_model(fault, family, mode, dtype, batch):
    """The second run shows that nothing stays behind, such as in the cached program, whose noise
    levels are those of a single float64 sample."""
    table, (clean, model) = table_of(family, form="data"), faulty(fault)
    generator = torch.Generator().manual_seed(0)
    x = 80 * torch.randn(batch, 6, generator=generator, dtype=dtype)
    before, seen = x.clone(), ([], [])

    def run(denoise, calls):
        return sample(denoise, x, table, callback=lambda c: calls.append(c._replace(denoised=None)))

    with mode():
        want = run(clean.denoise, seen[0])
        for _ in range(2):
            seen[1].clear()
            assert torch.equal(run(model.denoise, seen[1]), want)
    assert torch.equal(x, before)
    for wanted, got in zip(*seen, strict=True):
        assert torch.equal(wanted.x, got.x) and torch.equal(wanted.sigma, got.sigma)


@each_fault
def test_pairs_and_costs_are_those_of_the_clean_model(fault):
    both = faulty(fault)
    first, second = (draw_pairs(m, default_teacher(m), 5, seed=1, batch=2) for m in both)
    assert torch.equal(first.x, second.x) and torch.equal(first.target, second.target)
    first, second = (gits_costs(m, points=5, samples=4, batch=2).matrix for m in both)
    assert torch.equal(first, second)


def test_a_teacher_that_writes_or_reuses_its_result_spoils_no_pair():
    model, result = small(), torch.zeros(2, 6)

    def teacher(x, cond):
        result.copy_(x * 0.5)
        x.zero_()
        return result

    pairs = draw_pairs(model, teacher, 6, seed=1, batch=2)
    assert torch.equal(pairs.target, pairs.x * 0.5) and bool(pairs.x.all())


@each_fault
@pytest.mark.parametrize("family", SOLVER)
def test_columns_are_those_of_the_clean_model(fault, family):
    clean, model = faulty(fault)
    table, levels = table_of(family), (clean.sigma_min, clean.sigma_max)
    parameters = Parameters.of(table, levels)
    plan = Columns(parameters, moved(parameters.count), 1e-3)
    wanted, got = (
        normal_equations(task := task_of(each), plan, task.train) for each in (clean, model)
    )
    assert all(map(torch.equal, astuple(wanted), astuple(got)))


@each_fault
@pytest.mark.parametrize("objective", ["l2", "look"])
def test_gauss_newton_learns_the_solver_of_the_clean_model(fault, objective):
    wanted, got = (tiny_fit(each, objective=objective) for each in faulty(fault, pictures()))
    assert got.pack == wanted.pack and got.scores == wanted.scores


class Prompts:
    """Conditions that are no tensor."""

    def __init__(self, levels):
        self.levels = levels

    def __len__(self):
        return len(self.levels)

    def __getitem__(self, rows):
        return Prompts(self.levels[rows])


KINDS = {
    "tensor": (lambda levels: levels, lambda cond: cond),
    "array": (lambda levels: levels.numpy(), lambda cond: torch.from_numpy(cond)),
    "object": (Prompts, lambda cond: cond.levels),
}


def prompted(kind, reuse=False, write=False):
    """A model with conditions of a kind, drawn into one buffer or written into by its calls."""
    model, buffer = small(), torch.zeros(4096)
    make, levels_of = KINDS[kind]

    def conditions(batch, generator):
        levels = torch.rand(batch, generator=generator)
        return make(buffer[:batch].copy_(levels) if reuse else levels)

    def denoise(x, sigma, cond):
        levels = levels_of(cond)
        result = model.denoise(x, sigma) * (1 + levels[:, None].to(x))
        if write:
            levels.mul_(0.5)
        return result

    return changed(model, conditions=conditions, denoise=denoise)


@pytest.mark.parametrize("method", ["gauss-newton", "joint"])
@pytest.mark.parametrize("fault", ["reuse", "write"])
@pytest.mark.parametrize("kind", KINDS)
def test_conditions_that_are_reused_or_written_into_spoil_nothing(kind, fault, method):
    clean, dirty = (tiny_fit(prompted(kind, **f), method=method) for f in ({}, {fault: True}))
    assert dirty.pack == clean.pack and dirty.scores == clean.scores


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_conditions_of_a_sample_stay_what_they_are(kind):
    make, levels_of = KINDS[kind]
    table, cond = table_of("lms"), make(torch.tensor([0.1, 0.2]))
    clean, dirty = (
        sample(prompted(kind, write=write).denoise, torch.ones(2, 6), table, cond)
        for write in (False, True)
    )
    assert torch.equal(clean, dirty)
    assert torch.equal(levels_of(cond), torch.tensor([0.1, 0.2]))


class ByName(dict):
    """Conditions by name, of which indices select rows; its length is the number of names."""

    def __getitem__(self, rows):
        return ByName({name: dict.__getitem__(self, name)[rows] for name in self})


@pytest.mark.parametrize(
    "cond",
    [
        *(["a"], ("a", "b"), "ab", [["embedding", {"pooled": 1}]], defaultdict(list, a=[1])),
        *(object(), ByName(a=torch.ones(2), b=torch.ones(2), c=torch.ones(2))),
    ],
    ids=lambda cond: type(cond).__name__,
)
def test_a_sample_passes_conditions_of_any_other_kind_as_they_are(cond):
    told, before = [], repr(cond)
    denoise = small().denoise

    def noted(x, sigma, cond):
        told.append(cond)
        return denoise(x, sigma)

    sample(noted, torch.ones(2, 6), table_of("lms"), cond)
    assert told and all(each is cond for each in told) and repr(cond) == before


def test_conditions_by_name_are_trained_with():
    model = small()

    def conditions(batch, generator):
        levels = torch.rand(batch, generator=generator)
        return ByName(a=levels, b=levels, c=levels)

    def denoise(x, sigma, cond):
        level = dict.__getitem__(cond, "a")
        assert len(level) == len(x)
        return model.denoise(x, sigma) * (1 + level[:, None])

    assert tiny_fit(changed(model, conditions=conditions, denoise=denoise)).pack


# --- gradient methods


def by_out(denoise):
    """A model that writes its result with `out=`."""
    return lambda x, sigma: torch.mul(denoise(x, sigma), 1, out=torch.empty_like(x))


def without_gradient(denoise):
    return torch.no_grad()(denoise)


def with_gradients_of_its_weights_only(denoise):
    weight = torch.ones((), requires_grad=True)
    return lambda x, sigma: weight * denoise(x.detach(), sigma.detach())


def spoiling_what_backward_needs(denoise):
    def spoiling(x, sigma):
        result = denoise(x, sigma)
        square = result * result
        result.add_(1)
        return square

    return spoiling


REFUSED = {
    **dict.fromkeys(WRITERS, "it writes into its arguments"),
    "result": "it writes into its last result",
    "out": "out=",
    "no_grad": "its results have no gradient",
    "detach": "its results have no gradient",
    "backward": "modified by an inplace operation",
}
OTHERS = {
    "out": by_out,
    "no_grad": without_gradient,
    "detach": with_gradients_of_its_weights_only,
    "backward": spoiling_what_backward_needs,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", REFUSED)
def test_gradient_methods_refuse_in_a_line_before_any_pair(method, fault):
    model, calls = small(), []

    def counted(x, sigma):
        calls.append(len(x))
        return model.denoise(x, sigma)

    denoise = (FAULTS | OTHERS)[fault](counted)
    with pytest.raises(TrainingError, match=f"back-propagation: .*{REFUSED[fault]}") as error:
        tiny_fit(changed(model, denoise=denoise), method=method)
    assert "gauss-newton" in message_of(error) and sum(calls) <= CHECK_CALLS


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_fails_later_is_explained(method):
    """Torch's own error, in the first step of training."""
    model, calls = small(), []

    def denoise(x, sigma):
        calls.append(len(x))
        result = model.denoise(x, sigma)
        return (
            result
            if sum(calls) <= CHECK_CALLS
            else spoiling_what_backward_needs(model.denoise)(x, sigma)
        )

    with pytest.raises(TrainingError, match="back-propagation") as error:
        tiny_fit(changed(model, denoise=denoise), method=method, rematerialise=False)
    message_of(error)
