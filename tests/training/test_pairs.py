"""Teachers, conditions, and the cache of teacher results."""

import os
from functools import partial

import pytest
import torch
from learners import ALL_METHODS, changed, guided, message_of, small, tiny_fit
from safetensors.torch import load, save

from s4s_core import classical_table, schedule
from s4s_core.errors import ModelError, TrainingError
from s4s_core.sampling import sample
from s4s_core.solver_file import dump_solver
from s4s_core.teacher import (
    TEACHERS,
    choice_calls,
    choose_teacher,
    default_teacher,
    draw_noise,
    draw_pairs,
)
from s4s_core.training.check import CHECK_CALLS
from s4s_core.training.facts import teacher_facts
from s4s_core.training.task import CHOICE, TEACHER, Meter


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
    for nfe in (8, 200):
        facts = teacher_facts(model, default_teacher(model, nfe))
        assert facts["nfe"] == nfe and facts["name"] == f"unipc-bh2 3, {name}"
    half = schedule(name, 8, model)[[0, 2, 3, 5, 8]]
    assert "name" not in teacher_facts(model, classical_table("ipndm", half, 2, space))


# --- which classical solver teaches


@pytest.mark.parametrize("cfg", [2.0, 7.0])
def test_the_chosen_teacher_is_nearest_to_the_exact_solution(cfg):
    """The third order is at CFG 2, and by far not at CFG 7."""
    model = guided(cfg=cfg)
    meter = Meter(model.denoise)
    x, _ = draw_noise(model, 32, 5)
    exact = sample(model.denoise, x, default_teacher(model, 400, solver=("unipc-bh2", 2)))

    def error(solver):
        result = sample(model.denoise, x, default_teacher(model, solver=solver))
        return float((result - exact).square().mean())

    chosen = choose_teacher(model, denoise=meter)
    assert meter.calls == choice_calls() > 0
    assert chosen == min(TEACHERS, key=error) == ("unipc-bh2", 3 if cfg == 2 else 2)
    for batch in (1, 3):
        assert choose_teacher(model, batch=batch) == chosen


@pytest.mark.parametrize("winner", TEACHERS)
def test_results_that_are_not_finite_lose(monkeypatch, winner):
    """Of two others, one gives NaN at once, the other when its calls are doubled."""
    one, other = (solver for solver in TEACHERS if solver != winner)

    def tables(model, nfe, ending, solver):
        table = default_teacher(model, nfe, ending)
        bad = solver == one or (solver == other and nfe == 40)
        return table.replace(b=table.coefficients["b"] * (1e30 if bad else 1))

    monkeypatch.setattr("s4s_core.teacher.default_teacher", tables)
    assert choose_teacher(small()) == winner


def test_the_choice_is_made_once_saved_and_named(tmp_path, monkeypatch):
    model, events, path = guided(cfg=7.0), [], tmp_path / "run.safetensors"

    def stop(event):
        events.append(event)
        if event.phase not in (CHOICE, TEACHER):
            raise KeyboardInterrupt

    run = partial(tiny_fit, model, 4, "gauss-newton", True, budget=1000)
    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(state=path, callback=stop)
    expected = default_teacher(model, solver=("unipc-bh2", 2))
    drawn = [event for event in events if event.phase == TEACHER]
    assert drawn[0].table == whole.teacher == expected
    assert drawn[0].calls == CHECK_CALLS + choice_calls()
    assert whole.pack.metadata["teacher"]["name"] == "unipc-bh2 2, edm"
    monkeypatch.setattr("s4s_core.training.fit.choose_teacher", None)
    resumed = run(state=path)
    assert resumed.teacher == expected and resumed.calls == whole.calls
    assert dump_solver(resumed.pack) == dump_solver(whole.pack)
    none, ten = run(state=path, teacher=None), {"teacher": 10, "state": path}
    assert dump_solver(none.pack) == dump_solver(whole.pack)
    with pytest.raises(TrainingError, match="other settings"):
        run(**ten)


def prompted(fingerprint="prompted"):
    """A model that adds the number of its condition to the sample, and counts its calls."""
    inner = small()

    def denoise(x, sigma, cond):
        model.calls += len(x)
        assert len(cond) == len(x) == len(sigma)
        return inner.denoise(x, sigma) + 0.3 * cond.reshape(-1, 1)

    def conditions(batch, generator):
        return torch.randint(0, 5, (batch,), generator=generator)

    own = {"denoise": denoise, "conditions": conditions, "fingerprint": fingerprint, "calls": 0}
    model = changed(inner, **own)
    return model


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
    model = prompted()
    teacher = default_teacher(model)
    pairs = draw_pairs(model, teacher, 12, 0, batch=5)
    alone = [sample(model.denoise, part.x, teacher, part.cond) for part in pairs.batches(1)]
    torch.testing.assert_close(pairs.target, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert len(set(pairs.cond.tolist())) > 1
    assert pairs[torch.tensor([7, 2])].cond.tolist() == pairs.cond[[7, 2]].tolist()


# --- the cache


def draw(model, cache, seed=0, count=6, nfe=20):
    before = model.calls
    pairs = draw_pairs(model, default_teacher(model, nfe), count, seed, cache=cache)
    return pairs, model.calls - before


def with_one_bit_flipped(data):
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def with_another_target(make):
    """Return what replaces a file by one without checksum, as version 0.1 wrote them."""
    return lambda data: save({"target": make(load(data)["target"])})


DAMAGES = [
    *(lambda data: b"", lambda data: b"bad", lambda data: data[:-5], with_one_bit_flipped),
    with_another_target(lambda t: torch.zeros(t.shape, dtype=torch.int64)),
    with_another_target(lambda t: t[..., :-1].contiguous()),
    with_another_target(lambda t: t.sum()),
    with_another_target(lambda t: t * float("nan")),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_teacher_results_are_cached_and_reused_unless_damaged(tmp_path, damage):
    model, cache = prompted(), tmp_path / "new"
    first, calls = draw(model, cache)
    again, none = draw(model, cache)
    assert (calls, none) == (6 * 20, 0) and torch.equal(first.target, again.target)
    assert torch.equal(first.cond, again.cond) and torch.equal(first.x, again.x)
    (file,) = cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    again, calls = draw(model, cache)
    assert calls == 6 * 20 and torch.equal(first.target, again.target)
    assert draw(model, cache)[1] == 0
    file.write_bytes(save(load(file.read_bytes())))
    assert draw(model, cache)[1] == 0, "version 0.1 wrote no checksum"
    for options in ({"seed": 1}, {"count": 7}, {"nfe": 19}):
        assert draw(model, cache, **options)[1] > 0
    assert draw(prompted("another"), cache)[1] == 6 * 20


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such entries")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_place_that_takes_no_results_is_named(tmp_path, make):
    """And nothing waits for it."""
    model = prompted()
    draw(model, tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    make(file)
    with pytest.raises(TrainingError, match="Could not save the teacher's results to") as error:
        draw(model, tmp_path)
    message_of(error)


def test_what_must_not_be_cached(tmp_path):
    """Results of a model without identity, and results that are not finite."""
    draw_pairs(small(), default_teacher(small()), 2, 0, cache=tmp_path)
    model = prompted()
    model.denoise = lambda x, s, c: x * float("nan")
    with pytest.raises(ModelError) as error:
        draw_pairs(model, default_teacher(model), 2, 0, cache=tmp_path)
    message_of(error)
    assert not list(tmp_path.iterdir())


def test_a_cached_run_equals_one_without(tmp_path):
    plain = dump_solver(tiny_fit(prompted()).pack)
    for _ in range(2):
        assert dump_solver(tiny_fit(prompted(), cache=tmp_path).pack) == plain
