"""Models whose attributes break the contract: one sentence at the door, before any model call."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import ALL_METHODS, changed, message_of, small, table_of, tiny_fit

from s4s_core import sample
from s4s_core.contract import RULES
from s4s_core.errors import ModelError, S4SError, TrainingError
from s4s_core.training.check import CHECK_CALLS

NO_SHAPES = (
    None,
    4,
    (),
    [],
    (0,),
    (-1, 2),
    (2.0,),
    (True,),
    ("4",),
    "46",
    ((6,),),
    (2**33,),
    (1,) * 70,
)
NO_LEVELS = (None, 0, -1.0, math.nan, math.inf, True, "14.6", [1.0], torch.zeros(2), 1j)
NO_FUNCTIONS = (None, 4, "denoise", [], lambda: None, lambda x: x)
BROKEN = [
    *(("space", value) for value in (None, "vp", 4, "", ["ve"], {})),
    *((name, value) for name in ("sigma_min", "sigma_max") for value in NO_LEVELS),
    *(("shape", value) for value in NO_SHAPES),
    *(("denoise", value) for value in NO_FUNCTIONS),
    *(("conditions", value) for value in NO_FUNCTIONS),
    *(("device", value) for value in ("cuda:99", "gpu", "meta", 5.0, object())),
    *(("times", value) for value in (4, "times", object(), torch.zeros(3))),
    *(("takes_guidance", value) for value in (None, 1, "no", torch.zeros(2))),
    *(("fingerprint", value) for value in (4, b"x", [], "\udc80")),
]


def refusal(model, method="gauss-newton"):
    """What fit says to a model; it must not call it."""
    if callable(getattr(model, "denoise", None)) and model.denoise not in NO_FUNCTIONS:
        model.denoise = lambda x, sigma, *rest: pytest.fail("the model was called")
    with pytest.raises(ModelError) as error:
        tiny_fit(model, method=method)
    return message_of(error)


@pytest.mark.parametrize("name, value", BROKEN)
def test_a_broken_attribute_is_named_with_what_it_must_be(name, value):
    said = refusal(changed(small(), **{name: value}))
    assert said.startswith(f"The model's {name} must be {RULES[name].words}, not ")


RAISED = (RuntimeError("boom"), KeyError("x"), ZeroDivisionError(), OSError(5, "io"), Exception())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_attribute_that_cannot_be_read_is_named(name, error):
    def read(self):
        raise error

    model = changed(small(), device="cpu", takes_guidance=False, fingerprint=None)
    broken = type("Broken", (SimpleNamespace,), {name: property(read)})
    known = {key: value for key, value in vars(model).items() if key != name}
    with pytest.raises(ModelError) as raised:
        tiny_fit(broken(**known))
    said = f"The model's {name} cannot be read: it raises {type(error).__name__}."
    assert message_of(raised) == said


@pytest.mark.parametrize("name", ["sigma_min", "sigma_max"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_a_level_that_is_no_number_is_named(name, error):
    def convert(self):
        raise error

    level = type("Level", (), {"__float__": convert})()
    assert refusal(changed(small(), **{name: level})).startswith(f"The model's {name} must be ")


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize(
    "attributes, said",
    [
        ({"sigma_max": 1.0, "sigma_min": 2.0}, "sigma_max must be > sigma_min (2), not 1."),
        ({"sigma_max": 1.0, "sigma_min": 1.0}, "sigma_max must be > sigma_min (1), not 1."),
        ({"space": "flow"}, "sigma_max must be <= 1 in the flow space, not 80."),
        ({"takes_guidance": True, "denoise": lambda x, sigma, cond: x}, "no fourth argument."),
    ],
)
def test_attributes_that_contradict_each_other(method, attributes, said):
    with pytest.raises(ModelError) as error:
        tiny_fit(changed(small(), **attributes), method=method)
    assert message_of(error).endswith(said)


@pytest.mark.parametrize("model", [None, 5, "demo", object(), small])
def test_what_is_no_model_is_told_what_one_needs(model):
    said = refusal(model)
    assert " is no model: it needs space, sigma_min, sigma_max, shape, denoise." in said


CONDITIONS = {
    "short": lambda batch, generator: torch.zeros(max(0, batch - 1)),
    "long": lambda batch, generator: torch.zeros(batch + 1),
    "list": lambda batch, generator: ["a fox"] * batch,
    "text": lambda batch, generator: "a fox",
    "number": lambda batch, generator: batch,
    "scalar": lambda batch, generator: torch.tensor(1.0),
    "mapping": lambda batch, generator: {"prompt": "a fox"},
}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_conditions_of_which_no_rows_can_be_selected(kind):
    model = changed(small(), conditions=CONDITIONS[kind])
    assert "conditions(8, generator) must return None or 8 rows" in refusal(model)


def test_conditions_and_the_third_argument_belong_together():
    def draw(batch, generator):
        return torch.zeros(batch)

    with pytest.raises(ModelError, match="has conditions, but its denoise has no third argument"):
        tiny_fit(changed(small(), conditions=draw, denoise=lambda x, sigma: x))
    with pytest.raises(ModelError, match="has no conditions, but its denoise needs cond"):
        tiny_fit(changed(small(), denoise=lambda x, sigma, cond: x))
    told = changed(small(), conditions=draw, denoise=lambda x, s, cond: small().denoise(x, s))
    assert tiny_fit(told).pack == tiny_fit(small()).pack


def test_conditions_may_be_absent():
    plain = changed(small())
    del plain.conditions
    assert tiny_fit(plain).pack == tiny_fit(small()).pack


@pytest.mark.parametrize(
    "attributes",
    [
        *({"sigma_max": kind(80)} for kind in (int, np.float32, np.float64, torch.tensor)),
        *({"shape": kind([6])} for kind in (list, torch.Size)),
        *({"device": each} for each in ("cpu", torch.device("cpu"), None)),
    ],
)
def test_what_has_worked_still_works(attributes):
    assert tiny_fit(changed(small(), **attributes)).pack == tiny_fit(small()).pack


def test_a_model_that_fails_is_quoted_in_its_check():
    """A shape that the network does not have, for one."""
    with pytest.raises(ModelError, match=r"^The model failed with RuntimeError: .*\(4\)") as error:
        tiny_fit(changed(small(), shape=(4,)))
    assert isinstance(error.value.__cause__, RuntimeError) and message_of(error)


@pytest.mark.parametrize("decode", [4, "decode", lambda: None, [len]])
def test_decode_must_be_a_function(decode):
    with pytest.raises(TrainingError, match="decode must be a function of results") as error:
        tiny_fit(small(), decode=decode)
    message_of(error)


@pytest.mark.parametrize("denoise", NO_FUNCTIONS)
@pytest.mark.parametrize("cond", [None, torch.zeros(2)])
def test_sample_needs_a_function(denoise, cond):
    with pytest.raises(ModelError, match="must be a function denoise") as error:
        sample(denoise, torch.ones(2, 6), table_of("lms"), cond)
    message_of(error)


@pytest.mark.parametrize("x", [None, 1.0, [[1.0]], np.ones((2, 6)), torch.tensor(1.0)])
@pytest.mark.parametrize("dtype", [None, torch.int64, torch.bool, torch.complex64])
def test_sample_needs_noise(x, dtype):
    x = x if dtype is None else torch.ones(2, 6).to(dtype)
    with pytest.raises(ModelError, match="x must be a floating-point tensor") as error:
        sample(small().denoise, x, table_of("lms"))
    message_of(error)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.binary(max_size=4) | st.complex_numbers() | st.sampled_from([torch.zeros(2), int]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from([*RULES]), value=VALUES, method=st.sampled_from(ALL_METHODS))
def test_any_value_of_any_attribute_trains_or_is_refused_in_a_line(name, value, method):
    """It is refused by the end of the model's check."""
    model, calls = changed(small(), **{name: value}), []
    ask = model.denoise

    def counted(x, sigma, *rest):
        calls.append(len(x))
        return ask(x, sigma, *rest)

    if name != "denoise":
        model.denoise = counted
    try:
        tiny_fit(
            model, 2, method, samples=2, validation=2, held_out=2, epochs=1, init="euler:1:edm"
        )
    except S4SError as error:
        message_of(error)
        assert sum(calls) <= CHECK_CALLS
