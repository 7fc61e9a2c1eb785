"""The bundled demo model: small class-conditional emoji images, without a download.

One network serves every space. It was trained in the ve space; in the flow space it makes the same
prediction for x = (1 - s) x0 + s eps, and the VP model is the ve space with the 1000 discrete times
of Stable Diffusion.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..atomic import StrPath
from ..errors import ModelError
from ..model import Condition, Model, guided_scale
from ..spaces import DiscreteTimes, alpha
from .network import SIGMA_RANGE, EmojiNet

WEIGHTS = Path(__file__).with_name("emoji.safetensors")
KINDS = ("ve", "vp", "flow")
SOLVERS = {"ve": Path(__file__).with_name("solver.safetensors")}
"""Solver files for the bundled model."""


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or "" if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def load_network(path: StrPath = WEIGHTS) -> tuple[EmojiNet, tuple[str, ...]]:
    """Return the network, frozen and in float32, and the class names of a weights file."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        network = EmojiNet(**json.loads(metadata["config"]))
        network.load_state_dict(state)
        classes = tuple(json.loads(metadata["classes"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"Could not read the demo model's weights at {path}: {error}") from error
    network = network.to(memory_format=torch.channels_last)
    return network.eval().requires_grad_(False), classes


class DemoModel:
    """The emoji network as an `s4s_core.Model`.

    `cfg` is the guidance scale: with 1, a call evaluates the network once; otherwise it evaluates
    the conditional and the unconditional prediction in one doubled batch. Multipliers of guidance
    that are all 0 save the unconditional half. A condition is an int64 tensor [batch] of indices
    into `classes` (or `null`, the class for no condition).
    """

    shape = (3, 32, 32)
    fingerprint: str

    def __init__(
        self,
        network: EmojiNet,
        classes: tuple[str, ...],
        space: str = "ve",
        cfg: float = 1.0,
        times: DiscreteTimes | None = None,
    ) -> None:
        self.network, self.classes, self.null = network, classes, len(classes)
        self.space, self.cfg, self.times = space, float(cfg), times
        self.sigma_min, self.sigma_max = SIGMA_RANGE
        if space == "flow":
            self.sigma_min, self.sigma_max = SIGMA_RANGE[0] / (1 + SIGMA_RANGE[0]), 1.0
        if times is not None:
            self.sigma_min, self.sigma_max = times.sigma_min, times.sigma_max

    @property
    def takes_guidance(self) -> bool:
        return self.cfg != 1

    def denoise(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        cond: Condition | None = None,
        guidance: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Predict x0 from x [batch, 3, 32, 32] at noise level sigma [batch], in x's dtype."""
        point = x.float()
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x))
        if self.times is not None:
            sigma = self.times.sigma(self.times.time(sigma))
        sigma = sigma.float().to(x.device)
        labels = self._labels(cond, x)
        scale = self._scale(guidance)
        if cond is None or bool((scale == 1).all()):
            return self._predict(point, sigma, labels).to(x.dtype)
        labels = torch.cat([labels, torch.full_like(labels, self.null)])
        both = self._predict(point.repeat(2, 1, 1, 1), sigma.repeat(2), labels)
        guided, free = both.chunk(2)
        return torch.lerp(free, guided, scale.to(free)).to(x.dtype)

    def conditions(self, batch: int, generator: torch.Generator) -> torch.Tensor:
        """Draw class ids uniformly, int64 [batch]."""
        return torch.randint(self.null, (batch,), generator=generator, device=generator.device)

    def to(self, device: torch.device | str) -> "DemoModel":
        """Move the network to another device and return the model."""
        self.network.to(device)
        return self

    def _labels(self, cond: Condition | None, x: torch.Tensor) -> torch.Tensor:
        if cond is None:
            return torch.full((len(x),), self.null, dtype=torch.long, device=x.device)
        return torch.as_tensor(cond, dtype=torch.long, device=x.device).expand(len(x))

    def _scale(self, guidance: torch.Tensor | None) -> torch.Tensor:
        """Return the guidance scale of each row, or one scale for all."""
        cfg = torch.tensor(self.cfg, dtype=torch.float64)
        if guidance is None:
            return cfg
        return guided_scale(cfg, guidance.cpu().double()).reshape(-1, 1, 1, 1)

    def _predict(self, x: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scale = 1.0 if self.space == "ve" else alpha(self.space, sigma)
        x0: torch.Tensor = self.network(x, sigma, labels, scale)
        return x0.contiguous()


_CONTRACT: type[Model] = DemoModel  # checked by mypy


def load_demo(space: str = "ve", cfg: float = 1.0, path: StrPath = WEIGHTS) -> DemoModel:
    """Load the bundled model; `space` is "ve" (as trained), "vp" (discrete times) or "flow"."""
    if space not in KINDS:
        raise ModelError(
            f"The demo model has no space '{space}'. Choose one of {', '.join(KINDS)}."
        )
    network, classes = load_network(path)
    times = DiscreteTimes.scaled_linear() if space == "vp" else None
    model = DemoModel(network, classes, "flow" if space == "flow" else "ve", cfg, times)
    model.fingerprint = f"{_digest(Path(path))}-{space}-cfg{cfg:g}"
    return model
