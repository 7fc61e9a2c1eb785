"""Align Your Steps (Sabour et al.): the published noise levels of three models, interpolated.

The tables are the paper's, ten steps each. Other step counts interpolate log sigma linearly over
the index; other ranges of sigma are mapped linearly in log sigma.
"""

import numpy as np
import torch

from ..errors import TableError
from ..model import Model

TABLES = {
    "sd1": (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029),
    "sdxl": (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029),
    "svd": (700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),
}


def ays(n: int, model: Model, low: float, high: float, variant: str = "sd1") -> torch.Tensor:
    """Return the nodes of a published table (`sd1`, `sdxl`, `svd`) for a model of the ve space."""
    if model.space != "ve":
        raise TableError("ays has no table for flow models. Choose another schedule.")
    if variant not in TABLES:
        raise TableError(f"ays has no table '{variant}'. Choose one of {', '.join(TABLES)}.")
    logs = np.log(TABLES[variant])
    logs = np.interp(np.linspace(0, 1, n + 1), np.linspace(0, 1, len(logs)), logs)
    share = (logs - logs[0]) / (logs[-1] - logs[0])
    return torch.from_numpy(np.exp(np.log(high) + share * (np.log(low) - np.log(high))))
