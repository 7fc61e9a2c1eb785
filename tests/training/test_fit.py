"""`fit` as a whole: packs, errors, reproducibility, teachers, caches, and resumed runs."""

import inspect
import json
import math

import numpy as np
import pytest
import torch
from learners import (
    METHODS,
    TINY,
    Counted,
    changed,
    one_sentence,
    small,
    table_of,
    task_of,
    tiny_fit,
)

from s4s_core import classical_table, load_solver, save_solver, schedule
from s4s_core.app.description import describe
from s4s_core.atomic import SUFFIX, temporary_stem
from s4s_core.candidates import candidates, ranked_starts, squared_errors
from s4s_core.errors import ModelError, S4SError, TrainingCancelled, TrainingError
from s4s_core.objectives import L2
from s4s_core.sampling import sample
from s4s_core.solver_file import dump_solver
from s4s_core.teacher import default_teacher, draw_pairs
from s4s_core.training import gauss_newton
from s4s_core.training.fit import Run, Settings, _teacher_facts, fit
from s4s_core.training.state import load_state, save_state
from s4s_core.training.task import Meter

ALL_METHODS = ("gauss-newton", *METHODS)
SHORT = {"budget": 1000, "samples": 6, "validation": 4, "held_out": 4}


# --- what comes back


def test_several_nfes_give_one_pack(tmp_path):
    result = tiny_fit(small(), (6, 4, 4), init="auto")
    assert result.pack.nfes == (4, 6) and set(result.scores) == {"4", "6"}
    save_solver(tmp_path / "a.safetensors", result.pack)
    loaded = load_solver(tmp_path / "a.safetensors")
    assert loaded.digest == result.pack.digest and loaded[6] == result.pack[6]
    about = json.loads(json.dumps(dict(loaded.metadata)))
    assert about["scores"] == result.scores and about["training"]["calls"] == result.calls
    assert about["teacher"]["nfe"] == 20 and about["teacher"]["name"] == "unipc-bh2 3, edm"
    assert about["training"]["method"] == "gauss-newton"
    for scores in result.scores.values():
        assert scores["rmse"] <= scores["initial"] and scores["classical"] <= scores["initial"]
    assert set(result.history) == {4, 6} and result.log == []


@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_same_seed_gives_the_same_bytes(method):
    first, again = (dump_solver(tiny_fit(small(), 4, method, **SHORT).pack) for _ in range(2))
    assert first == again
    assert dump_solver(tiny_fit(small(), 4, method, seed=1, **SHORT).pack) != first


def test_the_batch_size_does_not_change_the_result():
    assert len({tiny_fit(small(), batch=b, budget=1500).pack[4] for b in (32, 3, 1)}) == 1


@pytest.mark.parametrize("method", ALL_METHODS)
def test_events_tell_the_course_of_a_run(method):
    events = []
    result = tiny_fit(small(), 4, method, True, callback=events.append, **SHORT)
    drawn = [event for event in events if event.phase == "teacher"]
    events = events[len(drawn) :]
    assert [event.step for event in drawn][-1] == drawn[-1].total
    assert all(event.step <= event.total for event in events)
    assert events and all(event.nfe == 4 and event.table.nfe == 4 for event in events)
    calls = [event.calls for event in events]
    assert calls == sorted(calls) and calls[-1] <= result.calls
    best = [event.validation for event in events]
    assert best == sorted(best, reverse=True)
    assert all(np.isfinite(event.loss) for event in events)
    assert all(event.eta is None or event.eta >= 0 for event in events)
    assert events[-1].eta is not None and events[-1].done > 0


# --- what is refused


@pytest.mark.parametrize(
    "options, text",
    [
        ({"method": "newton"}, "choose one of gauss-newton, s4s"),
        ({"speed": 3}, "no training option 'speed'"),
        ({"init": "ipndm"}, "solver:order:schedule"),
        ({"init": "nothing:3:edm"}, "Unknown solver 'nothing'"),
        ({"init": "ipndm:3:nothing"}, "Unknown schedule 'nothing'"),
        ({"init": "nothing:3:gits"}, "Unknown solver 'nothing'"),
        ({"objective": "lpips-alex"}, "give fit a `decode`"),
        ({"init": "dpm-solver:3:edm"}, "no table of 4 calls"),
        ({"start": table_of("lms", nfe=6)}, "has 6 calls, 4 are asked for"),
        ({"nfe": 0}, "'nfes' needs a whole number above 0"),
        ({"nfe": ()}, "'nfes' needs a whole number above 0"),
        ({"batch": 0}, "'batch' needs a whole number above 0"),
        ({"budget": 0}, "'budget' needs a whole number above 0"),
        ({"samples": 0}, "'samples' needs a whole number above 0"),
        ({"coefficients": False, "times": False}, "nothing to learn"),
        ({"method": "joint", "domain": "days"}, "Unknown time domain"),
        ({"follow": "ipndm:3"}, "for the methods by gradient"),
        ({"method": "joint", "follow": "dpmpp:3"}, "such as dpmpp:3:edm"),
        ({"method": "joint", "follow": "ipndm:3", "start": table_of("lms")}, "from one by name"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(options, text):
    with pytest.raises(S4SError, match=text) as error:
        tiny_fit(small(), **options)
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


def test_every_setting_is_an_option():
    assert set(TINY) < set(Settings.__dataclass_fields__)
    with pytest.raises(TrainingError, match="no training option"):
        fit(small(), nonsense=1)


def test_defaults_of_the_settings_are_those_of_fit():
    given, settings = inspect.signature(fit).parameters, Settings()
    assert settings.nfes == (given["nfe"].default,)
    for name in ("method", "seed", "budget"):
        assert getattr(settings, name) == given[name].default


def test_a_budget_may_be_spent_to_the_last_call():
    task = task_of(small(), budget=100)
    task.first_calls, task.meter.calls = 10, 70
    assert not task.spent_after(40) and task.spent_after(41)


# --- teachers


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
        facts = _teacher_facts(model, default_teacher(model, nfe))
        assert facts["nfe"] == nfe and facts["name"] == f"unipc-bh2 3, {name}"
    half = schedule(name, 8, model)[[0, 2, 3, 5, 8]]
    assert "name" not in _teacher_facts(model, classical_table("ipndm", half, 2, space))
    _teacher_facts(model, default_teacher(model, 1))


def test_a_teacher_keeps_no_graph():
    """A network with trainable weights: 20 calls of activations must not pile up."""
    weight, inner = torch.nn.Parameter(torch.ones(())), small()
    model = changed(inner, denoise=lambda x, s: inner.denoise(x, s) * weight)
    assert not draw_pairs(model, default_teacher(model), 4, 0).target.requires_grad


class Prompted:
    """A model whose samples carry the number of their condition, and which checks it."""

    fingerprint = "prompted"

    def __init__(self):
        self.inner = small()
        self.calls = 0
        for name in ("space", "sigma_min", "sigma_max", "shape", "times"):
            setattr(self, name, getattr(self.inner, name))

    def conditions(self, batch, generator):
        return torch.randint(0, 5, (batch,), generator=generator)

    def denoise(self, x, sigma, cond):
        self.calls += len(x)
        assert len(cond) == len(x) == len(sigma)
        return self.inner.denoise(x, sigma) + 0.3 * cond.reshape(-1, 1)


class Numbered:
    """Each pair has a number and each number a point that its trajectory runs straight to, nearly:
    whoever calls with a condition of another row is off that line."""

    space, sigma_min, sigma_max, shape, times = "ve", 0.002, 80.0, (64,), None

    def __init__(self):
        self.drawn, self.checked, self.starts = 0, 0, {}

    def conditions(self, batch, generator):
        self.drawn += batch
        return torch.arange(self.drawn - batch, self.drawn)

    def goal(self, number):
        return torch.randn(64, generator=torch.Generator().manual_seed(number))

    def teach(self, x, cond):
        for start, number in zip(x, cond.tolist(), strict=True):
            self.starts[number] = start
        return torch.stack([self.goal(number) for number in cond.tolist()])

    def denoise(self, x, sigma, cond):
        goals = torch.stack([self.goal(number) for number in cond.tolist()])
        for point, goal, number in zip(x.detach(), goals, cond.tolist(), strict=True):
            if number in self.starts and (point - goal).norm() > 20:
                line = self.starts[number] - goal
                assert torch.cosine_similarity(point - goal, line, dim=0).abs() > 0.9
                self.checked += 1
        return goals + 0.1 * torch.tanh(x)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_conditions_belong_to_their_pairs(method):
    model = Numbered()
    tiny_fit(model, 4, method, teacher=model.teach, batch=5, budget=1500)
    assert model.checked > 100


def test_pairs_keep_their_conditions():
    model = Prompted()
    pairs = draw_pairs(model, default_teacher(model), 12, 0, batch=5)
    alone = [draw_part(model, pairs, row) for row in range(12)]
    torch.testing.assert_close(pairs.target, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert len(set(pairs.cond.tolist())) > 1
    picked = pairs[torch.tensor([7, 2])]
    assert picked.cond.tolist() == [int(pairs.cond[7]), int(pairs.cond[2])]


def draw_part(model, pairs, row):
    part = pairs[row : row + 1]
    return sample(model.denoise, part.x, default_teacher(model), part.cond)


# --- the cache of teacher results


def draw(model, cache, seed=0, count=6, nfe=20):
    before = model.calls
    pairs = draw_pairs(model, default_teacher(model, nfe), count, seed, cache=cache)
    return pairs, model.calls - before


def test_teacher_results_are_kept_and_reused(tmp_path):
    model = Prompted()
    first, calls = draw(model, tmp_path / "new")
    again, none = draw(model, tmp_path / "new")
    assert (calls, none) == (6 * 20, 0) and torch.equal(first.target, again.target)
    assert torch.equal(first.cond, again.cond) and torch.equal(first.x, again.x)
    for options in ({"seed": 1}, {"count": 7}, {"nfe": 19}):
        assert draw(model, tmp_path / "new", **options)[1] > 0
    other = Prompted()
    other.fingerprint = "another"
    assert draw(other, tmp_path / "new")[1] == 6 * 20


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    model = Prompted()
    first, _ = draw(model, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5] if damage is None else damage)
    again, calls = draw(model, tmp_path)
    assert calls == 6 * 20 and torch.equal(first.target, again.target)
    assert draw(model, tmp_path)[1] == 0


def test_models_without_identity_are_not_cached(tmp_path):
    draw_pairs(small(), default_teacher(small()), 2, 0, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_results_that_are_not_finite_are_not_cached(tmp_path):
    model = Prompted()
    model.denoise = lambda x, s, c: x * float("nan")
    with pytest.raises(ModelError) as error:
        draw_pairs(model, default_teacher(model), 2, 0, cache=tmp_path)
    one_sentence(error)
    assert not list(tmp_path.iterdir())


def test_a_cached_run_equals_one_without(tmp_path):
    plain = dump_solver(tiny_fit(Prompted()).pack)
    for _ in range(2):
        assert dump_solver(tiny_fit(Prompted(), cache=tmp_path).pack) == plain


# --- resumed runs


class Stop(Exception):
    pass


class After:
    """True from the k-th question on."""

    def __init__(self, k):
        self.left = k

    def __call__(self):
        self.left -= 1
        return self.left < 0


def outcome(result):
    return dump_solver(result.pack), result.calls, result.history, result.log, result.scores


NFES = (3, 4)


def short_fit(method, **options):
    init = "auto" if method == "gauss-newton" else "ipndm:3:edm"  # auto has several starts
    return tiny_fit(small(), NFES, method, init=init, **SHORT, **options)


@pytest.fixture(scope="module")
def whole():
    """What each method gives when it is never stopped, and how often it asked to be."""
    done = {}

    def get(method):
        if method not in done:
            asked = After(10**9)
            result = short_fit(method, cancelled=asked)
            done[method] = outcome(result), 10**9 - asked.left
        return done[method]

    return get


@pytest.mark.parametrize("method", ALL_METHODS)
def test_stopped_after_every_event(tmp_path, whole, method):
    heard = {nfe: [] for nfe in NFES}

    def stop(event):
        heard[event.nfe].append(event.validation)
        raise Stop

    path, stops = tmp_path / "run.safetensors", 0
    while True:
        try:
            result = short_fit(method, state=path, callback=stop)
            break
        except Stop:
            stops += 1
    assert stops >= 3
    assert outcome(result) == whole(method)[0]
    for best in heard.values():
        assert best == sorted(best, reverse=True), "a resumed run knows the best table of all"


def test_a_run_of_several_chunks_resumes_bit_by_bit(tmp_path):
    """More pairs than a chunk, in a number that chunks do not divide: models of all are kept."""
    options = {"samples": 20, "validation": 4, "held_out": 4, "budget": 6000, "starts": 2}
    expected = outcome(tiny_fit(small(), 5, init="auto", **options))
    path, stops = tmp_path / "run.safetensors", 0
    iterations = set()

    def stop(event):
        iterations.add(event.step)
        raise Stop

    while True:
        try:
            result = tiny_fit(small(), 5, init="auto", state=path, callback=stop, **options)
            break
        except Stop:
            stops += 1
    assert stops > 5 and max(iterations) > 3
    assert outcome(result) == expected


@pytest.mark.parametrize("share", [0.4, 0.97])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_cancelled_between_model_calls(tmp_path, whole, method, share):
    expected, asked = whole(method)
    path = tmp_path / "run.safetensors"
    with pytest.raises(TrainingCancelled) as error:
        short_fit(method, state=path, cancelled=After(int(share * asked)))
    one_sentence(error)
    assert outcome(short_fit(method, state=path)) == expected


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_a_finished_run_is_read_back_without_training(tmp_path, whole, method):
    path = tmp_path / "run.safetensors"
    short_fit(method, state=path)
    events = []
    again = short_fit(method, state=path, callback=events.append)
    assert outcome(again) == whole(method)[0] and not events


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"method": "s4s"},
        {"samples": 9},
        {"nfe": (4, 5)},
        {"start": table_of("pc")},
        {"objective": "lpips"},
        {"teacher": 19},
        {"fingerprint": "other"},
    ],
)
def test_a_state_of_another_run_is_refused(tmp_path, change):
    path, model = tmp_path / "run.safetensors", changed(small(), fingerprint="one")
    tiny_fit(model, state=path, start=table_of("lms"))
    before = path.read_bytes()
    if "fingerprint" in change:
        model, change = changed(model, **change), {}
    if "teacher" in change:
        change = {"teacher": default_teacher(model, change["teacher"])}
    if "objective" in change:
        goal = L2()
        goal.name = "other"
        change = {"objective": goal}
    with pytest.raises(TrainingError, match="other settings") as error:
        tiny_fit(model, state=path, **{"start": table_of("lms"), **change})
    assert path.name in str(error.value) and path.read_bytes() == before


def damages(data):
    """Truncations, garbage, and flipped bits all over the file."""
    yield from (b"", b"{}", data[:7], data[: len(data) // 2], data[:-1], data + b"x", data[::-1])
    for place in np.linspace(0, len(data) - 1, 25).astype(int):
        yield data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def test_a_damaged_state_is_one_sentence(tmp_path):
    path = tmp_path / "run.safetensors"
    tiny_fit(small(), 3, state=path, **SHORT)
    data = path.read_bytes()
    for damaged in damages(data):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match="remove it to start anew") as error:
            tiny_fit(small(), 3, state=path, **SHORT)
        assert "run.safetensors" in str(error.value) and "\n" not in str(error.value)


def test_states_survive_a_round_trip(tmp_path):
    state = {
        "identity": {"a": 1},
        "deep": [{"x": torch.randn(2, 3, dtype=torch.float64)}, [], {}, None, True, 0.1, "text"],
        "bytes": torch.arange(5, dtype=torch.uint8),
    }
    save_state(tmp_path / "s", state)
    back = load_state(tmp_path / "s", {"a": 1})
    assert torch.equal(back["deep"][0]["x"], state["deep"][0]["x"])
    assert torch.equal(back["bytes"], state["bytes"]) and back["bytes"].dtype == torch.uint8
    assert back["deep"][1:] == state["deep"][1:]


def test_tensors_of_a_loaded_state_are_aligned_as_new_ones(tmp_path):
    """Arithmetic on a tensor that lies askew in memory may differ in its last bits."""
    odd = {str(n): torch.randn(n, dtype=torch.float64) for n in range(1, 12)}
    save_state(tmp_path / "s", {"identity": 1, "byte": torch.ones(1, dtype=torch.uint8), **odd})
    back = load_state(tmp_path / "s", 1)
    for name, tensor in odd.items():
        assert back[name].data_ptr() % 64 == 0 and torch.equal(back[name], tensor)


def test_a_state_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "run"):
        with pytest.raises(TrainingError, match="cannot be saved") as error:
            save_state(path, {"identity": 1})
        one_sentence(error)


def test_what_a_run_killed_in_its_first_write_left_is_removed(tmp_path):
    path = tmp_path / "run.safetensors"
    orphan = tmp_path / f"{temporary_stem(path)}-0123456789abcdef{SUFFIX}"
    orphan.touch()
    tiny_fit(small(), 3, state=path, **SHORT)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]


def test_two_runs_of_one_state_are_refused(tmp_path):
    """The second one leaves the first alone; behind its end the file is free again."""
    path, errors = tmp_path / "new" / "run.safetensors", []

    def meanwhile(event):
        if not errors:
            orphan = path.parent / f"{temporary_stem(path)}-0123456789abcdef{SUFFIX}"
            orphan.touch()
            with pytest.raises(TrainingError, match="another process is training") as error:
                tiny_fit(small(), 3, state=path, **SHORT)
            errors.append(one_sentence(error))
            assert orphan.exists()

    first = tiny_fit(small(), 3, state=path, callback=meanwhile, **SHORT)
    assert errors and outcome(tiny_fit(small(), 3, state=path, **SHORT)) == outcome(first)


def test_a_state_in_a_folder_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be saved") as error:
        tiny_fit(small(), 3, state=tmp_path / "file" / "run", **SHORT)
    one_sentence(error)


# --- never worse


def harm(task, parameters, state, iterations):
    """In place of gauss_newton.refine: a bad table that claims to be perfect."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(parameters.count, generator=generator, dtype=torch.float64)
    theta[parameters.basis.shape[1] :] = 0
    state.update(best=theta, validation=0.0, history=[[0, 0.0]])


@pytest.mark.parametrize("init", ["ipndm:3:edm", "unipc-bh2:2:edm"])
def test_harmful_training_returns_the_initialisation(monkeypatch, tmp_path, init):
    monkeypatch.setattr(gauss_newton, "refine", harm)
    path = tmp_path / "run.safetensors"
    results = [tiny_fit(small(), init=init, state=path) for _ in range(2)]
    for result in results:
        family = "lms" if init.startswith("ipndm") else "pc"
        assert result.pack[4] == table_of(family)
        assert "did not help" in result.log[0] and len(result.log) == 1
        assert result.scores["4"]["rmse"] == result.scores["4"]["initial"]


def test_a_classical_solver_that_breaks_on_held_out_noise_spoils_nothing(monkeypatch):
    """A model that fails, once it is trained, at a noise level of every schedule but one."""
    inner, trained, guard = small(), [], Run._guard
    tables = [c.table for c in candidates(inner, 4) if c.schedule != "edm"]
    levels = torch.tensor([table.call_sigmas[1] for table in tables])

    def denoise(x, sigma):
        bad = trained and bool(torch.isclose(levels, sigma[0].double(), rtol=1e-6).any())
        return inner.denoise(x, sigma) * (math.nan if bad else 1)

    model = changed(inner, denoise=denoise)
    monkeypatch.setattr(Run, "_guard", lambda *given: trained.append(1) or guard(*given))
    result = tiny_fit(model, init="auto")
    scores = result.scores["4"]
    assert scores["classical_name"].endswith("edm") and scores["rmse"] < scores["classical"]
    assert all(math.isfinite(v) for k, v in scores.items() if k in ("rmse", "classical"))


def held_out(model, result, nfe=4):
    """RMSE of each held-out pair (fit's seed 3) under a result's table."""
    pairs = draw_pairs(model, default_teacher(model), TINY["held_out"], 3)
    return squared_errors(model.denoise, result.pack[nfe], pairs).sqrt()


def test_training_that_loses_to_any_classical_start_returns_the_best_of_them(monkeypatch, tmp_path):
    """The best start on held-out noise is not the one that training began from."""
    model, path = small(), tmp_path / "run.safetensors"
    ranked = ranked_starts

    def worst_first(*arguments):
        return ranked(*arguments)[::-1]

    def nothing(task, parameters, state, iterations):
        theta = torch.zeros(parameters.count, dtype=torch.float64)
        state.update(best=theta, validation=1.0, history=[[0, 1.0]])

    monkeypatch.setattr(gauss_newton, "refine", nothing)
    monkeypatch.setattr("s4s_core.training.fit.ranked_starts", worst_first)
    for _ in range(2):
        result = tiny_fit(model, init="auto", starts=1, state=path)
        scores = result.scores["4"]
        assert scores["rmse"] < scores["initial"]
        assert f"{scores['classical_name']} is kept" in result.log[0]
        pairs = draw_pairs(model, default_teacher(model), TINY["held_out"], 3)
        errors = [
            squared_errors(model.denoise, c.table, pairs).mean().sqrt()
            for c in candidates(model, 4)
            if c.table == result.pack[4]
        ]
        assert float(errors[0]) == pytest.approx(scores["classical"], rel=1e-5)


def test_scores_are_what_they_say():
    model = small()
    result = tiny_fit(model, init="auto")
    scores, errors = result.scores["4"], held_out(model, result)
    assert set(scores) == {
        "rmse",
        "median",
        "initial",
        "classical",
        "classical_median",
        "classical_name",
    }
    assert scores["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert scores["median"] == pytest.approx(float(errors.median()), rel=1e-5)
    named = {c.label: c.table for c in candidates(model, 4)}[scores["classical_name"]]
    pairs = draw_pairs(model, default_teacher(model), TINY["held_out"], 3)
    classical = squared_errors(model.denoise, named, pairs).sqrt()
    assert scores["classical"] == pytest.approx(float(classical.square().mean().sqrt()), rel=1e-5)
    assert scores["classical_median"] <= float(classical.median()) * (1 + 1e-5)


def test_a_result_of_a_greater_rmse_than_a_classical_solvers_is_told(monkeypatch):
    """The loss decides: here one that is least for the greatest RMSE."""
    mark = Run._mark

    def blind(run, task, table):
        found = mark(run, task, table)
        return found._replace(loss=1 / found.rmse)

    monkeypatch.setattr(Run, "_mark", blind)
    result = tiny_fit(small(), init="auto", budget=300)
    scores = result.scores["4"]
    assert scores["rmse"] > scores["classical"]
    assert any(f"than {scores['classical_name']} (" in line for line in result.log)


@pytest.mark.parametrize("start", [{"init": "gaussian:3:edm"}, {"start": table_of("lms")}])
def test_without_a_search_no_score_is_of_the_best_classical_solver(start):
    result = tiny_fit(small(), **start)
    assert set(result.scores["4"]) == {"rmse", "median", "initial"}
    assert describe(result.pack).plain()["ratios"] == {"4": None}


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_counts_are_honest(method):
    """Every call of the model is in the count, and no other; the check of the model is one more."""
    inner = small()
    counted = Counted(inner.denoise)
    model = changed(inner, denoise=counted)
    result = tiny_fit(model, (3, 4), method, init="auto", rematerialise=False, epochs=1)
    if method == "gauss-newton":
        assert result.calls == counted.calls - 1
    else:
        extra = TINY["samples"] * (3 + 4)  # a backward pass counts as one call
        assert result.calls == counted.calls - 1 + extra


def test_a_start_on_gits_is_measured_once_counted_and_kept(tmp_path):
    inner = small()
    counted = Counted(inner.denoise)
    options = {"init": "ipndm:3:gits", "state": tmp_path / "run.safetensors"}
    result = tiny_fit(changed(inner, denoise=counted), (3, 4), **options)
    assert result.calls == counted.calls - 1 > 256 * 60
    pairs, counted.calls = TINY["samples"] + TINY["validation"] + TINY["held_out"], 0
    again = tiny_fit(changed(inner, denoise=counted), (3, 4), **options)
    assert again.pack == result.pack and counted.calls == 20 * pairs  # the teacher's alone


def test_gits_can_be_cancelled():
    inner = small()
    counted = Counted(inner.denoise)
    pairs = TINY["samples"] + TINY["validation"] + TINY["held_out"]
    with pytest.raises(TrainingCancelled):
        tiny_fit(
            changed(inner, denoise=counted),
            init="ipndm:3:gits",
            cancelled=lambda: counted.calls > 20 * pairs + 100,
        )
    assert counted.calls < 20 * pairs + 200


def test_a_meter_counts_samples_from_nothing():
    model = small()
    meter = Meter(model.denoise)
    assert meter.calls == 0
    meter(torch.zeros(3, *model.shape), torch.ones(3))
    meter(torch.zeros(2, *model.shape), torch.ones(2))
    assert meter.calls == 3 + 2
