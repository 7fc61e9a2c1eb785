"""`fit` as a whole: packs, events, refusals, scores, and the guard on held-out noise."""

import inspect
import json
import math
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from learners import (
    ALL_METHODS,
    TINY,
    Counted,
    changed,
    message_of,
    pictures,
    small,
    table_of,
    task_of,
    tiny_fit,
)

from s4s_core import load_solver, save_solver
from s4s_core.app.description import describe
from s4s_core.candidates import KEPT, candidates, rank, squared_errors
from s4s_core.errors import S4SError, TrainingCancelled
from s4s_core.names import MEASURES, METHODS, OBJECTIVES, load
from s4s_core.objectives import L1, L2, SumOfSquares
from s4s_core.solver_file import dump_solver
from s4s_core.teacher import TEACHERS, choice_calls, default_teacher, draw_pairs
from s4s_core.training import gauss_newton, scoring
from s4s_core.training.check import CHECK_CALLS
from s4s_core.training.fit import Run, fit
from s4s_core.training.method import Method, find_method
from s4s_core.training.settings import Settings
from s4s_core.training.task import Meter

SHORT = {"budget": 1000, "samples": 6, "validation": 4, "held_out": 4}
TOLD = table_of("lms").replace(guidance=[1, 1, 1, 0.5])
PAIRS = TINY["samples"] + TINY["validation"] + TINY["held_out"]
TEACHING = CHECK_CALLS + choice_calls() + 20 * PAIRS
"""The model calls before the search."""


# --- results


def test_several_nfes_give_one_pack(tmp_path):
    result = tiny_fit(small(), (6, 4, 4), init="auto")
    assert result.pack.nfes == (4, 6) and set(result.scores) == {"4", "6"}
    save_solver(tmp_path / "a.safetensors", result.pack)
    loaded = load_solver(tmp_path / "a.safetensors")
    assert loaded.digest == result.pack.digest and loaded[6] == result.pack[6]
    about = json.loads(json.dumps(dict(loaded.metadata)))
    assert about["scores"] == result.scores and about["training"]["calls"] == result.calls
    assert about["teacher"]["nfe"] == 20
    assert about["teacher"]["name"] in [f"{solver} {order}, edm" for solver, order in TEACHERS]
    assert about["training"]["method"] == "gauss-newton"
    for scores in result.scores.values():
        assert scores["rmse"] <= min(scores["initial"], scores["classical"])
    assert set(result.history) == {4, 6} and result.log == []


@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_same_seed_gives_the_same_bytes(method):
    first, again = (dump_solver(tiny_fit(small(), 4, method, **SHORT).pack) for _ in range(2))
    assert first == again
    assert dump_solver(tiny_fit(small(), 4, method, seed=1, **SHORT).pack) != first


def test_the_batch_size_does_not_change_the_result():
    assert len({tiny_fit(small(), batch=b, budget=1500).pack[4] for b in (32, 3, 1)}) == 1


@pytest.mark.parametrize("method", ALL_METHODS)
def test_events_report_progress(method):
    events = []
    result = tiny_fit(small(), 4, method, callback=events.append, **SHORT)
    assert all(event.step <= event.total for event in events)
    assert events and all(event.nfe == 4 and event.table.nfe == 4 for event in events)
    assert all(np.isfinite(event.loss) for event in events)
    calls, best, done = zip(*((e.calls, e.validation, e.done) for e in events), strict=True)
    assert list(calls) == sorted(calls) and calls[-1] <= result.calls
    assert list(best) == sorted(best, reverse=True)
    assert list(done) == sorted(done) and 0 < done[-1] <= 1


# --- options, methods and objectives


@pytest.mark.parametrize(
    "options, text",
    [
        ({"method": "newton"}, "choose one of gauss-newton, s4s"),
        ({"speed": 3}, "no training option 'speed'"),
        ({"central": True}, "no training option 'central'"),
        ({"init": "ipndm"}, "solver:order:schedule"),
        ({"init": "nothing:3:edm"}, "Unknown solver 'nothing'"),
        ({"init": "ipndm:3:nothing"}, "Unknown schedule 'nothing'"),
        ({"init": "nothing:3:gits"}, "Unknown solver 'nothing'"),
        ({"objective": "lpips-alex"}, "pass `decode`"),
        ({"objective": "mse"}, "choose one of look, l2, l1, huber, lpips-alex"),
        ({"objective": "l1"}, "gauss-newton cannot fit the objective 'l1'"),
        ({"objective": L1()}, "gauss-newton cannot fit the objective 'l1'"),
        ({"init": "dpm-solver:3:edm"}, "no table of 4 calls"),
        ({"init": table_of("lms", nfe=6)}, "init has 6 calls, but nfe is 4"),
        *(({key: TOLD}, "the model cannot be told") for key in ("init", "teacher")),
        ({"nfe": 0}, "every entry of nfes must be between 1 and 1000"),
        ({"nfe": ()}, "at least one step count"),
        ({"batch": 0}, "batch must be"),
        ({"budget": 0}, "budget must be"),
        ({"samples": -1}, "samples must be"),
        ({"validation": 1.5}, "validation must be"),
        ({"rate": 0.0}, "rate must be > 0"),
        ({"coefficients": False, "times": False}, "nothing to learn"),
        ({"method": "joint", "domain": "days"}, "Unknown time domain"),
        ({"follow": "ipndm:3"}, "gradient methods only"),
        ({"method": "joint", "follow": "dpmpp:3"}, "such as dpmpp:3:edm"),
        ({"method": "joint", "follow": "ipndm:3", "init": table_of("lms")}, "a solver name"),
        ({"method": "ld3", "init": table_of("lms")}, "a solver name"),
    ],
)
def test_invalid_options_are_refused(options, text):
    with pytest.raises(S4SError, match=text) as error:
        tiny_fit(small(), **options)
    message_of(error)


def test_defaults_of_the_settings_are_those_of_fit():
    given, settings = inspect.signature(fit).parameters, Settings()
    assert settings.nfes == (given["nfe"].default,)
    for name in ("method", "seed", "budget", "init"):
        assert getattr(settings, name) == given[name].default


def test_the_documentation_has_every_option():
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    section = text.split("\n## Options\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(each.name for each in fields(Settings))


def test_the_registries_say_what_is_true():
    for name in METHODS:
        assert isinstance(find_method(name), Method) and find_method(name).name == name
    for entry in OBJECTIVES.values():
        assert issubclass(load(entry.place), SumOfSquares) == entry.squares


def test_constructing_a_run_calls_no_model():
    model = changed(small(), denoise=None)
    run = Run(model, Settings(), default_teacher(model), L2())
    assert run.pairs == {}


def test_a_budget_may_be_spent_to_the_last_call():
    task = task_of(small(), budget=100)
    task.first_calls, task.meter.calls = 10, 70
    assert not task.exceeds_budget(40) and task.exceeds_budget(41)


# --- the guard: never worse than the start


def harm(task, parameters, state, iterations):
    """In place of gauss_newton.refine: a bad table that claims to be perfect."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(parameters.count, generator=generator, dtype=torch.float64)
    theta[parameters.basis.shape[1] :] = 0
    task.scale = 1.0
    state.update(best=theta, validation=0.0, history=[[0, 0.0]])


@pytest.mark.parametrize("init, family", [("ipndm:3:edm", "lms"), ("unipc-bh2:2:edm", "pc")])
def test_harmful_training_returns_the_start(monkeypatch, tmp_path, init, family):
    monkeypatch.setattr(gauss_newton, "refine", harm)
    for _ in range(2):
        result = tiny_fit(small(), init=init, state=tmp_path / "run.safetensors")
        assert result.pack[4] == table_of(family)
        assert "did not help" in result.log[0] and len(result.log) == 1
        assert result.scores["4"]["rmse"] == result.scores["4"]["initial"]


def held_out(model, result, table):
    """Errors of a table on each held-out pair of a run (seed 3 in fit)."""
    pairs = draw_pairs(model, result.teacher, TINY["held_out"], 3)
    return squared_errors(model.denoise, table, pairs).sqrt()


def test_training_that_loses_to_any_classical_start_returns_the_best_of_them(monkeypatch, tmp_path):
    """The best start on held-out noise is not the one that training began from."""
    model, path = small(), tmp_path / "run.safetensors"

    def nothing(task, parameters, state, iterations):
        task.scale, theta = 1.0, torch.zeros(parameters.count, dtype=torch.float64)
        state.update(best=theta, validation=1.0, history=[[0, 1.0]])

    def worst_first(*given):
        return [(-error, start) for error, start in rank(*given)[::-1]]

    monkeypatch.setattr(gauss_newton, "refine", nothing)
    monkeypatch.setattr("s4s_core.training.search.rank", worst_first)
    for _ in range(2):
        result = tiny_fit(model, init="auto", starts=1, state=path)
        scores = result.scores["4"]
        assert scores["rmse"] < scores["initial"]
        assert f"{scores['classical_name']} is kept" in result.log[0]
        assert result.pack[4] in [c.table for c in candidates(model, 4)]
        error = float(held_out(model, result, result.pack[4]).square().mean().sqrt())
        assert error == pytest.approx(scores["classical"], rel=1e-5)


def test_a_classical_solver_that_breaks_on_held_out_noise_does_no_harm(monkeypatch):
    """After training, the model fails at a noise level of every schedule but the worst's."""
    inner, levels, kept, guard = small(), [], [], scoring.guard

    def denoise(x, sigma):
        bad = any(math.isclose(float(sigma[0]), level, rel_tol=1e-6) for level in levels)
        return inner.denoise(x, sigma) * (math.nan if bad else 1)

    def broken(task, method, pairs, starts, trained, state):
        kept.extend(starts)
        last = starts[-1].schedule
        levels.extend(s.table.call_sigmas[1] for s in starts if s.schedule != last)
        return guard(task, method, pairs, starts, trained, state)

    monkeypatch.setattr(scoring, "guard", broken)
    monkeypatch.setattr("s4s_core.training.search.kept_classical", lambda settings: KEPT)
    scores = tiny_fit(changed(inner, denoise=denoise), init="auto").scores["4"]
    assert levels and scores["classical_name"].endswith(kept[-1].schedule)
    assert scores["rmse"] < scores["classical"] and scores["initial"] is None
    assert math.isfinite(scores["rmse"]) and math.isfinite(scores["classical"])


def test_scores_are_errors_on_held_out_noise():
    model = small()
    result = tiny_fit(model, init="auto")
    scores, errors = result.scores["4"], held_out(model, result, result.pack[4])
    classical = {"classical", "classical_median", "classical_name"}
    assert set(scores) == {"rmse", "median", "initial"} | classical
    assert scores["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert scores["median"] == pytest.approx(float(errors.median()), rel=1e-5)
    named = {c.label: c.table for c in candidates(model, 4)}[scores["classical_name"]]
    errors = held_out(model, result, named)
    assert scores["classical"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert scores["classical_median"] <= float(errors.median()) * (1 + 1e-5)


def test_the_log_warns_of_every_score_that_is_worse(monkeypatch):
    """The loss decides: here one that is lowest for the highest RMSE."""
    measure = scoring.measure

    def reversed_loss(*given):
        mark = measure(*given)
        return mark._replace(loss=1 / mark.rmse)

    monkeypatch.setattr(scoring, "measure", reversed_loss)
    result = tiny_fit(pictures(), init="auto", budget=300)
    scores, lines = result.scores["4"], [line for line in result.log if "is worse than" in line]
    assert len(lines) == len(MEASURES) == 3
    for line, (ours, (title, theirs)) in zip(lines, MEASURES.items(), strict=True):
        assert scores[ours] > scores[theirs]
        assert f"the {title} on held-out noise ({scores[ours]:.4g})" in line
        assert f"({scores[theirs]:.4g})" in line


@pytest.mark.parametrize("init", ["gaussian:3:edm", table_of("lms")])
def test_without_a_search_scores_do_not_mention_classical_solvers(init):
    result = tiny_fit(small(), init=init)
    assert set(result.scores["4"]) == {"rmse", "median", "initial"}
    assert describe(result.pack).plain()["ratios"] == {"4": None}


# --- counting model calls


@pytest.mark.parametrize(
    "method, budget, seed",
    [*((m, 1500, 0) for m in ALL_METHODS), ("gauss-newton", 1500, 1), ("gauss-newton", 4000, 0)],
)
def test_the_budget_is_kept(method, budget, seed):
    inner, events = small(), []
    counted = Counted(inner.denoise)
    options = {"init": "ddim:1:edm", "epochs": 50, "callback": events.append}
    result = tiny_fit(
        changed(inner, denoise=counted), 4, method, budget=budget, seed=seed, **options
    )
    assert result.calls <= budget + TEACHING + 2 * 4 * TINY["held_out"]
    assert method != "gauss-newton" or counted.calls == result.calls
    assert events and all(0 <= event.done <= 1 for event in events)


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_every_model_call_is_counted(method):
    """A backward pass counts as one call."""
    inner = small()
    counted = Counted(inner.denoise)
    model = changed(inner, denoise=counted)
    result = tiny_fit(model, (3, 4), method, init="auto", rematerialise=False, epochs=1)
    backward = 0 if method == "gauss-newton" else TINY["samples"] * (3 + 4)
    assert result.calls == counted.calls + backward


def test_a_start_on_gits_is_measured_once_counted_and_saved(tmp_path):
    inner = small()
    counted = Counted(inner.denoise)
    options = {"init": "ipndm:3:gits", "state": tmp_path / "run.safetensors"}
    result = tiny_fit(changed(inner, denoise=counted), (3, 4), **options)
    assert result.calls == counted.calls > 256 * 60
    counted.calls = 0
    again = tiny_fit(changed(inner, denoise=counted), (3, 4), **options)
    assert again.pack == result.pack and counted.calls == 0


def test_gits_can_be_cancelled():
    inner = small()
    counted = Counted(inner.denoise)
    model = changed(inner, denoise=counted)
    with pytest.raises(TrainingCancelled):
        tiny_fit(model, init="ipndm:3:gits", cancelled=lambda: counted.calls > TEACHING + 100)
    assert TEACHING + 100 < counted.calls < TEACHING + 200


def test_a_meter_counts_samples():
    model = small()
    meter = Meter(model.denoise)
    meter(torch.zeros(3, *model.shape), torch.ones(3))
    meter(torch.zeros(2, *model.shape), torch.ones(2))
    assert meter.calls == 3 + 2
