"""Peak of the bytes that live tensors hold while a function runs."""

import weakref

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Counts every storage that an operation returns, until it is freed."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = set()

    def _freed(self, key, size):
        self._seen.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if hasattr(leaf, "untyped_storage"):
                storage = leaf.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self._seen:
                    self._seen.add(key)
                    self.now += size
                    weakref.finalize(storage, self._freed, key, size)
        self.peak = max(self.peak, self.now)
        return out


def peak_bytes(function):
    """The peak while `function()` runs, above what was there before."""
    with _Live() as live:
        function()
    return live.peak
