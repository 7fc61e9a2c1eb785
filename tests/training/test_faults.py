"""Injected faults: results that are not finite, and memory that runs out."""

import math
import re
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
import torch
from learners import ALL_METHODS, METHODS, changed, message_of, small, table_of, task_of, tiny_fit
from safetensors.torch import load_file

from s4s_core.candidates import KEPT
from s4s_core.demo import load_demo
from s4s_core.errors import ModelError, S4SError, TrainingDiverged, TrainingError
from s4s_core.objectives import L2
from s4s_core.teacher import default_teacher
from s4s_core.training import gauss_newton
from s4s_core.training.check import CHECK_CALLS, check_model
from s4s_core.training.gradient import JOINT, S4S, Descent
from s4s_core.training.memory import Batcher, is_out_of_memory
from s4s_core.training.method import find_method
from s4s_core.training.state import read_state
from s4s_core.training.student import Student
from s4s_core.training.task import Meter, NotFinite, Task

SHORT = {"budget": 1200, "batch": 4}


class Faulty:
    """A denoiser with a fault at the calls for which when(number, batch size) holds.

    The fault is a factor on the result, or an error to raise.
    """

    def __init__(self, inner, when, fault):
        self.inner, self.when, self.fault = inner, when, fault
        self.number = self.failed = 0

    def __call__(self, x, sigma):
        self.number += 1
        if not self.when(self.number, len(x)):
            return self.inner.denoise(x, sigma)
        self.failed += 1
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.inner.denoise(x, sigma) * self.fault


def faulty(when, fault=math.nan):
    inner = small()
    return changed(inner, denoise=Faulty(inner, lambda number, size: when(number), fault))


@pytest.fixture(scope="module")
def phases():
    """Per method: model calls (batches) until the first and the last event, and of the run."""

    @cache
    def get(method):
        model, marks = faulty(lambda n: False), []
        record = lambda e: marks.append(model.denoise.number)  # noqa: E731
        tiny_fit(model, 4, method, callback=record, **SHORT)
        return marks[0], marks[-1], model.denoise.number

    return get


# --- not finite


def check_saved(path):
    """Nothing in a saved state may be NaN or infinite (its JSON cannot hold one)."""
    for name, tensor in load_file(path).items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name


@pytest.mark.parametrize(
    "method, share, value",
    [
        *((m, *case) for m in ALL_METHODS for case in ((0.05, math.nan), (0.4, math.inf))),
        *((m, 1.0, math.nan) for m in ALL_METHODS if m != "s4s"),
        *(("s4s", place / 19, math.nan) for place in range(20)),
    ],
)
def test_one_bad_call_in_training_is_rolled_back(tmp_path, phases, method, share, value):
    first, last, _ = phases(method)
    place = first + 1 + int(share * (last - first - 1))  # a share of 1 is the last validation
    model, path, events = faulty(lambda n: n == place, value), tmp_path / "run", []

    def check(event):
        check_saved(path)
        events.append(event)

    scores = tiny_fit(model, 4, method, state=path, callback=check, **SHORT).scores["4"]
    assert model.denoise.number > place and scores["rmse"] <= scores["initial"]
    assert events and all(math.isfinite(e.loss) and math.isfinite(e.validation) for e in events)
    check_saved(path)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_one_bad_call_anywhere_never_gives_a_bad_result(phases, method):
    """Before training, in the teacher, in scoring: a good result, or an error that explains."""
    first, _, whole = phases(method)
    for place in [*np.linspace(1, first, 6).astype(int), *range(whole - 3, whole + 1)]:
        model = faulty(lambda n, place=place: n == place)
        try:
            scores = tiny_fit(model, 4, method, **SHORT).scores["4"]
        except S4SError as error:
            assert isinstance(error, ModelError | TrainingDiverged)
            message_of(error)
        else:
            assert scores["rmse"] <= scores["initial"]
            assert all(math.isfinite(v) for v in scores.values() if isinstance(v, float))


@pytest.mark.parametrize("method", ALL_METHODS)
def test_bad_calls_without_end_stop_training(tmp_path, phases, method):
    with pytest.raises(ModelError) as error:
        tiny_fit(faulty(lambda n: True), 4, method)
    message_of(error)
    first, path = phases(method)[0], tmp_path / "run"
    with pytest.raises(TrainingDiverged, match="four times in a row") as error:
        tiny_fit(faulty(lambda n: n > first), 4, method, state=path, **SHORT)
    text = message_of(error)
    assert "4 steps" in text and f"saved run {path}." in text
    assert re.search(r"at (iteration \d+|epoch \d+ of phase \d+) of", text)
    check_saved(path)
    with pytest.raises(TrainingDiverged, match="Try another precision"):
        tiny_fit(faulty(lambda n: n > first), 4, method, **SHORT)


def test_a_fault_increases_the_damping(tmp_path, phases):
    first = phases("gauss-newton")[0]

    def run(place, path):
        states = []

        def record(event):
            state = read_state(path)["nfes"]["4"]["runs"][0]
            states.append((state["damping"], state["failures"]))

        tiny_fit(faulty(lambda n: n == place), 4, state=path, callback=record, **SHORT)
        return states

    good, bad = run(0, tmp_path / "good"), run(first + 1, tmp_path / "bad")
    assert bad[0] == good[0] and bad[1] == (gauss_newton.HARDER * good[0][0], 1)
    assert bad[2][1] == 0, "the count of faults starts again after a good iteration"


def test_a_fault_halves_the_rate():
    model = faulty(lambda n: False)
    student = Student(model, table_of("lms"))
    descent = Descent(task_of(model), student, S4S.phases, {"seed": 0}, epochs=1)
    rate, number = descent.optimisers["phi"].param_groups[0]["lr"], model.denoise.number
    model.denoise.when = lambda n, size: n == number + 1
    descent.run()
    assert descent.optimisers["phi"].param_groups[0]["lr"] == rate / 2
    assert descent.state["phase"] == 1 and descent.state["failures"] == 0


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_a_bad_gradient_is_rolled_back(method, call):
    """Losses are finite, but the backward pass of one call is not: the first moves noise only."""
    inner, number = small(), 0

    def denoise(x, sigma):
        nonlocal number
        number += torch.is_grad_enabled()
        result = inner.denoise(x, sigma)
        if number == call and result.requires_grad:
            result.register_hook(lambda gradient: gradient * math.nan)
        return result

    task = task_of(changed(inner, denoise=denoise), budget=2000)
    student, phases = Student(inner, table_of("lms")), find_method(method).phases
    descent = Descent(task, student, phases, {"seed": 0}, epochs=1, rematerialise=False)
    rate = descent.optimisers["phi"].param_groups[0]["lr"]
    descent.run()
    assert number > call and descent.optimisers["phi"].param_groups[0]["lr"] <= rate / 2
    assert descent.state["phase"] and math.isfinite(descent.state["validation"])
    assert all(leaf.isfinite().all() for leaf in student.leaves.values())
    assert descent.state["starts"].isfinite().all()


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_a_start_that_is_not_finite_is_named(method):
    table = table_of("lms")
    wild = table.replace(b=table.coefficients["b"] * 1e30)
    with pytest.raises(TrainingDiverged, match="initial table of 4 steps") as error:
        tiny_fit(small(), 4, method, init=wild)
    message_of(error)


# --- one start of several

TWO = {"init": "auto", "starts": 2, "budget": 1000, "samples": 6, "validation": 4, "held_out": 4}


@pytest.fixture
def cheap_starts(monkeypatch):
    """Even a small budget is for several starts."""
    monkeypatch.setattr(gauss_newton, "CALLS_PER_START", 1)
    monkeypatch.setattr("s4s_core.training.search.kept_classical", lambda settings: KEPT)


@pytest.fixture
def broken(monkeypatch, cheap_starts):
    """A function that makes all iterations of the given starts, by number, not finite."""
    iterate, tables, bad = gauss_newton._iterate, [], []

    def fails(task, parameters, state):
        if parameters.table not in tables:
            tables.append(parameters.table)
        if tables.index(parameters.table) in bad:
            raise NotFinite
        return iterate(task, parameters, state)

    monkeypatch.setattr(gauss_newton, "_iterate", fails)
    tiny_fit(small(), 4, **TWO)
    assert len(tables) == 2
    return bad.extend


@pytest.mark.parametrize("number", [0, 1])
def test_a_start_that_diverges_is_given_up_alone(tmp_path, broken, number):
    def stop(event):
        raise KeyboardInterrupt

    broken([number])
    whole, resumed = tiny_fit(small(), 4, **TWO), None
    given_up = [line for line in whole.log if "was given up" in line]
    assert len(given_up) == 1 and len(whole.history[4]) > 1
    while resumed is None:
        with suppress(KeyboardInterrupt):
            resumed = tiny_fit(small(), 4, state=tmp_path / "run", callback=stop, **TWO)
    assert (resumed.pack, resumed.log, resumed.calls) == (whole.pack, whole.log, whole.calls)


def test_training_that_diverges_from_all_starts_stops(tmp_path, broken):
    broken([0, 1])
    for _ in range(2):
        with pytest.raises(TrainingDiverged, match="four times in a row"):
            tiny_fit(small(), 4, state=tmp_path / "run", **TWO)


def test_a_start_that_is_not_finite_is_given_up_alone(monkeypatch, cheap_starts):
    """The best start; the scale is that of the next."""
    inner, seen = Task.initial_errors, []

    def initial_errors(task, table):
        seen.append((table.form, *table.call_sigmas.round(6)))
        if seen[-1] == seen[0]:
            raise TrainingDiverged("The start is not finite.")
        return inner(task, table)

    monkeypatch.setattr(Task, "initial_errors", initial_errors)
    result = tiny_fit(small(), 4, **TWO)
    assert sum("was given up" in line for line in result.log) == 1 and len(result.history[4]) > 1


# --- out of memory

ERRORS = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: not enough memory: you"),
    RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)."),
    MemoryError(),
]


def narrow(limit, error=ERRORS[1]):
    """A model that runs out of memory above a batch size."""
    inner = small()
    return changed(inner, denoise=Faulty(inner, lambda number, size: size > limit, error))


def assert_close(result, expected):
    for name, array in expected.pack[result.pack.nfes[0]].arrays.items():
        ours = result.pack[result.pack.nfes[0]].arrays[name]
        np.testing.assert_allclose(ours, array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "windows", "mps", "python"])
def test_the_batch_halves_until_it_fits(error):
    model = narrow(3, error)
    result = tiny_fit(model, batch=32, budget=1500)
    assert model.denoise.failed == 4  # teacher of 8: 32, 16, 8, 4, and then it is known
    assert result.pack[4] == tiny_fit(small(), batch=2, budget=1500).pack[4]


@pytest.mark.parametrize("method", ALL_METHODS)
def test_the_result_is_the_same_with_little_memory(method):
    plain, result = (tiny_fit(m, 4, method, budget=2000) for m in (small(), narrow(3)))
    assert_close(result, plain)
    assert result.scores["4"]["rmse"] == pytest.approx(plain.scores["4"]["rmse"], rel=1e-5)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_too_little_memory_for_one_sample_stops_training(method):
    with pytest.raises(TrainingError, match="single sample") as error:
        tiny_fit(narrow(0), 4, method)
    message_of(error)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_memory_that_runs_out_once_changes_no_result(method):
    """At ten of the model's calls: in the teacher, the model's check, training, and scoring."""
    options = {"budget": 400, "samples": 4, "validation": 2, "held_out": 2, "epochs": 1}

    def run(place):
        model = faulty(lambda n: n == place, ERRORS[0])
        teacher = default_teacher(model, 6)
        return tiny_fit(model, 3, method, teacher=teacher, **options), model.denoise.number

    plain, whole = run(0)
    check = 3 * 6 + 1
    for place in (check, *np.linspace(1, whole, 9).astype(int)):
        result, _ = run(place)
        assert result.calls == plain.calls, "calls that fail cost no budget"
        assert_close(result, plain)


@pytest.mark.parametrize("error", ERRORS)
def test_memory_that_runs_out_between_the_calls_is_explained(monkeypatch, error):
    def propose(*_):
        raise error

    monkeypatch.setattr(gauss_newton, "propose", propose)
    with pytest.raises(TrainingError, match="Out of memory: close other programs") as raised:
        tiny_fit(small(), 4)
    message_of(raised)


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_an_objective_with_little_memory_is_computed_in_smaller_parts(method):
    class NarrowL2(L2):
        def distance(self, result, target):
            if len(result) > 2:
                raise ERRORS[0]
            return super().distance(result, target)

    plain, result = (tiny_fit(small(), 4, method, objective=o) for o in (L2(), NarrowL2()))
    assert_close(result, plain)
    assert result.scores["4"] == pytest.approx(plain.scores["4"], rel=1e-5)


@pytest.mark.parametrize("at", range(1, 13))
def test_memory_that_runs_out_in_the_middle_does_not_count_twice(at):
    """A fault at any forward or repeated forward of a step with three micro-batches."""

    def gradients(fail_at):
        inner, number = small(), 0

        def denoise(x, sigma):
            nonlocal number
            number += torch.is_grad_enabled()
            if number == fail_at:
                number += 1
                raise ERRORS[0]
            return inner.denoise(x, sigma)

        task = task_of(changed(inner, denoise=denoise), samples=6, batch=2)
        descent = Descent(task, Student(inner, table_of("lms")), JOINT.phases, {"seed": 0})
        number = 0
        descent._step(torch.arange(6), descent.phases[0])
        return [*(leaf.grad for leaf in descent.student.leaves.values()), descent.state["starts"]]

    for ours, theirs in zip(gradients(at), gradients(None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 if ours.ndim > 1 else 1e-8)


def test_other_errors_are_not_taken_for_memory():
    def fail(part):
        raise RuntimeError("shape mismatch")

    batcher = Batcher(4, Meter(None))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        batcher.map(task_of(small()).train, fail)
    assert batcher.batch == 4 and not is_out_of_memory(ValueError("out of memory"))


# --- models whose results depend on earlier calls


def reusing(model, reuses):
    """`model` with the noise that it predicted last wherever reuses(calls, x, last x) says so."""
    calls, last = [], []

    def denoise(x, sigma, cond=None):
        calls.append(x)
        if not last or not reuses(len(calls), x, last[0]):
            last[:] = x, (x - model.denoise(x, sigma, cond)) / sigma.view(-1, 1, 1, 1)
        return x - sigma.view(-1, 1, 1, 1) * last[1]

    return changed(model, denoise=denoise), calls


@pytest.mark.parametrize(
    "reuses",
    [
        *(lambda _, x, last, t=t: (x - last).norm() < t * last.norm() for t in (0.1, 0.2, 0.4)),
        *(lambda calls, x, last, n=n: calls % n for n in (2, 3, 5)),
    ],
)
@pytest.mark.parametrize(("space", "cfg"), [("ve", 1.0), ("vp", 7.5), ("flow", 1.0)])
def test_a_model_that_reuses_earlier_results_is_refused_before_it_teaches(space, cfg, reuses):
    """Where little has changed, as TeaCache does, or in all calls but every n-th one."""
    model, calls = reusing(load_demo(space, cfg), reuses)
    with pytest.raises(ModelError, match="depend on earlier calls.*TeaCache"):
        tiny_fit(model)
    assert len(calls) < CHECK_CALLS, "it was not asked about several rows"


@pytest.mark.parametrize("size", [0.0, 0.01, 0.02])
def test_kernels_that_are_not_exact_are_accepted(size):
    model, random = load_demo("ve", 4.0), torch.Generator().manual_seed(0)

    def denoise(x, sigma, cond=None):
        x0 = model.denoise(x, sigma, cond)
        noise = torch.randn(x.shape, generator=random)
        return x0 + size * noise * x0.norm() / noise.norm()

    check_model(changed(model, denoise=denoise))
