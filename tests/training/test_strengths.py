"""Training for strengths below 1: tables of parts of the way, from the same pictures."""

import pytest
import torch
from learners import Counted, changed, guided, pictures, small, tiny_fit

from s4s_core import fit, sample
from s4s_core.errors import TrainingError
from s4s_core.parts import part_table, relaid
from s4s_core.strength import Below, level_of
from s4s_core.teacher import default_teacher, draw_noise
from s4s_core.training.settings import Goal, Settings
from s4s_core.training.task import TEACHER

STRENGTHS = (0.5, 0.75)


class Stop(Exception):
    pass


def test_goals_come_whole_first_and_then_by_falling_strength():
    goals = Settings(nfes=(6, 4, 5), strengths=(0.3, 0.75, 0.3000001)).goals
    whole = [(4, None), (6, None), (5, None)]
    assert goals == (*whole, *((n, s) for s in (0.75, 0.3) for n, _ in whole))
    assert [Goal(4, 0.3).key, Goal(4).key] == ["4@0.3", "4"]
    assert Goal(4, 0.3).title == "4 steps at strength 0.3"
    for bad in ((0.0,), (1.0,), (1.5,), ("x",)):
        with pytest.raises(TrainingError, match="strengths must be"):
            Settings(strengths=bad)


@pytest.fixture(scope="module", params=["gauss-newton", "s4s-alt"])
def trained(request):
    """The model, and what it was trained to, with the events."""
    model, events = small(), []
    result = tiny_fit(
        model,
        (3, 4),
        request.param,
        strengths=STRENGTHS,
        callback=events.append,
        all_events=True,
    )
    return model, result, events


def test_every_strength_has_a_table_for_every_step_count(trained):
    model, result, _ = trained
    levels = [level_of(model, strength) for strength in sorted(STRENGTHS, reverse=True)]
    found = [(part.nfe, float(part.sigmas[0])) for part in result.pack.parts]
    assert found == [(nfe, level) for nfe in (3, 4) for level in levels]
    scores = result.pack.metadata["scores"]
    assert set(scores) == set(result.pack.named)
    for part in result.pack.parts:
        score = scores[part.part_name]
        assert score["strength"] in STRENGTHS and score["rmse"] <= score["initial"]


@pytest.mark.parametrize("trained", ["gauss-newton"], indirect=True)
def test_a_run_at_a_trained_strength_lands_nearer_than_its_start(trained):
    """On fresh pictures that are noised by hand, against a fine solver from the same start."""
    model, result, _ = trained
    x, _ = draw_noise(model, 64, 987)
    picture = sample(model.denoise, x, default_teacher(model, 40))
    for strength in STRENGTHS:
        view = Below(model, level_of(model, strength))
        noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(5))
        start = picture + view.sigma_max * noise
        want = sample(model.denoise, start, default_teacher(view, 40))
        untrained = relaid(result.pack[4], view.sigma_max, 4)
        learned = part_table(result.pack, view.sigma_max, 0.0, 4, 0.002)
        ours, theirs = (
            float((sample(model.denoise, start, table) - want).square().mean())
            for table in (learned, untrained)
        )
        assert ours < theirs, strength


def test_events_say_what_is_trained(trained):
    _, _, events = trained
    goals = list(dict.fromkeys(event.goal for event in events if event.goal))
    assert goals == list(Settings(nfes=(3, 4), strengths=STRENGTHS).goals)
    drawn = [event for event in events if event.phase == TEACHER]
    assert drawn[-1].step == drawn[-1].total == 3 * (8 + 6 + 6)
    assert {float(event.table.sigmas[0]) for event in drawn} == {80.0}, "the whole way's teacher"
    for event in events:
        if event.strength is not None and event.table is not None:
            assert event.table.sigmas[0] == pytest.approx(level_of(small(), event.strength))


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_a_resumed_run_gives_the_same_bytes(tmp_path, method):
    """Stopped once in each phase of each goal."""
    options = {"method": method, "strengths": (0.6,), "all_events": True, "init": "auto"}
    whole = tiny_fit(guided(shape=(2, 4, 4)), 3, **options)
    stopped, result = set(), None

    def listen(event):
        place = event.phase, event.goal, event.goal is None and event.step // 5
        if event.step > 1 and place not in stopped:
            stopped.add(place)
            raise Stop

    while result is None:
        try:
            model = guided(shape=(2, 4, 4))
            result = tiny_fit(model, 3, state=tmp_path / "run", callback=listen, **options)
        except Stop:
            pass
    assert result.pack == whole.pack and result.calls == whole.calls
    assert {goal for _, goal, _ in stopped} == {None, Goal(3), Goal(3, 0.6)}
    assert not list(tmp_path.glob("run.pairs"))


def test_runs_without_strengths_are_resumed_as_before(tmp_path):
    """A run that an earlier version saved does not name strengths."""
    seen = []
    with pytest.raises(Stop):
        tiny_fit(small(), 3, state=tmp_path / "run", callback=lambda e: stop())
    result = tiny_fit(small(), 3, state=tmp_path / "run", callback=seen.append, strengths=())
    assert result.pack == tiny_fit(small(), 3).pack


def stop():
    raise Stop


def test_any_teacher_that_can_start_lower_teaches_parts():
    model, asked = pictures(), []

    def teacher(x, cond):
        return sample(model.denoise, x, default_teacher(model, 10))

    teacher.nfe = 10
    with pytest.raises(TrainingError, match=r"below\(level\)"):
        tiny_fit(model, 3, teacher=teacher, strengths=(0.5,))

    def below(level):
        def part(x, cond):
            asked.append(level)
            assert x.std() < 2, "not from noise"
            return sample(model.denoise, x, default_teacher(Below(model, level), 10))

        return part

    teacher.below = below
    result = tiny_fit(model, 3, teacher=teacher, strengths=(0.5,))
    assert set(asked) == {level_of(model, 0.5)} and len(result.pack.parts) == 1
    named = tiny_fit(model, 3, teacher=default_teacher(model, 12), strengths=(0.5,))
    assert len(named.pack.parts) == 1


def test_what_no_part_can_do_is_refused_before_any_model_call():
    inner = small()
    silent = changed(inner, denoise=Counted(inner.denoise))
    with pytest.raises(TrainingError, match="Strength 0.3 begins at noise level 0.04.*ended"):
        fit(silent, 3, strengths=(0.3,), ending=0.1)
    with pytest.raises(TrainingError, match="cannot hold 300 tables: use at most 200"):
        fit(silent, range(1, 101), strengths=(0.3, 0.5))
    assert not silent.denoise.calls


def test_a_table_that_is_given_as_start_is_moved_to_each_strength():
    start = tiny_fit(small(), 3).pack[3]
    result = fit(small(), 3, init=start, strengths=(0.5,), budget=4000, seed=1)
    assert result.pack.parts[0].nfe == 3 and "classical" not in result.scores["3"]
