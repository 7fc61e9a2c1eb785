"""Counts model calls, honours cancellation between them, and never changes what they return."""

from ..errors import TrainingCancelled


class Meter:
    """Wraps a model's denoiser. `calls` is per sample: a batch of 8 counts 8.

    Backward passes do not come by here: who takes gradients adds what they cost.
    """

    def __init__(self, denoise, cancelled=None, calls=0):
        self._denoise, self._cancelled = denoise, cancelled
        self.calls = calls

    def __call__(self, x, sigma, cond=None):
        if self._cancelled is not None and self._cancelled():
            raise TrainingCancelled("Training was cancelled: start it again to go on from there.")
        self.calls += x.shape[0]
        return self._denoise(x, sigma) if cond is None else self._denoise(x, sigma, cond)
