"""What networks predict, and the times that they are told: EPS, V, x0 and flow."""

import torch

from s4s_core.errors import ModelError
from s4s_core.spaces import DiscreteTimes

PREDICTIONS = ("epsilon", "v_prediction", "sample")
"""Predictions of networks in the ve space; those of flow models predict the velocity."""


def like(sigma, x):
    """sigma [batch] (or a scalar) in float32 or better, shaped to multiply x [batch, ...]."""
    sigma = sigma.to(torch.promote_types(x.dtype, torch.float32))
    return sigma.reshape(sigma.shape + (1,) * (x.ndim - sigma.ndim)) if sigma.ndim else sigma


def network_input(space, x, sigma):
    """x as the network of a space wants it: in the ve space scaled to variance one."""
    return x / (like(sigma, x) ** 2 + 1).sqrt() if space == "ve" else x


def denoised(prediction, x, output, sigma):
    """x0 of a network's output at x, in the core's scaling of x."""
    sigma = like(sigma, x)
    if prediction == "sample":
        return output
    if prediction in ("epsilon", "flow"):
        return x - sigma * output
    if prediction == "v_prediction":
        scale = sigma**2 + 1
        return x / scale - output * (sigma / scale.sqrt())
    raise ModelError(f"Networks that predict '{prediction}' are not known here.")


def network_time(times, sigma):
    """Times of sigmas in float32, on the sigmas' device."""
    return times.time(sigma).float().to(sigma.device)


_BETAS = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "rescale_betas_zero_snr",
)


def discrete_times(config):
    """DiscreteTimes of a diffusers scheduler's configuration.

    Zero terminal SNR is an infinite sigma; as in diffusers, it ends at 2^12 instead.
    """
    from diffusers import EulerDiscreteScheduler

    known = {name: config[name] for name in _BETAS if name in config}
    return DiscreteTimes(EulerDiscreteScheduler(**known).alphas_cumprod)


def flow_shift(config, tokens):
    """The shift of a flow scheduler's configuration for pictures of so many tokens."""
    if not config.get("use_dynamic_shifting"):
        return float(config.get("shift") or 1.0)
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    mu = torch.tensor(low + (high - low) * (tokens - few) / (many - few), dtype=torch.float64)
    return float(mu if config.get("time_shift_type") == "linear" else mu.exp())
