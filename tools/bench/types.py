"""Types that the benchmarks share."""

from collections.abc import Callable
from typing import Any

import torch

Model = Any
"""A model as s4s_core takes it: denoise(x, sigma), space, sigma_min, sigma_max, shape, ..."""

Denoise = Callable[..., torch.Tensor]
"""(x, sigma) or (x, sigma, condition) -> x0."""
