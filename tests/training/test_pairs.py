"""Teachers, conditions, and the cache of teacher results."""

import pytest
import torch
from learners import ALL_METHODS, changed, message_of, small, tiny_fit

from s4s_core import classical_table, schedule
from s4s_core.errors import ModelError
from s4s_core.sampling import sample
from s4s_core.solver_file import dump_solver
from s4s_core.teacher import default_teacher, draw_pairs
from s4s_core.training.fit import _teacher_facts


def test_a_teacher_may_be_a_function():
    model, seen = small(), []

    def teacher(x, cond):
        seen.append(len(x))
        assert not torch.is_grad_enabled()
        return torch.zeros_like(x)

    teacher.nfe, teacher.name = 7, "zeros"
    result = tiny_fit(model, teacher=teacher)
    assert sum(seen) == 20 and result.pack.metadata["teacher"] == {"nfe": 7, "name": "zeros"}
    assert result.scores["4"]["rmse"] < result.scores["4"]["initial"]


@pytest.mark.parametrize("space, name", [("ve", "edm"), ("flow", "uniform")])
def test_a_classical_teacher_is_named_in_the_file(space, name):
    model = small(space)
    for nfe in (1, 8, 200):
        facts = _teacher_facts(model, default_teacher(model, nfe))
        assert facts["nfe"] == nfe
        assert nfe == 1 or facts["name"] == f"unipc-bh2 3, {name}"
    half = schedule(name, 8, model)[[0, 2, 3, 5, 8]]
    assert "name" not in _teacher_facts(model, classical_table("ipndm", half, 2, space))


def test_a_teacher_keeps_no_graph():
    """A network with trainable weights: activations of 20 calls must not pile up."""
    weight, inner = torch.nn.Parameter(torch.ones(())), small()
    model = changed(inner, denoise=lambda x, s: inner.denoise(x, s) * weight)
    assert not draw_pairs(model, default_teacher(model), 4, 0).target.requires_grad


class Prompted:
    """A model that adds the number of its condition to the sample."""

    fingerprint = "prompted"

    def __init__(self):
        self.inner, self.calls = small(), 0
        for name in ("space", "sigma_min", "sigma_max", "shape", "times"):
            setattr(self, name, getattr(self.inner, name))

    def conditions(self, batch, generator):
        return torch.randint(0, 5, (batch,), generator=generator)

    def denoise(self, x, sigma, cond):
        self.calls += len(x)
        assert len(cond) == len(x) == len(sigma)
        return self.inner.denoise(x, sigma) + 0.3 * cond.reshape(-1, 1)


class Numbered:
    """Each pair has a number, and each number a point that its trajectory runs to in a nearly
    straight line: a call with the condition of another row is off that line."""

    space, sigma_min, sigma_max, shape, times = "ve", 0.002, 80.0, (64,), None

    def __init__(self):
        self.drawn, self.checked, self.noise = 0, 0, {}

    def conditions(self, batch, generator):
        self.drawn += batch
        return torch.arange(self.drawn - batch, self.drawn)

    def target(self, number):
        return torch.randn(64, generator=torch.Generator().manual_seed(number))

    def teach(self, x, cond):
        self.noise |= dict(zip(cond.tolist(), x, strict=True))
        return torch.stack([self.target(number) for number in cond.tolist()])

    def denoise(self, x, sigma, cond):
        targets = torch.stack([self.target(number) for number in cond.tolist()])
        for point, target, number in zip(x.detach(), targets, cond.tolist(), strict=True):
            if number in self.noise and (point - target).norm() > 20:
                line = self.noise[number] - target
                assert torch.cosine_similarity(point - target, line, dim=0).abs() > 0.9
                self.checked += 1
        return targets + 0.1 * torch.tanh(x)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_conditions_stay_with_their_pairs_in_training(method):
    model = Numbered()
    tiny_fit(model, 4, method, teacher=model.teach, batch=5, budget=1500)
    assert model.checked > 100


def test_pairs_keep_their_conditions():
    model = Prompted()
    teacher = default_teacher(model)
    pairs = draw_pairs(model, teacher, 12, 0, batch=5)
    alone = [sample(model.denoise, part.x, teacher, part.cond) for part in pairs.batches(1)]
    torch.testing.assert_close(pairs.target, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert len(set(pairs.cond.tolist())) > 1
    picked = pairs[torch.tensor([7, 2])]
    assert picked.cond.tolist() == [int(pairs.cond[7]), int(pairs.cond[2])]


# --- the cache


def draw(model, cache, seed=0, count=6, nfe=20):
    before = model.calls
    pairs = draw_pairs(model, default_teacher(model, nfe), count, seed, cache=cache)
    return pairs, model.calls - before


def test_teacher_results_are_cached_and_reused(tmp_path):
    model, cache = Prompted(), tmp_path / "new"
    first, calls = draw(model, cache)
    again, none = draw(model, cache)
    assert (calls, none) == (6 * 20, 0) and torch.equal(first.target, again.target)
    assert torch.equal(first.cond, again.cond) and torch.equal(first.x, again.x)
    for options in ({"seed": 1}, {"count": 7}, {"nfe": 19}):
        assert draw(model, cache, **options)[1] > 0
    other = Prompted()
    other.fingerprint = "another"
    assert draw(other, cache)[1] == 6 * 20


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_cache_is_rendered_again(tmp_path, damage):
    model = Prompted()
    first, _ = draw(model, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5] if damage is None else damage)
    again, calls = draw(model, tmp_path)
    assert calls == 6 * 20 and torch.equal(first.target, again.target)
    assert draw(model, tmp_path)[1] == 0


def test_what_must_not_be_cached(tmp_path):
    """Results of a model without identity, and results that are not finite."""
    draw_pairs(small(), default_teacher(small()), 2, 0, cache=tmp_path)
    model = Prompted()
    model.denoise = lambda x, s, c: x * float("nan")
    with pytest.raises(ModelError) as error:
        draw_pairs(model, default_teacher(model), 2, 0, cache=tmp_path)
    message_of(error)
    assert not list(tmp_path.iterdir())


def test_a_cached_run_equals_one_without(tmp_path):
    plain = dump_solver(tiny_fit(Prompted()).pack)
    for _ in range(2):
        assert dump_solver(tiny_fit(Prompted(), cache=tmp_path).pack) == plain
