"""A simulated device without float64, like Apple's GPUs.

Its tensors claim to be on "meta", a device that every torch knows and that computes nothing; their
numbers are in a tensor on the CPU.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from s4s_core import spaces

DEVICE = torch.device("meta")
COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
INDEXED = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")


class Apple(torch.Tensor):
    """A tensor on the simulated device; `inner` holds its numbers."""

    @staticmethod
    def __new__(cls, inner):
        shape = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=DEVICE, **shape
        )

    def __init__(self, inner):
        self.inner = inner

    def __setitem__(self, index, value):
        """Turn a list into a tensor, which would otherwise end up on the real "meta"."""
        super().__setitem__(torch.tensor(index) if isinstance(index, list) else index, value)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _SimulatedDevice(TorchDispatchMode):
    """Creates the tensors that are requested on DEVICE."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def _dispatch(func, args, kwargs):
    """Run an operation on the CPU; return its results on the device that they belong to."""
    name, given = func._schema.name, tree_flatten((args, kwargs))[0]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    devices = [value for value in given if isinstance(value, torch.device)]
    apples = [tensor for tensor in tensors if isinstance(tensor, Apple)]
    if apples and name not in COPIES:
        _check_places(name, tensors)
    lands = devices[0] == DEVICE if devices else bool(apples)
    if (name, func._overloadname) == ("aten::to", "other"):
        lands = isinstance(args[1], Apple)
    out = func(*tree_map(_here, args), **tree_map(_here, kwargs))
    if func._schema.is_mutable:
        return out if not apples or out is None else args[0]
    if apples and not lands and out.dtype != apples[0].dtype:
        raise TypeError("A copy from the device must not change the dtype.")
    return tree_map(_there, out) if lands else out


def _check_places(name, tensors):
    """Allow tensors of two devices in one operation only as indices or scalars."""
    for tensor in tensors:
        index = name in INDEXED and not tensor.is_floating_point()
        if not isinstance(tensor, Apple) and tensor.ndim > 0 and not index:
            raise RuntimeError(f"{name} mixes tensors of two devices.")


def _here(value):
    if isinstance(value, Apple):
        return value.inner
    away = isinstance(value, torch.device) and value == DEVICE
    return torch.device("cpu") if away else value


def _there(value):
    if not isinstance(value, torch.Tensor) or isinstance(value, Apple):
        return value
    if value.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype.")
    with torch.inference_mode(False):  # views of ordinary tensors must not be inference tensors
        return Apple(value)


@contextmanager
def without_float64(monkeypatch):
    """Provide a DEVICE without float64."""
    monkeypatch.setattr(spaces, "WITHOUT_FLOAT64", (*spaces.WITHOUT_FLOAT64, DEVICE.type))
    with _SimulatedDevice():
        yield
