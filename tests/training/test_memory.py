"""Peak memory of training, for a network whose activations dominate."""

import pytest
import torch
from learners import TINY, task_of

from s4s_core import classical_table, sample, schedule
from s4s_core.training import gauss_newton
from s4s_core.training.gradient import Descent
from s4s_core.training.parameters import Parameters
from s4s_core.training.student import Student
from tools.bench.memory import peak_bytes

BATCH = 8


class Network(torch.nn.Module):
    """A small network, 128 times as wide as its input."""

    space, sigma_min, sigma_max, shape, times = "ve", 0.02, 15.0, (1, 16, 16), None

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        sizes = [1, 128, 128, 1]
        pairs = zip(sizes[:-1], sizes[1:], strict=True)
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 1) for a, b in pairs)

    def denoise(self, x, sigma, cond=None):
        scale = (1 + sigma.reshape(-1, 1, 1, 1) ** 2).rsqrt()
        h = x * scale
        for layer in self.layers[:-1]:
            h = torch.nn.functional.silu(layer(h))
        return x * scale**2 + 0.3 * self.layers[-1](h).tanh()

    def conditions(self, batch, generator):
        return None


@pytest.fixture(scope="module")
def model():
    return Network()


def table_of(model, nfe):
    return classical_table("ipndm", schedule("edm", nfe, model), 3, model)


def test_the_measure_sees_what_is_alive():
    def hold():
        kept = [torch.ones(1000, dtype=torch.float64) for _ in range(3)]
        for _ in range(5):
            kept[0] = torch.ones(1000, dtype=torch.float64)  # the old one goes after the new one
        del kept

    assert peak_bytes(hold) == 4 * 8000


def sampling_peak(model, nfe):
    x = torch.randn(BATCH, *model.shape) * model.sigma_max
    with torch.inference_mode():
        return peak_bytes(lambda: sample(model.denoise, x, table_of(model, nfe)))


@pytest.mark.parametrize("nfe", [4, 8])
def test_gauss_newton_needs_the_memory_of_sampling(model, nfe):
    task = task_of(model, nfe, samples=BATCH, validation=BATCH, batch=BATCH)
    parameters = Parameters.of(table_of(model, nfe), (model.sigma_min, model.sigma_max))
    state = {}
    peak = peak_bytes(lambda: gauss_newton.refine(task, parameters, state, iterations=1))
    assert state["iteration"] == 1
    assert peak <= 1.1 * sampling_peak(model, nfe)


def gradient_peak(model, nfe, rematerialise):
    task = task_of(model, nfe, samples=BATCH, validation=BATCH, batch=BATCH)
    student = Student(model, table_of(model, nfe))
    descent = Descent(task, student, "joint", {"seed": 0}, rematerialise=rematerialise)
    return peak_bytes(lambda: descent._step(torch.arange(BATCH), descent.phases[0]))


def test_rematerialised_training_hardly_grows_with_the_calls(model):
    four, eight = (gradient_peak(model, nfe, True) for nfe in (4, 8))
    assert eight <= 1.3 * four
    assert gradient_peak(model, 8, False) > 1.7 * gradient_peak(model, 4, False) > 3 * four


def test_a_teacher_needs_the_memory_of_sampling(model):
    """Weights that require gradients must not keep 20 calls of activations."""
    peak = peak_bytes(lambda: task_of(model, samples=BATCH, validation=TINY["validation"]))
    assert peak <= 1.3 * sampling_peak(model, 4)
