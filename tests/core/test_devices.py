"""Training on a device without float64, such as Apple's (simulated by helpers/apples.py)."""

import pytest
import torch
from apples import DEVICE, Apple, without_float64
from learners import changed, small, tiny_fit

from s4s_core.candidates import named_start
from s4s_core.schedules.gits import gits_costs
from s4s_core.spaces import as_float64


def test_the_simulated_device_refuses_float64(monkeypatch):
    with without_float64(monkeypatch):
        x = torch.ones(3).to(DEVICE)
        assert isinstance(x, Apple) and (x * 2).sum().item() == 6
        with pytest.raises(TypeError, match="float64"):
            x.double()
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(3)


def test_as_float64_moves_to_the_cpu_if_necessary(monkeypatch):
    with without_float64(monkeypatch):
        doubled = as_float64(torch.ones(3).to(DEVICE))
    assert doubled.dtype == torch.float64 and doubled.device.type == "cpu"
    assert as_float64(torch.ones(3)).dtype == torch.float64


@pytest.mark.parametrize("method", ["gauss-newton", "joint"])
def test_training_needs_no_float64_on_the_device(method, monkeypatch):
    model, tiny = small(), {"method": method, "nfe": 3, "samples": 4, "epochs": 1, "budget": 600}
    here = tiny_fit(model, **tiny)
    with without_float64(monkeypatch):
        there = tiny_fit(changed(model, device=DEVICE), **tiny)
    assert there.pack[3] == here.pack[3] != named_start(model, "ipndm:3:edm", 3, 0.0).table


def test_gits_measures_on_the_device(monkeypatch):
    model, tiny = small(), {"points": 5, "samples": 6, "batch": 4}
    here = gits_costs(model, **tiny)
    with without_float64(monkeypatch):
        there = gits_costs(changed(model, device=DEVICE), **tiny)
    assert torch.equal(there.matrix, here.matrix)
