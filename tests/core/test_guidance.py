"""Guidance as a table sets it: what a model is told, and what that changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import FAMILIES, guided, small, table_of

from s4s_core.classical import classical_table
from s4s_core.demo import load_demo
from s4s_core.errors import ModelError
from s4s_core.model import guided_scale
from s4s_core.sampling import sample
from s4s_core.schedules import schedule
from s4s_core.teacher import draw_noise


@pytest.fixture(scope="module")
def demo():
    return load_demo("ve", 4.0)


def demo_run(model, guidance=None, nfe=2):
    """(result, rows that the network evaluated) of a short run on two pictures."""
    rows, network = [], model.network
    x, cond = draw_noise(model, 2, 1)
    table = classical_table("ipndm", schedule("edm", nfe, model), 2, "ve")
    handle = network.register_forward_hook(lambda _, given, out: rows.append(len(given[0])))
    try:
        with torch.no_grad():
            result = sample(model.denoise, x, table.replace(guidance=guidance), cond)
    finally:
        handle.remove()
    return result, rows


@given(st.floats(1, 30), st.floats(0, 3))
def test_the_scale_is_exact_at_zero_and_one(cfg, multiplier):
    assert guided_scale(cfg, 0.0) == 1 and guided_scale(cfg, 1.0) == cfg
    assert guided_scale(cfg, multiplier) == pytest.approx(1 + multiplier * (cfg - 1))
    scale = guided_scale(torch.tensor(cfg), torch.tensor([0.0, 1.0]))  # float32
    assert scale.tolist() == [1, torch.tensor(cfg).item()]


@pytest.mark.parametrize("family", FAMILIES)
def test_ones_change_no_bit(family, demo):
    """Neither of a model that is told them, nor of the bundled one at CFG 4."""
    model, table = guided(), table_of(family)
    x, _ = draw_noise(model, 3, 1)
    plain = sample(model.denoise, x, table)
    assert torch.equal(sample(model.denoise, x, table.replace(guidance=[1] * 4)), plain)
    other = sample(model.denoise, x, table.replace(guidance=[1, 1, 1, 0.9]))
    assert not torch.equal(other, plain)
    assert torch.equal(demo_run(demo, [1, 1])[0], demo_run(demo)[0])


def test_a_multiplier_of_zero_is_the_conditional_prediction_and_saves_the_other_half(demo):
    conditional, halves = demo_run(load_demo("ve", 1.0))
    result, rows = demo_run(demo, [0, 0])
    assert torch.equal(result, conditional) and rows == halves == [2, 2]
    assert demo_run(demo, [1, 0])[1] == [4, 2] and demo_run(demo)[1] == [4, 4]


@pytest.mark.parametrize("cond", [None, torch.zeros(3)])
def test_every_row_is_told_the_multiplier_of_its_call(cond):
    told, table = [], table_of("pc").replace(guidance=[0, 0.5, 1, 2])

    def denoise(x, sigma, given, guidance):
        assert given is cond or torch.equal(given, cond)
        assert guidance.shape == sigma.shape and guidance.dtype == torch.float32
        told.append(set(guidance.tolist()))
        return x * 0.5

    sample(denoise, torch.randn(3, 6).half(), table, cond)
    assert told == [{0}, {0.5}, {1}, {2}]
    sample(denoise, torch.randn(3, 6).half(), table, cond, start=2)
    assert told[4:] == [{1}, {2}]


def test_a_model_that_cannot_be_told_is_refused_before_its_first_call():
    model, calls, table = small(), [], table_of("lms").replace(guidance=[1, 1, 1, 0.5])
    x, _ = draw_noise(model, 2, 1)

    def denoise(x, sigma, cond=None):
        calls.append(sigma)
        return model.denoise(x, sigma)

    with pytest.raises(ModelError, match="the model cannot be told") as error:
        sample(denoise, x, table)
    assert "\n" not in str(error.value) and "guidance=None" in str(error.value) and not calls
    plain = sample(denoise, x, table.replace(guidance=None))
    assert torch.equal(plain, sample(model.denoise, x, table_of("lms")))
