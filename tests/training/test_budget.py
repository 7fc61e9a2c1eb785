"""Budgets: what a run may spend, what it spends, and how far it says that it is."""

import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learners import Counted, changed, message_of, small

from s4s_core.app.plan import RunProgress
from s4s_core.errors import TrainingError
from s4s_core.names import EFFORTS, FURTHER_SHARE, METHODS, PART_SHARE
from s4s_core.training.fit import fit
from s4s_core.training.gradient import GradientMethod
from s4s_core.training.plan import CallPlan, plan_of
from s4s_core.training.settings import Settings
from s4s_core.training.state import RunState
from s4s_core.training.task import CHOICE, SCORING, SEARCH, TEACHER

QUICK = EFFORTS["quick"]
SEVERAL = (4, 5, 6, 8)
RUNS = {
    "one": {"nfe": 5, "budget": QUICK},
    "several": {"nfe": SEVERAL, "budget": QUICK},
    "small": {"nfe": SEVERAL, "budget": 3000},
    "named start": {"nfe": (4, 5), "budget": 2000, "init": "ipndm:3:edm"},
    "s4s": {"nfe": (4, 5), "budget": QUICK, "method": "s4s", "rematerialise": False},
}


class Stop(Exception):
    pass


def nfes_of(options):
    nfe = options["nfe"]
    return (nfe,) if isinstance(nfe, int) else nfe


def plan_for(options, teacher=20):
    """The plan of `fit` with these options."""
    others = {key: value for key, value in options.items() if key not in ("nfe", "teacher")}
    return plan_of(Settings.of(others | {"nfes": nfes_of(options)}), teacher)


def counting(**attributes):
    """A cheap model that counts its real calls."""
    inner = small()
    return changed(inner, denoise=Counted(inner.denoise), **attributes)


@pytest.fixture(scope="module")
def whole():
    """For each of RUNS: (result, events, real model calls) of an undisturbed run."""

    @cache
    def get(name):
        model, events = counting(), []
        result = fit(model, callback=events.append, **RUNS[name])
        return result, events, model.denoise.calls

    return get


# --- what is spent


@pytest.mark.parametrize("name", RUNS)
def test_a_budget_includes_every_model_call(whole, name):
    """The choice of a teacher and its pairs are paid once. (A gradient counts as a call.)"""
    (result, events, calls), options = whole(name), RUNS[name]
    further = len(nfes_of(options)) - 1
    assert result.calls <= plan_for(options).total
    assert result.calls <= options["budget"] * (1 + FURTHER_SHARE * further)
    assert events[-1].calls <= result.calls == result.pack.metadata["training"]["calls"]
    if name != "s4s":
        assert calls == result.calls


@pytest.mark.parametrize("name", ["one", "several"])
def test_most_of_a_quick_budget_is_spent_on_training(whole, name):
    plan = plan_for(RUNS[name])
    assert whole(name)[0].calls > 0.75 * plan.total
    assert sum(plan.training.values()) > 0.4 * plan.total


@pytest.mark.parametrize("method", ["s4s", "s4s-alt"])
def test_without_a_budget_a_gradient_method_makes_the_calls_that_are_planned(method):
    options = {"nfe": 3, "method": method, "epochs": 1, "samples": 20, "validation": 5}
    options |= {"held_out": 4, "init": "ipndm:3:edm"}
    assert fit(counting(), **options).calls == plan_for(options).total


@given(
    nfes=st.sets(st.integers(1, 24), min_size=1, max_size=8),
    more=st.integers(0, 40_000),
    inclusive=st.booleans(),
    method=st.sampled_from(sorted(METHODS)),
    init=st.sampled_from(["auto", "ipndm:3:edm", "ipndm:3:gits"]),
    teacher=st.integers(1, 60),
    choice=st.integers(0, 1000),
    setup=st.integers(0, 20_000),
    pairs=st.sampled_from([{}, {"samples": 200, "validation": 3}, {"held_out": 1}]),
    neighbours=st.booleans(),
    strengths=st.lists(st.sampled_from([0.3, 0.5, 0.75]), max_size=2, unique=True).map(tuple),
)
def test_no_plan_exceeds_its_budget(
    nfes, more, inclusive, method, init, teacher, choice, setup, pairs, neighbours, strengths
):
    """Whatever the settings are, if the budget is not refused."""
    told = {"inclusive": inclusive, "method": method, "init": init, "neighbours": neighbours}
    told |= {"nfes": tuple(sorted(nfes)), "strengths": strengths}
    settings = Settings(budget=1 + more, **told, **pairs)
    plan = CallPlan(settings, teacher, choice, setup)
    while lacking := max(plan.lacking(goal, 1) for goal in plan.order):
        settings = replace(settings, budget=settings.budget + lacking)
        plan = CallPlan(settings, teacher, choice, setup)
    budget = settings.budget
    assert all(0 < plan.training[goal] <= plan.budget(goal) <= budget for goal in plan.order)
    if inclusive:
        further = FURTHER_SHARE * budget * (len(nfes) - 1)
        further += len(strengths) * (PART_SHARE * budget * len(nfes) + plan.pairs)
        assert plan.total <= setup + budget + further + 1e-6, "what floats may round"
    others = sum(map(sum, (plan.search.values(), plan.scoring.values())))
    parts = setup + plan.choice + plan.pairs + others + sum(plan.training.values())
    assert plan.total == parts


# --- a budget that is too small


@pytest.mark.parametrize(
    "options",
    [
        {"nfe": 5},
        {"nfe": SEVERAL},
        {"nfe": (3, 20)},
        {"nfe": SEVERAL, "inclusive": False},
        {"nfe": 5, "init": "ipndm:3:gits"},
        {"nfe": (4, 5), "method": "s4s", "epochs": 1},
        {"nfe": 5, "teacher": 8, "samples": 50, "neighbours": False},
    ],
)
def test_a_budget_too_small_for_one_step_is_refused_and_a_sufficient_one_named(options):
    """Before any model call; what is named is enough for a step at every NFE, to the last call."""
    model = counting()
    with pytest.raises(TrainingError, match="too small for one step of training") as error:
        fit(model, budget=60, **options)
    needed = int(re.search(r"at least ([\d,]*\d)", message_of(error))[1].replace(",", ""))
    assert model.denoise.calls == 0 and needed > 60
    if options["nfe"] == (3, 20):
        with pytest.raises(Stop):  # it is accepted; all of it would take too long
            fit(model, budget=needed, callback=stop, **options)
        return
    events = []
    result = fit(model, budget=needed, callback=events.append, **options)
    trained = {event.nfe for event in events if event.loss is not None and event.step}
    assert trained == set(nfes_of(options))
    assert result.calls <= plan_for(options | {"budget": needed}, options.get("teacher", 20)).total


def stop(event):
    raise Stop


def test_a_method_that_wants_less_than_a_step_is_not_told_to_spend_more(monkeypatch):
    """No budget would be enough: its own plan limits it."""
    monkeypatch.setattr(GradientMethod, "planned_calls", lambda *_: 1)
    assert fit(counting(), 4, "s4s", budget=QUICK, epochs=1).calls <= QUICK


# --- progress

PHASES = (CHOICE, TEACHER, SEARCH, "training", SCORING)


def phase_of(event):
    return event.phase if event.phase in PHASES else "training"


@pytest.mark.parametrize("name", RUNS)
def test_progress_never_falls_and_moves_in_every_phase(whole, name):
    plan, events = plan_for(RUNS[name]), whole(name)[1]
    shares = [plan.share(event) for event in events]
    assert shares == sorted(shares) and shares[0] == 0 and 0.95 < shares[-1] <= 1
    assert all(event.step <= event.total and 0 <= event.done <= 1 for event in events)
    for nfe in (None, *nfes_of(RUNS[name])):
        found = {phase: set() for phase in PHASES}
        for event, share in zip(events, shares, strict=True):
            if event.nfe == nfe:
                found[phase_of(event)].add(share)
        expected = (CHOICE, TEACHER) if nfe is None else (SEARCH, "training", SCORING)
        for phase in expected:
            searched = "init" not in RUNS[name] or phase != SEARCH
            assert len(found[phase]) >= 2 or not searched, (nfe, phase)


@pytest.mark.parametrize("name", ["several", "s4s"])
def test_progress_goes_on_where_it_was_after_a_resume(whole, tmp_path, name):
    """Stopped once in each phase of each NFE: what is shown next is at most a unit less."""
    plan, shares = plan_for(RUNS[name]), []
    calls = [event.calls for event in whole(name)[1] if event.phase not in (CHOICE, TEACHER)]
    unit = max(after - before for before, after in pairwise(calls)) / plan.total
    path, stopped, last, result = tmp_path / "run", set(), 0.0, None

    def listen(event):
        shares.append(progress.line(event).progress)
        place = phase_of(event), event.nfe
        if event.step > 1 and place not in stopped:
            stopped.add(place)
            raise Stop

    while result is None:
        shares.clear()
        saved = RunState.read(path)
        progress = RunProgress(plan, share=plan.saved_share(saved) if saved else 0.0)
        with suppress(Stop):
            result = fit(counting(), state=path, callback=listen, **RUNS[name])
        assert shares == sorted(shares) and last - unit <= shares[0] <= last + unit
        last = shares[-1]
    assert len(stopped) >= 2 + 2 * len(nfes_of(RUNS[name]))
    assert result.pack == whole(name)[0].pack and result.calls == whole(name)[0].calls
