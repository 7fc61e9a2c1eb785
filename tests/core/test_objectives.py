"""Values of the distances; test_gauss_newton.py has those of LPIPS."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s4s_core.objectives import BANDS, L2, Look, band_rms, chosen_objective, objective

TARGET = torch.zeros(2, 3, 2, 2)


def distances(name, difference):
    """Return the distances of two samples: one off by `difference` everywhere, one exact."""
    result = TARGET.clone()
    result[0] = difference
    return objective(name, None).distance(result, TARGET).tolist()


@pytest.mark.parametrize("difference", [-0.5, 0.01, 2.0])
@pytest.mark.parametrize(
    "name, value",
    [
        ("l2", lambda d: d * d),
        ("l1", abs),
        ("huber", lambda d: 0.03 * (math.sqrt(1 + (d / 0.03) ** 2) - 1)),
    ],
)
def test_a_distance_is_the_mean_over_a_sample(name, value, difference):
    off, same = distances(name, difference)
    assert off == pytest.approx(value(difference), rel=1e-4) and same == 0


def test_huber_is_quadratic_near_zero_and_linear_far_from_it():
    near, far = (distances("huber", d)[0] for d in (0.0003, 30.0))
    assert near == pytest.approx(0.0003**2 / (2 * 0.03), rel=1e-2)
    assert far == pytest.approx(30.0, rel=2e-3)


# --- look


def noise(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def blurred(x, share):
    """A picture without its high frequencies."""
    spectrum = torch.fft.fft2(x)
    radius = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, x.shape[-2:]), indexing="ij"))
    return torch.fft.ifft2(spectrum * torch.from_numpy(radius < share * radius.max())).real


def plain_bands(picture):
    """The RMS in seven bands of one channel [height, width], from the full Fourier transform."""
    height, width = picture.shape
    power = np.abs(np.fft.fft2(picture)) ** 2 / (height * width) ** 2
    radius = np.hypot(*np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij"))
    share = radius / radius.max()
    edges = [(j / 7) ** 2 for j in range(8)]
    members = [(share >= low) & (share < high) for low, high in zip(edges, edges[1:], strict=False)]
    members[-1] |= share == 1
    return np.sqrt([power[each].sum() for each in members])


@given(st.integers(1, 13), st.integers(1, 13), st.integers(0, 99))
def test_bands_hold_all_of_the_mean_square(height, width, seed):
    x = noise(2, 3, height, width, seed=seed)
    bands = band_rms(x)
    assert bands.shape == (2, 3, BANDS)
    torch.testing.assert_close(bands.square().sum(-1), x.square().mean((-2, -1)))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 16), (4, 12, 7), (2, 3, 8, 8)])
def test_look_is_the_mean_square_and_that_of_the_bands(shape):
    """The last shape is a video of 3 frames: each frame of each channel counts alike."""
    result, target = noise(2, *shape), 0.5 * noise(2, *shape, seed=1)
    for row, found in enumerate(Look().distance(result, target).tolist()):
        ours, theirs = (x[row].numpy().reshape(-1, *shape[-2:]) for x in (result, target))
        gaps = [plain_bands(a) - plain_bands(b) for a, b in zip(ours, theirs, strict=True)]
        expected = np.mean((ours - theirs) ** 2) + np.mean([(gap**2).sum() for gap in gaps])
        assert found == pytest.approx(expected, rel=1e-9)
    assert not Look().distance(result, result).any()


def test_look_tells_grain_and_blur_from_an_equal_mean_square():
    target = blurred(noise(1, 3, 32, 32), 0.3)
    grain = noise(1, 3, 32, 32, seed=1)
    grain -= blurred(grain, 0.6)
    other = blurred(noise(1, 3, 32, 32, seed=2), 0.3)

    def off(direction):
        return target + 0.1 * direction / direction.square().mean().sqrt()

    near, dirty, blurry = off(other), off(grain), off(-target)
    l2 = [float(L2().distance(x, target)) for x in (near, dirty, blurry)]
    assert l2 == pytest.approx([0.01] * 3)
    look = [float(Look().distance(x, target)) - 0.01 for x in (near, dirty, blurry)]
    assert look[1] > 5 * look[0] and look[2] > 5 * look[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_look_has_gradients_where_there_is_no_power_and_keeps_the_dtype(dtype):
    target = noise(1, 2, 8, 8).to(dtype)
    result = torch.zeros_like(target, requires_grad=True)
    distance = Look().distance(result, target)
    (slope,) = torch.autograd.grad(distance.sum(), result)
    assert distance.dtype == dtype and slope.isfinite().all() and slope.any()


def test_look_is_the_default_for_pictures():
    for shape, name in {(6,): "l2", (2, 64): "l2", (3, 8, 8): "look", (4, 5, 8, 8): "look"}.items():
        assert chosen_objective("auto", shape) == name
        assert chosen_objective("huber", shape) == "huber"
