"""Extreme but possible inputs to sampling and training: no crash, no silent nonsense."""

import math

import pytest
import torch
from learners import changed, message_of, small, table_of, tiny_fit

from s4s_core import classical_table, fit, sample, schedule
from s4s_core.demo import load_demo
from s4s_core.errors import ModelError, S4SError
from s4s_core.names import SCHEDULES

NFE = 5
PLACES = [(call, value) for call in range(NFE) for value in (math.nan, math.inf, -math.inf, 1e38)]


def noise(model, count=3):
    return float(model.sigma_max) * torch.randn(
        count, *model.shape, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("call, value", PLACES)
@pytest.mark.parametrize("solver", ["ipndm", "unipc-bh2"])
def test_a_bad_row_stays_in_its_row(solver, call, value):
    """If one image of a batch turns to NaN, the others keep every bit."""
    model, number = small(), iter(range(100))

    def broken(x, sigma):
        out = model.denoise(x, sigma).clone()
        if next(number) == call:
            out[1] = value
        return out

    table = classical_table(solver, schedule("edm", NFE, model), 3, "ve")
    x = noise(model)
    whole, hurt = sample(model.denoise, x, table), sample(broken, x, table)
    assert torch.equal(hurt[[0, 2]], whole[[0, 2]])
    assert not torch.equal(hurt[1], whole[1])


@pytest.mark.parametrize("cfg", [-3.0, 0.0, 1.0, 30.0, 1000.0])
def test_any_guidance_gives_finite_pictures(cfg):
    model = load_demo(cfg=cfg)
    x = noise(model, 1)
    with torch.inference_mode():
        out = sample(model.denoise, x, table_of("lms", nfe=4), torch.tensor([0]))
    assert out.isfinite().all() and out.shape == x.shape


@pytest.mark.parametrize("low, high", [(1e-8, 1e8), (1e-3, 1.001e-3), (0.5, 700.0), (1e-5, 1e-4)])
@pytest.mark.parametrize("name", [n for n in SCHEDULES if n not in ("gits", "ays", "dmn")])
def test_any_range_of_noise_levels(name, low, high):
    model = changed(small(), sigma_min=low, sigma_max=high)
    nodes = schedule(name, 6, model, low)
    assert nodes[0] == high and nodes[-1] == low and (nodes.diff() < 0).all()
    for solver in ("ipndm", "dpmpp", "unipc-bh2"):
        table = classical_table(solver, nodes, 3, "ve")
        assert sample(model.denoise, noise(model), table).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("family", ["lms", "pc", "ss"])
def test_half_precision_models_stay_near_their_float32_result(family, space, dtype):
    """The loop works in float32; only the model itself rounds."""
    model, table = small(space), table_of(family, space)

    def half(x, sigma):
        return model.denoise(x.to(dtype).float(), sigma.float()).to(dtype)

    x = noise(model)
    error = (sample(half, x, table) - sample(model.denoise, x, table)).abs().max()
    assert error < (0.02 if dtype == torch.float16 else 0.15)


@pytest.mark.parametrize("nfe, order", [(1, 1), (2, 2), (2, 4)])
@pytest.mark.parametrize("method", ["gauss-newton", "s4s", "joint"])
def test_very_few_calls_can_be_trained(nfe, order, method):
    """Fewer than the order, too."""
    result = tiny_fit(small(), nfe, method, init=f"ipndm:{order}:edm")
    score = result.scores[str(nfe)]
    assert result.pack[nfe].nfe == nfe and score["rmse"] <= score["initial"] * (1 + 1e-9)


@pytest.mark.parametrize(
    "method, options",
    [
        *(("gauss-newton", {"consistent": True}), ("s4s", {"consistent": True})),
        ("gauss-newton", {"coefficients": False}),
    ],
)
def test_one_call_without_a_free_parameter_returns_the_start(tmp_path, method, options):
    """A single weight must be one, and the times are the ends of the range."""
    for _ in range(2):
        state = tmp_path / "run.safetensors"
        result = tiny_fit(small(), [1, 2], method, init="ipndm:1:edm", state=state, **options)
        start = classical_table("ipndm", schedule("edm", 1, small()), 1, "ve")
        assert result.pack[1] == start and result.log == []


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_models_of_any_scale_can_be_trained(scale):
    """Latents may be tiny or huge: training has no absolute scale."""
    inner = small()

    def denoise(x, sigma):
        return inner.denoise(x / scale, sigma / scale) * scale

    levels = {"sigma_min": inner.sigma_min * scale, "sigma_max": inner.sigma_max * scale}
    model = changed(inner, denoise=denoise, times=None, **levels)
    plain, scaled = (tiny_fit(m, 4).scores["4"]["rmse"] for m in (inner, model))
    assert scaled / scale == pytest.approx(plain, rel=0.5)


ANSWERS = {
    **{"shape": lambda x, sigma: x[:, :2], "rows": lambda x, sigma: x[:1]},
    **{"nothing": lambda x, sigma: None, "list": lambda x, sigma: [x]},
    **{"number": lambda x, sigma: 1.0, "whole": lambda x, sigma: x.long()},
    **{"true": lambda x, sigma: x > 0, "complex": lambda x, sigma: x.to(torch.complex64)},
    "device": lambda x, sigma: torch.empty_like(x, device="meta"),
}


@pytest.mark.parametrize("kind", [*ANSWERS, "error"])
@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_models_that_break_the_contract_get_one_clear_line(kind, method):
    """A model's own error is not hidden."""

    def broken(x, sigma):
        raise ModelError("The checkpoint is gone: load it again.")

    denoise = ANSWERS.get(kind, broken)
    with pytest.raises(S4SError, match="load it again" if denoise is broken else None) as error:
        fit(changed(small(), denoise=denoise), 4, method, samples=4, budget=3000)
    message_of(error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_that_answer_in_another_precision_can_be_trained(dtype):
    inner = small()
    model = changed(inner, denoise=lambda x, s: inner.denoise(x, s).to(dtype))
    assert math.isfinite(tiny_fit(model, 4).scores["4"]["rmse"])
