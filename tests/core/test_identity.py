"""The identity of a ComfyUI model in solver files: of the checkpoint, without patches on it."""

from types import SimpleNamespace

import torch

from s4s_core.app.comfyui import identity


class SD15:
    """Stands in for the host's class."""


class Base(torch.nn.Module):
    """A model as the host holds it: biases, and the matrices that LoRAs change."""

    def __init__(self, seed=0, config=SD15):
        super().__init__()
        torch.manual_seed(seed)
        self.model_config = config()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5))


def test_the_same_weights_have_the_same_identity_in_any_precision():
    assert identity(Base()) == identity(Base()).lower() and identity(Base()).startswith("comfy:")
    assert identity(Base()) == identity(Base().bfloat16())


def test_patches_do_not_change_it():
    """LoRAs leave biases alone; merges do not, but the host keeps a backup of the checkpoint's."""
    patched, merged, backup = Base(), Base(), {}
    for layer in patched.layers:
        layer.weight.data.mul_(1.1)
    for name, parameter in merged.named_parameters():
        backup[name] = SimpleNamespace(weight=parameter.detach().clone())
        parameter.data.mul_(1.1)
    merged.current_patcher = SimpleNamespace(backup=backup)
    assert identity(patched) == identity(merged) == identity(Base())
    merged.current_patcher = None
    assert identity(merged) == identity(Base())


def test_other_weights_and_other_families_change_it():
    class SDXL:
        pass

    names = {identity(Base()), identity(Base(seed=1)), identity(Base(config=SDXL))}
    assert len(names) == 3
