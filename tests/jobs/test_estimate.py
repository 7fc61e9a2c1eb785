"""Estimates before training starts: calls, time, memory, disk space, warnings."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from s4s_core import fit
from s4s_core.app import estimate as shared
from s4s_core.app.plan import RunProgress
from s4s_core.errors import ConfigError, ModelError, S4SError, TrainingError
from s4s_core.mixture import GaussianMixture
from s4s_core.names import EFFORTS
from s4s_core.objectives import L2
from s4s_core.schedules.gits import CALLS as GITS_CALLS
from s4s_core.training.gradient import PLAIN_COST
from s4s_core.training.settings import Goal
from trainer import estimate
from trainer.cli import main
from trainer.config import PRESETS, TrainConfig, with_preset
from trainer.memory import available
from trainer.models import ModelChoice
from trainer.training import call_plan, train

MODELS = Path(__file__).parents[1] / "helpers" / "job_models.py"
MIXTURE = TrainConfig(model=ModelChoice("mixture"), nfes=(4,), budget=5000)


def small(denoise=None, **options):
    model = GaussianMixture.random(4, (3, 4, 4), seed=0)
    model.device, model.denoise = "cpu", denoise or model.denoise
    vars(model).update(options)
    return model


def raise_out_of_memory(x, sigma, cond=None):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


def progress_lines(config, model):
    """Train and return (result, lines of metrics)."""
    progress, lines = RunProgress(call_plan(config)), []
    result = train(config, model, lambda event: lines.append(progress.line(event)))
    shares = [line.progress for line in lines]
    assert shares == sorted(shares) and shares[-1] <= 1.0
    return result, lines


def test_an_estimate_has_time_memory_and_calls():
    config = replace(MIXTURE, budget=50_000)
    result = estimate.measure(config)
    assert result.seconds > 0 and result.calls == call_plan(config).total
    assert result.device == "cpu" and result.warnings == ()
    assert 50e6 < result.memory_bytes < 1e12 and available() >= 0
    assert call_plan(replace(MIXTURE, nfes=(4, 5, 6))).total > 2 * call_plan(MIXTURE).total


def test_the_dry_run_is_another_process_and_its_errors_are_ours():
    bad = TrainConfig(model=ModelChoice("python", f"{MODELS}:not_a_number"))
    with pytest.raises(S4SError, match="returns NaN or infinity") as caught:
        estimate.estimate(bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("teacher", ["auto", "ipndm:2:gits:20"])
@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_a_budget_that_training_would_refuse_is_refused(monkeypatch, method, teacher):
    """By the same words, and before any model call."""
    config = replace(MIXTURE, method=method, teacher=teacher, budget=50)
    monkeypatch.setattr(estimate, "DryRun", None)
    monkeypatch.setattr(GaussianMixture, "denoise", None)
    with pytest.raises(TrainingError, match=r"A budget of 50 model calls is too small") as error:
        estimate.measure(config)
    assert "use at least" in str(error.value)


def test_a_model_that_prints_does_not_spoil_the_estimate(tmp_path):
    code = "from s4s_core.mixture import GaussianMixture\nprint('Loading: {')\n"
    code += "model = lambda choice: GaussianMixture.random(4, (3, 4, 4), seed=0)\n"
    (tmp_path / "noisy.py").write_text(code)
    noisy = TrainConfig(model=ModelChoice("python", f"{tmp_path / 'noisy.py'}:model"), budget=5000)
    result = estimate.estimate(noisy)
    assert result.calls == call_plan(noisy).total and isinstance(result.warnings, tuple)


def test_the_command_prints_text_or_json(capsys):
    options = ["estimate", "--model", "mixture", "--budget", "5000"]
    assert main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 5000
    assert main(options) == 0
    said = capsys.readouterr().out
    assert said.startswith("At most ") and " model calls: about " in said and "cpu" in said


@pytest.mark.parametrize(
    ("seconds", "calls", "memory", "sentence"),
    [
        (200, 4000, 2.1e9, "At most 4,000 model calls: about 3:20 at 20 calls a second, 2.1 GB."),
        (3600, 900, 5e6, "At most 900 model calls: about 1:00:00 at 0.25 calls a second, 5 MB."),
        (0, 500, 0, "At most 500 model calls: about 0:00 at 5,000 calls a second, 1 MB."),
    ],
)
def test_one_sentence_says_it_all(seconds, calls, memory, sentence):
    assert shared.Estimate(seconds, int(memory), calls).sentence == sentence


@pytest.mark.parametrize("method", ["gauss-newton", "s4s", "s4s-alt"])
def test_the_plan_bounds_what_is_spent(method):
    config = TrainConfig(
        nfes=(3, 4),
        method=method,
        budget=2000 if method == "gauss-newton" else 0,
        options={"samples": 8, "validation": 4, "held_out": 4, "epochs": 1},
    )
    result, lines = progress_lines(config, small(fingerprint=None))
    total = call_plan(config).total
    assert 0.3 * total < result.calls <= 1.05 * total
    assert lines[-1].eta >= 0 and "4 steps: scoring on new noise" in lines[-1].message
    assert any("steps, iteration" in line.message for line in lines)


@pytest.mark.parametrize("preset", PRESETS)
def test_strengths_cost_what_the_switch_says(preset):
    for nfes in ((5,), (4, 5, 6, 8)):
        alone = TrainConfig(nfes=nfes)
        both = replace(alone, options={"strengths": shared.IMG2IMG_STRENGTHS})
        before, after = (call_plan(with_preset(config, preset)) for config in (alone, both))
        times = 4 if preset.startswith("paper") else 3
        assert (times - 0.6) * before.total < after.total < (times + 0.01) * before.total
        sizes = after.settings.sizes
        assert after.pairs - before.pairs == 3 * 20 * sum(sizes)
        if preset in EFFORTS:
            assert 20 * sum(sizes) <= 0.27 * EFFORTS[preset]


def test_the_plan_bounds_what_strengths_spend():
    """With a named teacher too."""
    options = {"samples": 8, "validation": 4, "held_out": 4, "strengths": [0.3, 0.6]}
    config = TrainConfig(nfes=(3,), budget=2000, teacher="unipc-bh2:3:logsnr:8", options=options)
    result, lines = progress_lines(config, small(fingerprint=None))
    assert 0.3 * call_plan(config).total < result.calls <= 1.05 * call_plan(config).total
    assert result.calls > call_plan(replace(config, options={})).total
    assert list(dict.fromkeys((line.nfe, line.strength) for line in lines)) == [
        *((None, None), (3, None), (3, 0.6), (3, 0.3))
    ]
    assert "3 steps at strength 0.3: scoring on new noise" in lines[-1].message
    assert any("3 steps at strength 0.6, iteration 1: error" in line.message for line in lines)
    assert [each["strength"] for name, each in result.scores.items() if "@" in name] == [0.6, 0.3]


def test_the_plan_counts_what_gits_measures():
    """The teacher and the start each measure the model once per run."""
    model, calls = small(fingerprint=None), []
    denoise = model.denoise
    model.denoise = lambda x, sigma, cond=None: (calls.append(len(x)), denoise(x, sigma))[1]
    options = {"samples": 8, "validation": 4, "held_out": 4, "init": "ipndm:2:gits"}
    options["inclusive"] = False
    config = TrainConfig(nfes=(3, 4), budget=300, teacher="ipndm:2:gits:6", options=options)
    _, lines = progress_lines(config, model)
    assert 2 * GITS_CALLS < sum(calls) <= call_plan(config).total < sum(calls) + 1000
    assert lines[0].progress > 0.4


def test_a_config_trains_what_fit_trains():
    options = {"samples": 8, "validation": 4, "held_out": 4, "init": "ipndm:2:edm"}
    config = TrainConfig(nfes=(3,), budget=1000, seed=2, options=options)
    ours = train(config, small()).pack
    assert ours.digest == fit(small(), 3, seed=2, budget=1000, **options).pack.digest
    pack = train(replace(config, teacher="unipc-bh2:3:logsnr:6"), small()).pack
    assert pack.metadata["teacher"]["nfe"] == 6 and pack.digest != ours.digest


def test_memory_that_runs_out_halves_the_batch_with_a_warning():
    def denoise(x, sigma, cond=None):
        return raise_out_of_memory(x, sigma) if len(x) > 8 else x

    trial = shared.DryRun(small(denoise), 32, L2())
    (warning,) = estimate._memory_warnings(trial, 0, 0)
    assert "8 samples at once instead of 32" in warning


@pytest.mark.parametrize(
    ("denoise", "error", "says"),
    [
        (raise_out_of_memory, TrainingError, "Not enough memory for a single sample"),
        (lambda x, sigma: x * float("nan"), ModelError, "NaN or infinity"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(denoise, error, says):
    with pytest.raises(error, match=says):
        shared.DryRun(small(denoise), 32, L2())


def test_a_model_that_is_too_slow_for_a_batch_is_extrapolated_from_one_sample(monkeypatch):
    monkeypatch.setattr(shared, "LONGEST_CALL", 0.0)
    sizes = []

    def denoise(x, sigma, cond=None):
        sizes.append(len(x))
        return x

    assert shared.DryRun(small(denoise), 32, L2()).single
    assert sizes == [1, 1]


@pytest.mark.parametrize("method, seconds", [("gauss-newton", 0.01), ("s4s", 0.01 / PLAIN_COST)])
def test_a_call_with_its_gradient_costs_what_training_counts_for_it(monkeypatch, method, seconds):
    """Two calls: a clock that only a call and its gradient move shows half of that per call."""
    ticks, gradients = [], []

    def denoise(x, sigma, cond=None):
        ticks.append(len(x))
        gradients.append(x.requires_grad)
        return x * 0.5

    monkeypatch.setattr(shared.time, "perf_counter", lambda: 0.01 * sum(ticks))
    trial = shared.DryRun(small(denoise), 32, L2(), gradient=method == "s4s")
    assert trial.per_call == pytest.approx(seconds) and PLAIN_COST == 2
    assert method == "s4s" or trial.per_result == 0
    assert set(gradients) == {method == "s4s"}


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_what_the_objective_takes_is_in_the_estimate(monkeypatch, method):
    """A decoder of a second per result weighs more than all calls of a quick model."""
    ticks = []

    class Slow(L2):
        def embed(self, x):
            ticks.append(len(x))
            return super().embed(x)

    monkeypatch.setattr("s4s_core.objectives.objective", lambda name, decode: Slow())
    monkeypatch.setattr(shared.time, "perf_counter", lambda: 1.0 * sum(ticks))
    config = replace(MIXTURE, method=method)
    assert estimate.measure(config).seconds >= call_plan(config).training[Goal(4)] // 4


def test_too_little_disk_space_is_an_error(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=70e6))
    estimate.check_disk(MIXTURE)
    pairs = {"samples": 50, "validation": 30, "held_out": 20}
    with pytest.raises(ConfigError, match="467 MB needed, 70 MB free"):
        estimate.check_disk(TrainConfig(options=pairs), (100, 100, 100))
    with pytest.raises(ConfigError, match="867 MB needed"):
        estimate.check_disk(TrainConfig(options={**pairs, "strengths": [0.5]}), (100, 100, 100))


@pytest.mark.parametrize(
    ("config", "memory", "seconds", "warnings"),
    [
        (MIXTURE, 9e9, 1e5, ["about 9.0 GB of memory, but only 8.0 GB", "more than a day"]),
        (TrainConfig(nfes=(5, 20)), 0, 1, ["nothing to learn"]),
        (TrainConfig(nfes=(19,)), 0, 1, []),
        (TrainConfig(nfes=(6,), teacher="euler:1:edm:5"), 0, 1, ["nothing to learn"]),
    ],
)
def test_warnings(config, memory, seconds, warnings):
    trial = SimpleNamespace(batch=4, wanted=4)
    given = [
        *estimate._memory_warnings(trial, memory, free=8e9),
        *estimate._plan_warnings(call_plan(config), seconds),
    ]
    assert len(given) == len(warnings)
    assert all(part in text for part, text in zip(warnings, given, strict=True))
