"""Saved runs: they resume to the same bytes, and refuse what is not theirs."""

from contextlib import suppress
from functools import cache, partial
from itertools import count

import numpy as np
import pytest
import torch
from learners import ALL_METHODS, Counted, changed, message_of, small, table_of, tiny_fit

from s4s_core.atomic import SUFFIX, temporary_stem
from s4s_core.candidates import KEPT
from s4s_core.errors import TrainingCancelled, TrainingError
from s4s_core.objectives import L2
from s4s_core.solver_file import dump_solver, parse_solver
from s4s_core.teacher import default_teacher
from s4s_core.training import gauss_newton, state
from s4s_core.training.check import CHECK_CALLS
from s4s_core.training.fit import fit
from s4s_core.training.state import read_state, save_state
from s4s_core.training.task import CHOICE, SCORING, SEARCH, TEACHER

SHORT = {"budget": 1000, "samples": 6, "validation": 4, "held_out": 4}
NFES = (3, 4)


class Stop(Exception):
    pass


def outcome(result):
    return dump_solver(result.pack), result.calls, result.history, result.log, result.scores


def short_fit(method, **options):
    init = "auto" if method == "gauss-newton" else "ipndm:3:edm"  # auto has several starts
    return tiny_fit(small(), NFES, method, init=init, **SHORT, **options)


def stopped_after_every_event(run, path):
    """(result, events) of a run that is stopped after every event and resumed from `path`.

    A run that resumes says again that its pairs are drawn. Of the many events of a search, which
    test_evaluation has, every ninth is enough.
    """
    events, known, result = [], set(), None

    def stop(event):
        mark = event[:3] if event.phase == TEACHER else event[:7]
        if mark not in known and not (event.phase == SEARCH and event.step % 9):
            known.add(mark)
            events.append(event)
            raise Stop

    while result is None:
        with suppress(Stop):
            result = run(state=path, callback=stop, all_events=True)
    return result, events


@pytest.fixture(scope="module")
def whole():
    """For each method, the outcome of an undisturbed run and how often it called `cancelled`."""

    @cache
    def get(method):
        asked = []
        return outcome(short_fit(method, cancelled=lambda: asked.append(1))), len(asked)

    return get


@pytest.mark.parametrize("method", ALL_METHODS)
def test_stopped_after_every_event(tmp_path, whole, method):
    """When it is finished, the result is read back without training."""
    path, more = tmp_path / "run.safetensors", []
    result, events = stopped_after_every_event(partial(short_fit, method), path)
    phases = {event.phase for event in events}
    assert phases > {CHOICE, TEACHER, SCORING} and (SEARCH in phases) == (method == "gauss-newton")
    assert outcome(result) == whole(method)[0]
    for nfe in NFES:
        best = [e.validation for e in events if e.nfe == nfe and e.phase != SEARCH]
        assert best == sorted(best, reverse=True), "a resumed run knows the best table of all"
    again = short_fit(method, state=path, callback=more.append, all_events=True)
    assert outcome(again) == whole(method)[0] and not more


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_finished_run_that_its_budget_ended_is_read_back(tmp_path, method):
    more = []
    options = {"samples": 24, "budget": 2500, "epochs": 30, "state": tmp_path / "run.safetensors"}
    run = partial(tiny_fit, small(), NFES, method, **options)
    whole = run()
    again = run(callback=more.append, all_events=True)
    assert outcome(again) == outcome(whole) and not more


@pytest.mark.parametrize("calls_per_start", [1, 6000])
def test_a_run_of_several_chunks_resumes_bit_by_bit(tmp_path, monkeypatch, calls_per_start):
    """More pairs than a chunk, in a number that chunks do not divide; two starts or one."""
    monkeypatch.setattr(gauss_newton, "CALLS_PER_START", calls_per_start)
    monkeypatch.setattr("s4s_core.training.search.kept_classical", lambda settings: KEPT)
    sizes = {"samples": 20, "validation": 4, "held_out": 4, "budget": 6000, "starts": 2}
    run = partial(tiny_fit, small(), 5, init="auto", **sizes)
    result, events = stopped_after_every_event(run, tmp_path / "run.safetensors")
    assert len(events) > 5 and max(event.step for event in events) > 3
    assert outcome(result) == outcome(run())


@pytest.mark.parametrize("share", [0.4, 0.97])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_cancelled_between_model_calls(tmp_path, whole, method, share):
    (expected, asked), numbers = whole(method), count()
    path = tmp_path / "run.safetensors"
    with pytest.raises(TrainingCancelled) as error:
        short_fit(method, state=path, cancelled=lambda: next(numbers) >= int(share * asked))
    message_of(error)
    assert outcome(short_fit(method, state=path)) == expected


# --- what a stopped run has paid for is not paid again

UNITS = {"budget": 1500, "samples": 10, "validation": 4, "held_out": 6, "batch": 4, "teacher": 8}
PHASES = (CHOICE, TEACHER, SEARCH, "gauss-newton", SCORING)


class Stops:
    """A model, and a listener that counts its real calls until it stops a run.

    at: (phase, number) of the event to stop at; late: only at the second model call after it.
    """

    def __init__(self, at=None, late=False, **attributes):
        inner = small()
        self.counted = Counted(inner.denoise)
        self.model = changed(inner, denoise=self.counted, **attributes)
        self.at, self.late, self.left = at, late, None
        self.seen, self.saved = dict.fromkeys(PHASES, 0), 0

    def listen(self, event):
        self.saved = self.counted.calls
        self.seen[event.phase] += 1
        if (event.phase, self.seen[event.phase]) == self.at:
            if not self.late:
                raise Stop
            self.left = 2

    def cancelled(self):
        if self.left is not None:
            self.left -= 1
        return self.left == 0

    def run(self, path, cache):
        options = UNITS | {"state": path, "cache": cache, "callback": self.listen}
        return fit(self.model, 3, init="auto", cancelled=self.cancelled, **options)


@pytest.fixture(scope="module")
def undisturbed():
    """(outcome, real model calls, events of each phase) of a run that nobody stops."""
    run = Stops()
    return outcome(run.run(None, None)), run.counted.calls, run.seen


@pytest.mark.parametrize("late", [False, True], ids=["in the callback", "between model calls"])
@pytest.mark.parametrize(
    "phase, cached, fingerprint",
    [
        *((phase, False, None) for phase in PHASES),
        *((phase, True, None) for phase in (TEACHER, "gauss-newton")),
        *((TEACHER, cached, "known") for cached in (True, False)),
        (SEARCH, True, "known"),
    ],
)
def test_no_finished_unit_is_paid_twice(tmp_path, undisturbed, phase, cached, fingerprint, late):
    """A unit is a measured teacher, a batch of pairs, a run of a solver on some pairs of a round,
    an iteration, or a scored table. A run that is stopped in the middle of one repeats just that.
    """
    expected, calls, events = undisturbed
    path, cache = tmp_path / "run", tmp_path / "cache" if cached else None
    first = Stops((phase, events[phase] // 2 + 1), late, fingerprint=fingerprint)
    with pytest.raises((Stop, TrainingCancelled)):
        first.run(path, cache)
    second = Stops(fingerprint=fingerprint)
    assert outcome(second.run(path, cache)) == expected
    assert (first.counted.calls > first.saved) == late
    again = CHECK_CALLS if phase in (CHOICE, TEACHER) else 0  # of a run that has no pairs yet
    assert first.saved + second.counted.calls == calls + again
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"run", "run.lock"} | ({"cache"} if cached and fingerprint else set())


def test_a_run_of_an_older_version_with_a_removed_option_resumes(tmp_path):
    path = tmp_path / "run.safetensors"
    expected = outcome(tiny_fit(small(), 3, state=path, central=False, **SHORT))
    old = read_state(path)
    assert "central" not in old["identity"]["settings"]
    for central, fits in ((False, True), (True, False)):
        old["identity"]["settings"]["central"] = central
        save_state(path, old)
        if fits:
            assert outcome(tiny_fit(small(), 3, state=path, **SHORT)) == expected
        else:
            with pytest.raises(TrainingError, match="other settings"):
                tiny_fit(small(), 3, state=path, **SHORT)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_run_resumes_with_another_batch_to_the_same_tables_but_for_rounding(
    tmp_path, whole, method
):
    """A state of an earlier version holds the batch too."""
    path = tmp_path / "run.safetensors"

    def stop(event):
        raise Stop

    with pytest.raises(Stop):
        short_fit(method, state=path, callback=stop)
    saved = read_state(path)
    assert "batch" not in saved["identity"]["settings"]
    saved["identity"]["settings"]["batch"] = 32
    save_state(path, saved)
    resumed = short_fit(method, state=path, batch=3).pack
    expected = parse_solver(whole(method)[0][0])
    for nfe in NFES:
        ours, theirs = resumed[nfe], expected[nfe]
        np.testing.assert_allclose(ours.sigmas, theirs.sigmas, rtol=1e-4)
        for name, weights in theirs.coefficients.items():
            np.testing.assert_allclose(ours.coefficients[name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        *({"seed": 1}, {"method": "s4s"}, {"samples": 9}, {"init": table_of("pc")}),
        {"nfe": (4, 5), "init": "ipndm:3:edm"},
        {"objective": type("Other", (L2,), {"name": "other"})()},
        {"teacher": default_teacher(small(), 19)},
        {"model": changed(small(), fingerprint="other")},
    ],
)
def test_a_state_of_another_run_is_refused(tmp_path, change):
    path = tmp_path / "run.safetensors"
    same = {"model": changed(small(), fingerprint="one"), "state": path, "init": table_of("lms")}
    tiny_fit(**same)
    before = path.read_bytes()
    with pytest.raises(TrainingError, match="other settings") as error:
        tiny_fit(**same | change)
    assert path.name in str(error.value) and path.read_bytes() == before


def damages(data):
    """Truncations, garbage, and flipped bits all over the file."""
    yield from (b"", b"{}", data[:7], data[: len(data) // 2], data[:-1], data + b"x", data[::-1])
    for place in np.linspace(0, len(data) - 1, 25).astype(int):
        yield data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def test_a_damaged_state_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    tiny_fit(small(), 3, state=path, **SHORT)
    for damaged in damages(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match="Delete it to start over") as error:
            tiny_fit(small(), 3, state=path, **SHORT)
        assert path.name in message_of(error)


def test_a_state_that_cannot_be_read_is_kept(tmp_path, monkeypatch):
    """The fault may pass: nobody is told to delete the run."""

    def refuse(*_):
        raise OSError(5, "Input/output error")

    path = tmp_path / "run.safetensors"
    tiny_fit(small(), 3, state=path, **SHORT)
    monkeypatch.setattr(state, "safe_open", refuse)
    with pytest.raises(TrainingError, match="Could not read .*: Input/output error") as error:
        tiny_fit(small(), 3, state=path, **SHORT)
    assert "elete" not in message_of(error)


def test_states_survive_a_round_trip(tmp_path):
    """Tensors are aligned as new ones: arithmetic on others may differ in the last bits."""
    tensors = [torch.randn(n, dtype=torch.float64) for n in range(1, 12)]
    tensors += [torch.randn(2, 3), torch.arange(5, dtype=torch.uint8)]
    state = {"deep": [{"x": tensors}, [], {}, None, True, 0.1, "text"]}
    save_state(tmp_path / "s", state)
    back = read_state(tmp_path / "s")["deep"]
    assert back[1:] == state["deep"][1:]
    for ours, theirs in zip(back[0]["x"], tensors, strict=True):
        assert ours.data_ptr() % 64 == 0 and ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_a_state_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "folder", tmp_path / "file" / "run"):
        with pytest.raises(TrainingError, match="Could not save the run") as error:
            save_state(path, {"identity": 1})
        message_of(error)
    with pytest.raises(TrainingError, match="Could not save the run"):
        tiny_fit(small(), 3, state=tmp_path / "file" / "run", **SHORT)


def test_what_a_run_killed_in_its_first_write_left_is_removed(tmp_path):
    path = tmp_path / "run.safetensors"
    (tmp_path / f"{temporary_stem(path)}-0123456789abcdef{SUFFIX}").touch()
    tiny_fit(small(), 3, state=path, **SHORT)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, f"{path.name}.lock"]


def test_two_runs_of_one_state_are_refused(tmp_path):
    """The second does not disturb the first; when that ends, the file is free again."""
    path, errors = tmp_path / "new" / "run.safetensors", []

    def meanwhile(event):
        if not errors:
            orphan = path.parent / f"{temporary_stem(path)}-0123456789abcdef{SUFFIX}"
            orphan.touch()
            with pytest.raises(TrainingError, match="in use by another") as error:
                tiny_fit(small(), 3, state=path, **SHORT)
            errors.append(message_of(error))
            assert orphan.exists()

    first = tiny_fit(small(), 3, state=path, callback=meanwhile, **SHORT)
    assert errors and outcome(tiny_fit(small(), 3, state=path, **SHORT)) == outcome(first)
