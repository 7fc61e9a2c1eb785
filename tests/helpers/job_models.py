"""Models for the tests of jobs, opened by the kind `python`; S4S_TEST_DEATHS makes them kill."""

import os
import signal
from pathlib import Path

import torch

from s4s_core.mixture import GaussianMixture


def pictures(choice):
    """A small mixture whose results are pictures of 8 x 8 pixels.

    S4S_TEST_DEATHS may name a file of numbers: at that call the process kills itself, as kill -9
    does, and the number is crossed out.
    """
    model = GaussianMixture.random(6, (3, 8, 8), seed=1, spread=0.5, scale=0.3, rank=4)
    model.fingerprint = "pictures"
    model.decode = lambda x: (x.float() / 2 + 0.5).clamp(0, 1)
    model.denoise = _mortal(model.denoise)
    return model


def latents(choice):
    """A small mixture of four channels, which its decoder turns into colours."""
    model = GaussianMixture.random(4, (4, 4, 4), seed=1, spread=0.5, scale=0.3, rank=4)
    model.decode = lambda x: (x[:, :3].float() / 2 + 0.5).clamp(0, 1)
    return model


def modest(choice):
    """The same with memory for two samples at once."""
    model = latents(choice)
    denoise = model.denoise

    def fitting(x, sigma, cond=None):
        if len(x) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return denoise(x, sigma)

    model.denoise = fitting
    return model


def _mortal(denoise):
    path = os.environ.get("S4S_TEST_DEATHS")
    calls = 0

    def count(x, sigma, cond=None):
        nonlocal calls
        calls += 1
        deaths = Path(path).read_text().split() if path else []
        if deaths and calls >= int(deaths[0]):
            Path(path).write_text(" ".join(deaths[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
        return denoise(x, sigma)

    return count


def not_a_number(choice):
    """A model whose results are NaN, as half precision makes them."""
    model = pictures(choice)
    model.denoise = lambda x, sigma, cond=None: torch.full_like(x, float("nan"))
    return model


def greedy(choice):
    """A model that always runs out of memory."""
    model = pictures(choice)

    def denoise(x, sigma, cond=None):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    model.denoise = denoise
    return model
