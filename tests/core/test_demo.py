"""The bundled emoji model and the solver that ships with it."""

import pytest
import torch

from s4s_core import Model, load_solver, sample
from s4s_core.candidates import candidates, rmse
from s4s_core.demo import SOLVERS, WEIGHTS, load_demo
from s4s_core.errors import ModelError
from s4s_core.objectives import chosen_objective
from s4s_core.teacher import default_teacher, draw_noise, draw_pairs
from trainer.config import from_toml

PACK = load_solver(SOLVERS["ve"])
CFG = PACK.metadata["cfg"][0]


@pytest.fixture(scope="module")
def model():
    return load_demo("ve", CFG)


@pytest.fixture(scope="module")
def pairs(model):
    """Teacher pairs from a seed that no training uses."""
    return draw_pairs(model, teacher_of(model), 16, 987_654_321)


def teacher_of(model):
    """The teacher that the bundled solver names."""
    facts = PACK.metadata["teacher"]
    name, order = facts["name"].split(",")[0].split()
    return default_teacher(model, facts["nfe"], solver=(name, int(order)))


def test_the_weights_are_small_and_conditions_follow_their_seed(model):
    assert isinstance(model, Model)
    assert WEIGHTS.stat().st_size <= 8 << 20
    ids = model.conditions(200, torch.Generator().manual_seed(0))
    assert torch.equal(ids, model.conditions(200, torch.Generator().manual_seed(0)))
    assert ids.dtype == torch.int64 and ids.min() >= 0 and ids.max() < len(model.classes)


@pytest.mark.parametrize("level", [0.05, 1.0, 7.0])
def test_every_space_shows_the_same_network(model, level):
    x0, cond = draw_noise(model, 3, 1)
    x, sigma = x0 / 80 * (1 + level), torch.full((3,), level)
    expected = model.denoise(x, sigma, cond)
    flow = load_demo("flow", CFG).denoise(x / (1 + level), sigma / (1 + level), cond)
    vp = load_demo("vp", CFG).denoise(x, sigma, cond)
    torch.testing.assert_close(flow, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(vp, expected, atol=1e-4, rtol=1e-4)


def test_guidance_extrapolates_from_the_null_class(model):
    x, cond = draw_noise(model, 2, 2)
    sigma = torch.full((2,), 80.0)
    plain = load_demo("ve", 1.0)
    with_class, without = plain.denoise(x, sigma, cond), plain.denoise(x, sigma)
    expected = without + CFG * (with_class - without)
    torch.testing.assert_close(model.denoise(x, sigma, cond), expected, atol=1e-4, rtol=1e-4)


def test_unknown_spaces_and_missing_weights_are_explained(tmp_path):
    with pytest.raises(ModelError, match="one of ve, vp, flow"):
        load_demo("sd")
    with pytest.raises(ModelError, match="Could not read the demo model"):
        load_demo("ve", path=tmp_path / "none.safetensors")


def test_the_bundled_solver_beats_every_classical_one(model, pairs):
    assert PACK.nfes == tuple(range(3, 11)) and PACK.metadata["cfg"] == [CFG, CFG]
    ours = rmse(model.denoise, PACK[5], pairs)
    classical = min(rmse(model.denoise, c.table, pairs) for c in candidates(model, 5))
    assert ours < 0.9 * classical


def test_the_bundled_solver_scores_what_its_header_says(model):
    """On the noise that the scores were measured on (the held-out seed of `fit`)."""
    count = from_toml(SOLVERS["ve"].with_suffix(".toml").read_text()).settings().held_out
    held_out = draw_pairs(model, teacher_of(model), count, 3)
    said = PACK.metadata["scores"]["5"]["rmse"]
    assert rmse(model.denoise, PACK[5], held_out) == pytest.approx(said, rel=2e-3)


def test_the_recipe_is_that_of_the_bundled_solver():
    config = from_toml(SOLVERS["ve"].with_suffix(".toml").read_text())
    training = PACK.metadata["training"]
    assert config.nfes == PACK.nfes and [config.model.cfg] * 2 == PACK.metadata["cfg"]
    assert config.title == PACK.metadata["name"] and config.model.kind == "demo"
    assert (config.method, config.seed) == (training["method"], training["seed"])
    assert chosen_objective(config.objective, (3, 32, 32)) == training["objective"]


def test_results_are_pictures(model):
    x, cond = draw_noise(model, 4, 3)
    out = sample(model.denoise, x, PACK[8], cond)
    assert out.shape == (4, 3, 32, 32)
    assert out.abs().max() < 3
