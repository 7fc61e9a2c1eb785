"""What networks predict (noise, velocity, x0) and the times they are called with."""

from collections.abc import Mapping
from typing import Any

import torch

from s4s_core.errors import ModelError
from s4s_core.spaces import DiscreteTimes

PREDICTIONS = ("epsilon", "v_prediction", "sample")
"""Predictions in the ve space; flow models predict the velocity ("flow")."""


def like(sigma: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return sigma ([batch] or a scalar) in float32 or better, shaped to multiply x."""
    sigma = sigma.to(torch.promote_types(x.dtype, torch.float32))
    return sigma.reshape(sigma.shape + (1,) * (x.ndim - sigma.ndim)) if sigma.ndim else sigma


def network_input(space: str, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Return the network's input: in the ve space, x scaled to variance one."""
    return x / (like(sigma, x) ** 2 + 1).sqrt() if space == "ve" else x


def check_prediction(name: str) -> None:
    """Raise ModelError unless this kind of prediction is supported."""
    if name not in (*PREDICTIONS, "flow"):
        raise ModelError(f"Networks that predict '{name}' are not supported.")


def denoised(
    prediction: str, x: torch.Tensor, output: torch.Tensor, sigma: torch.Tensor
) -> torch.Tensor:
    """Return x0 from a network's output at x, in the core's scaling of x."""
    check_prediction(prediction)
    sigma = like(sigma, x)
    if prediction == "sample":
        return output
    if prediction == "v_prediction":
        scale = sigma**2 + 1
        return x / scale - output * (sigma / scale.sqrt())
    return x - sigma * output


def network_time(times: Any, sigma: torch.Tensor) -> torch.Tensor:
    """Return the times of noise levels in float32, on their device."""
    time: torch.Tensor = times.time(sigma)
    return time.float().to(sigma.device)


_BETAS = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "rescale_betas_zero_snr",
)


def discrete_times(config: Mapping[str, Any]) -> DiscreteTimes:
    """Return the DiscreteTimes of a diffusers scheduler configuration.

    With zero terminal SNR the last sigma is infinite; as in diffusers, it becomes 2^12.
    """
    from diffusers import EulerDiscreteScheduler

    known = {name: config[name] for name in _BETAS if name in config}
    scheduler: Any = EulerDiscreteScheduler(**known)
    return DiscreteTimes(scheduler.alphas_cumprod)


def flow_shift(config: Mapping[str, Any], tokens: int) -> float:
    """Return the shift of a flow scheduler configuration for pictures of `tokens` tokens."""
    if not config.get("use_dynamic_shifting"):
        return float(config.get("shift") or 1.0)
    shortest, longest = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    raised = low + (high - low) * (tokens - shortest) / (longest - shortest)
    mu = torch.tensor(raised, dtype=torch.float64)
    return float(mu if config.get("time_shift_type") == "linear" else mu.exp())
