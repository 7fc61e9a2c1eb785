"""Pictures and statistics of a trained emoji model, for tools/train_demo.py."""

import math
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from s4s_core import classical_table, sample, schedule
from s4s_core.demo import DemoModel
from s4s_core.demo.network import EmojiNet
from tools.emoji_data import NAMES, SIZE


@torch.inference_mode()
def samples(
    net: EmojiNet, labels: torch.Tensor, seed: int = 0, cfg: float = 2.0, nfe: int = 20
) -> torch.Tensor:
    """Draw pictures in [-1, 1] of class ids [N], with `nfe` calls each."""
    model = DemoModel(net, tuple(NAMES), "ve", cfg)
    table = classical_table("ipndm", schedule("edm", nfe, model), order=3, space=model)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), *model.shape, generator=generator)
    parts = zip(noise.split(64), labels.split(64), strict=True)
    return torch.cat(
        [sample(model.denoise, x * model.sigma_max, table, part).clamp(-1, 1) for x, part in parts]
    )


def sheet(net: EmojiNet, path: Path, per_class: int = 8, cfg: float = 2.0, scale: int = 2) -> None:
    """Write a labelled sheet with a row of pictures per class, 20 calls per picture."""
    labels = torch.arange(len(NAMES)).repeat_interleave(per_class)
    drawn = (samples(net, labels, cfg=cfg) + 1).mul(127.5).round().byte()
    pictures = drawn.permute(0, 2, 3, 1).numpy()
    tile, gap, text, columns = SIZE * scale, 4, 92, 2
    rows = math.ceil(len(NAMES) / columns)
    width = text + per_class * (tile + gap)
    canvas = Image.new("RGB", (columns * width + gap, rows * (tile + gap) + gap), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(15)
    for index, name in enumerate(NAMES):
        left, top = index // rows * width, index % rows * (tile + gap) + gap
        end = (left + text - 8, top + tile / 2)
        draw.text(end, name, fill="black", font=font, anchor="rm")
        for item in range(per_class):
            picture = Image.fromarray(pictures[index * per_class + item])
            picture = picture.resize((tile, tile), Image.Resampling.NEAREST)
            canvas.paste(picture, (left + text + item * (tile + gap), top))
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.save(path, optimize=True)


def curve(history: list[list[float]], batch: int, path: Path) -> None:
    """Plot the training curve from [step, loss, probe] rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps, losses, probes = zip(*history, strict=True)
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    axes.plot(steps, losses, color="0.75", label="training batches")
    axes.plot(steps, probes, color="tab:blue", label="averaged weights, fixed rows and noise")
    axes.set(xlabel=f"step ({batch} pictures each)", ylabel="loss (EDM weighting)")
    axes.set(yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def originality(
    net: EmojiNet, pictures: torch.Tensor, count: int = 480, cfg: float = 2.0
) -> torch.Tensor:
    """RMS distance of samples to their closest training picture, mirrored or not: float [count]."""
    labels = torch.arange(count) % len(NAMES)
    drawn = samples(net, labels, seed=1, cfg=cfg).flatten(1)
    seen = torch.cat([pictures, pictures.flip(3)]).flatten(1)
    return torch.cdist(drawn, seen).amin(1) / drawn.shape[1] ** 0.5


def report(net: EmojiNet, pictures: torch.Tensor) -> None:
    """Print how far samples are from the training pictures in [-1, 1]."""
    for cfg in (1.0, 2.0):
        distance = originality(net, pictures, cfg=cfg)
        middle, near = distance.median().item(), (distance < 0.1).float().mean().item()
        print(
            f"CFG {cfg:g}: RMSE to the closest training picture {middle:.3f} (median), "
            f"below 0.1 for {near:.0%} of the samples"
        )
