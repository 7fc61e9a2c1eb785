"""What is measured of a solver's results: nearness to the teacher's, and how they look."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from s4s_core.errors import ObjectiveError
from s4s_core.objectives import L2, Lpips, band_features, band_rms, makes_pictures

WHITE = 0.94
"""Pictures are in [-1, 1]; a pixel whose channels are all above this is plain white."""
DARK = 1 - 2 * 12 / 255
"""A pixel with a channel below this is darker than white by more than 12 of 255."""
BATCH = 64


def measures(
    results: torch.Tensor, targets: torch.Tensor, lpips: Lpips | None = None
) -> dict[str, Any]:
    """Compare results with the teacher's [n, ...]; the looks are measured of pictures only."""
    errors = (results - targets).flatten(1).double().square().mean(1)
    found: dict[str, Any] = {
        "rmse": float(errors.mean().sqrt()),
        "median": float(errors.sqrt().median()),
        "psnr": float((10 * (4 / errors.clamp(min=1e-12)).log10()).mean()),
    }
    if not makes_pictures(results.shape[1:]):
        return found
    found |= {"look": look(results, targets), "bands": band_ratios(results, targets)}
    share = specks(results, targets)
    if share is not None:
        found["specks"] = share
    if lpips is not None:
        parts = zip(results.split(BATCH), targets.split(BATCH), strict=True)
        distances = [
            lpips.distance(ours.clamp(-1, 1), theirs.clamp(-1, 1)) for ours, theirs in parts
        ]
        found["lpips"] = float(torch.cat(distances).mean())
    return found


def look(results: torch.Tensor, targets: torch.Tensor) -> float:
    """Root mean square of the differences of the RMS in frequency bands, as training scores it."""
    gap = band_features(results.double()) - band_features(targets.double())
    return float(gap.square().sum(1).mean().sqrt())


def band_ratios(results: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """RMS in each frequency band relative to the teacher's, over all pictures and channels."""
    ours, theirs = (band_rms(x.double()).flatten(0, -2) for x in (results, targets))
    return [float(v) for v in (ours.square().mean(0) / theirs.square().mean(0)).sqrt()]


def specks(results: torch.Tensor, targets: torch.Tensor) -> float | None:
    """Share of the teacher's plain white that is darker in the results; None if there is none.

    A pixel is plain white if it and its eight neighbours are.
    """
    lowest, ours = (x.amin(1, keepdim=True) for x in (targets, results))
    plain = -torch.nn.functional.max_pool2d(-lowest, 3, stride=1) > WHITE
    dark = ours[..., 1:-1, 1:-1] < DARK
    count = int(plain.sum())
    return float((plain & dark).sum()) / count if count else None


class L2AndLpips:
    """Mean squared error plus LPIPS, as one sum of squares."""

    name = "l2+lpips-alex"

    def __init__(self, lpips: Lpips) -> None:
        self.lpips = lpips

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([L2().embed(x), self.lpips.embed(x).to(x.dtype)], dim=1)

    def distance(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.embed(result) - self.embed(target)).square().sum(1)


def load_lpips(folder: Path | str) -> Lpips:
    """Load LPIPS (AlexNet) from alexnet.safetensors in a folder: features.N.* and lin0 .. lin4.

    Nothing is downloaded. Raise ObjectiveError unless the file has exactly the network's weights.
    """
    if importlib.util.find_spec("lpips") is None:
        raise ObjectiveError("LPIPS needs the package lpips: pip install lpips")
    import lpips

    path = Path(folder) / "alexnet.safetensors"
    network = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    try:
        given = load_file(path)
        state = {_place(name): _head(name, tensor) for name, tensor in given.items()}
        missing, unexpected = network.load_state_dict(
            state | {f"lins.{k}.model.1.weight": state[f"lin{k}.model.1.weight"] for k in range(5)},
            strict=False,
        )
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ObjectiveError(f"{path} does not hold the weights of LPIPS: {error}") from error
    if unexpected or any(not name.startswith("scaling_layer.") for name in missing):
        raise ObjectiveError(f"{path} lacks {missing}, or has too much: {unexpected}.")
    return Lpips(network, "lpips-alex")


def _place(name: str) -> str:
    """Where `lpips` keeps a tensor: its five slices of AlexNet end at each activation."""
    if name.startswith("lin"):
        return f"{name}.model.1.weight"
    layer = name.split(".")[1]
    slices = {"0": 1, "3": 2, "6": 3, "8": 4, "10": 5}
    return f"net.slice{slices[layer]}.{name.removeprefix('features.')}"


def _head(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A head is a 1x1 convolution in `lpips`, and a vector in the file."""
    return tensor.reshape(1, -1, 1, 1) if name.startswith("lin") else tensor
