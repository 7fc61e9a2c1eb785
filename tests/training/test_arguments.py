"""What `fit` is given besides a model: one sentence at the door, before any model call."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learners import TINY, changed, message_of, pictures, small, table_of, tiny_fit

from s4s_core.errors import ModelError, ObjectiveError, S4SError
from s4s_core.objectives import L2
from s4s_core.teacher import default_teacher
from s4s_core.training.fit import fit
from s4s_core.training.settings import Settings

WHOLE = (None, True, -1, 1.5, 5.0, math.nan, "a", b"5", [], 2**70, 1j, torch.tensor(1.0))
NUMBERS = (None, True, -1.0, math.nan, math.inf, "x", [], 10**400, 1j)
FLAGS = (None, 0, 1, "no", "", [], np.float64(1))
TEXTS = (None, 5, b"x", [], {}, ["ipndm:3:edm"])
FUNCTIONS = (5, "x", [], torch.zeros(2), lambda: None, lambda x, y, z: None)
PATHS = (5, b"x", "", "\0", "x" * 5000, [], 1.5)
BROKEN = {
    "nfe": (*WHOLE, 0, "5", [5, "a"], [None], [1.5], [[4]], {}, torch.tensor([4.5])),
    "seed": (*(value for value in WHOLE if value != -1), 2**63),
    "budget": (*WHOLE[1:], 0),
    **{name: (*WHOLE, 0) for name in ("starts", "batch", "epochs")},
    **{name: WHOLE for name in ("samples", "validation", "held_out")},
    **{name: NUMBERS for name in ("ending", "relax")},
    "rate": (*NUMBERS, 0),
    **{
        name: FLAGS
        for name in ("coefficients", "times", "fixed", "guidance", "neighbours", "inclusive")
    },
    **{name: FLAGS for name in ("rematerialise", "autocast")},
    **{name: TEXTS for name in ("method", "consistent", "domain", "follow", "init")},
    "callback": FUNCTIONS,
    "cancelled": (5, "x", [], lambda event: None),
    "decode": FUNCTIONS,
    **{name: PATHS for name in ("cache", "state")},
    "teacher": ("abc", 0, -1, True, 5.0, 10**6, [], torch.zeros(2), lambda x: x),
    "objective": (5, [], b"l2", object(), lambda result, target: 0),
    "nfes": ((4,),),
}


def untouched():
    """A model that must not be called."""
    return changed(small(), denoise=lambda x, sigma: pytest.fail("the model was called"))


@pytest.mark.parametrize("name, value", [(name, v) for name in BROKEN for v in BROKEN[name]])
def test_a_wrong_argument_is_named_before_any_model_call(name, value):
    with pytest.raises(S4SError, match=name) as error:
        fit(untouched(), **TINY | {name: value})
    message_of(error)


@pytest.mark.parametrize(
    "options",
    [
        *({"nfe": value} for value in (np.int64(4), [4, np.int32(4)], np.array([4]), (4,), {4})),
        {"seed": np.int64(0), "samples": np.int16(8), "epochs": np.uint8(2)},
        {"ending": 0, "relax": np.float32(1), "rate": np.float64(0.005)},
    ],
)
def test_numbers_of_other_kinds_are_numbers(options):
    assert tiny_fit(small(), **options).pack == tiny_fit(small()).pack


def test_settings_hold_plain_numbers():
    """They are saved as JSON."""
    settings = Settings(nfes=(np.int64(5), 4), rate=np.float32(0.5), ending=0)
    assert settings == Settings(nfes=(4, 5), rate=0.5)
    assert {type(value) for value in (*settings.nfes, settings.seed)} == {int}
    assert {type(value) for value in (settings.rate, settings.ending)} == {float}


# --- tables


@pytest.mark.parametrize("name", ["init", "teacher"])
@pytest.mark.parametrize(
    "table, said",
    [
        (table_of("lms", "flow"), "space flow, but the model's is ve"),
        (default_teacher(changed(small(), sigma_max=500.0), 4), "from noise level 500 to 0"),
        (default_teacher(changed(small(), sigma_max=14.6), 4), "from noise level 14.6 to 0"),
        (default_teacher(small(), 4, ending=0.001), "from noise level 80 to 0.001"),
    ],
    ids=["space", "above", "below", "ending"],
)
def test_a_table_for_another_model_is_refused(name, table, said):
    with pytest.raises(S4SError, match=f"{name} is a table .*{said}") as error:
        tiny_fit(untouched(), **{name: table})
    message_of(error)


@pytest.mark.parametrize("name", ["init", "teacher"])
def test_levels_of_a_table_may_be_rounded(name):
    model = small()
    rounded = changed(model, sigma_max=79.95, sigma_min=0.0020001)
    tiny_fit(rounded, **{name: default_teacher(model, 4, ending=0.002)})


# --- teachers


def teaching(answer=lambda x: 0.01 * x, **attributes):
    def teacher(x, cond):
        return answer(x)

    vars(teacher).update(attributes)
    return teacher


@pytest.mark.parametrize(
    "name, value",
    [
        *(("nfe", value) for value in (None, "x", -5, 1.5, True, [])),
        *(("name", value) for value in (None, 5, b"x", "\udc80")),
        *(("key", value) for value in (5, b"x", [], "\udc80")),
    ],
)
def test_a_broken_attribute_of_a_teacher_is_named(name, value):
    with pytest.raises(S4SError, match=f"The teacher's {name} must be ") as error:
        tiny_fit(untouched(), teacher=teaching(**{name: value}))
    message_of(error)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: None,
        lambda x: 1.0,
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[:, :1],
        lambda x: x[:1],
        lambda x: x.sum(),
        lambda x: x.unsqueeze(1),
        lambda x: x.long(),
        lambda x: x > 0,
        lambda x: x.to(torch.complex64),
        lambda x: x.to_sparse(),
        lambda x: x.to("meta"),
    ],
)
def test_wrong_results_of_a_teacher_are_refused(answer):
    with pytest.raises(ModelError, match="^The teacher returned .* must return a dense") as error:
        tiny_fit(small(), teacher=teaching(answer))
    message_of(error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_teacher_may_have_another_precision(dtype):
    made = tiny_fit(small(), teacher=teaching(lambda x: (0.125 * x.half()).to(dtype)))
    assert made.pack == tiny_fit(small(), teacher=teaching(lambda x: 0.125 * x.half())).pack


# --- objectives


class Squares(L2):
    name = "mine"

    def distance(self, result, target):
        return (result - target).flatten(1).square().mean(1)


def objective(**attributes):
    made = Squares()
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize(
    "broken, said",
    [
        (SimpleNamespace(distance=L2().distance, embed=L2().embed), "without name is no objective"),
        (SimpleNamespace(name="mine", embed=L2().embed), "without distance is no objective"),
        (objective(name=5), "The objective's name must be text, not 5"),
        (objective(distance=lambda result: 0), "distance must be a function of result and target"),
        (objective(embed=4), "The objective's embed must be a function of x"),
    ],
)
def test_a_broken_attribute_of_an_objective_is_named(broken, said):
    with pytest.raises(ObjectiveError, match=said) as error:
        tiny_fit(untouched(), objective=broken)
    message_of(error)


@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
@pytest.mark.parametrize(
    "distance",
    [
        lambda result, target: None,
        lambda result, target: (result - target).square().sum(),
        lambda result, target: (result - target).square(),
        lambda result, target: (result - target).square().sum(1).tolist(),
        lambda result, target: (result - target).sum(1) > 0,
    ],
)
def test_wrong_distances_are_refused(method, distance):
    with pytest.raises(ObjectiveError, match="must return the distance of each") as error:
        tiny_fit(small(), method=method, objective=objective(distance=distance))
    message_of(error)


@pytest.mark.parametrize(
    "embed", [lambda x: None, lambda x: x.sum(), lambda x: x.sum(1), lambda x: x[:1], torch.isnan]
)
def test_wrong_features_are_refused(embed):
    with pytest.raises(ObjectiveError, match="must return features") as error:
        tiny_fit(small(), objective=objective(embed=embed))
    message_of(error)


def reused(function, results):
    def reusing(*given):
        result = function(*given)
        return results.setdefault(result.shape, torch.empty_like(result)).copy_(result)

    return reusing


def writing(function, at):
    def spoiling(*given):
        result = function(*given).clone()
        given[at].zero_()
        return result

    return spoiling


@pytest.mark.parametrize(
    "spoiled",
    [
        {"embed": reused(Squares().embed, {})},
        {"embed": writing(Squares().embed, 0)},
        {"distance": writing(Squares().distance, 0)},
        {"distance": writing(Squares().distance, 1)},
        {"distance": reused(lambda *given: Squares().distance(*given).double(), {})},
    ],
    ids=["features", "x", "result", "target", "distances"],
)
def test_an_objective_that_writes_or_reuses_its_results_spoils_nothing(spoiled):
    objectives = Squares(), objective(**spoiled)
    clean, dirty = (tiny_fit(pictures(), batch=3, objective=each) for each in objectives)
    assert dirty.pack == clean.pack and dirty.scores == clean.scores
