"""Train the bundled emoji model from scratch: `python tools/train_demo.py`.

This fetches the Noto images with npm, prepares them once, trains on the CPU, and exports
s4s_core/demo/emoji.safetensors with a sample sheet and the training curve. A killed run continues
from its last checkpoint. Every step has its own generator, seeded by the run's seed and the step,
so a resumed run draws the same numbers as an uninterrupted one. The learning rate only falls at the
end, so a finished run can be extended.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from s4s_core.demo import WEIGHTS  # noqa: E402
from s4s_core.demo.network import SIGMA_RANGE, EmojiNet  # noqa: E402
from tools import demo_pictures  # noqa: E402
from tools.emoji_data import (  # noqa: E402
    CLASSES,
    NAMES,
    PACKAGE,
    UNMIRRORED,
    VERSION,
    cache_folder,
    prepare,
    write_safetensors,
)

IMAGES = ROOT / "docs" / "images"
LICENCE = (
    "Trained on images of Noto Emoji, Copyright Google LLC, licensed under the Apache License, "
    "Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0), as packaged by "
    f"{PACKAGE} {VERSION}. See NOTICE.md."
)

# Noise levels are lognormal, except for a few rows that cover the whole range evenly, so that the
# network never extrapolates. Some labels are dropped to train the null class.
P_MEAN, P_STD, UNIFORM, LABEL_DROPOUT = 0.1, 1.4, 0.05, 0.1


class Batches:
    """Augmented training batches; the batch of a step depends only on the seed and the step."""

    def __init__(self, pictures: torch.Tensor, labels: torch.Tensor, batch: int, seed: int) -> None:
        self.pictures, self.labels = pictures.float() / 127.5 - 1, labels
        self.batch, self.seed = batch, seed
        self.mirrors = torch.tensor([name not in UNMIRRORED for name in NAMES])
        # Weight classes by the square root of their size, so that flags do not crowd out fruit.
        sizes = torch.bincount(labels, minlength=len(CLASSES)).float()
        self.weights = sizes[labels].rsqrt()

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x0, labels (some of them null), sigmas and noise of a step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.multinomial(self.weights, self.batch, replacement=True, generator=generator)
        x0, label = self.pictures[rows], self.labels[rows]
        flip = (torch.rand(self.batch, generator=generator) < 0.5) & self.mirrors[label]
        x0 = torch.where(flip[:, None, None, None], x0.flip(3), x0)
        even = torch.rand(self.batch, generator=generator) < UNIFORM
        # One level from each of `batch` equally likely bands makes the gradient less noisy.
        band = (torch.arange(self.batch) + torch.rand(self.batch, generator=generator)) / self.batch
        sigma = (torch.special.ndtri(band) * P_STD + P_MEAN).exp()
        low, high = (math.log(level) for level in SIGMA_RANGE)
        spread = (low + (high - low) * torch.rand(self.batch, generator=generator)).exp()
        sigma = torch.where(even, spread, sigma).clamp(*SIGMA_RANGE)
        dropped = torch.rand(self.batch, generator=generator) < LABEL_DROPOUT
        label = label.masked_fill(dropped, len(CLASSES))
        return x0, label, sigma, torch.randn(x0.shape, generator=generator)


def loss_of(
    net: EmojiNet,
    x0: torch.Tensor,
    label: torch.Tensor,
    sigma: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    """EDM's loss, whose weighting makes it the plain error of the raw network."""
    level = sigma[:, None, None, None]
    c_skip, c_out, c_in = net.preconditioning(level)
    x = x0 + level * noise
    raw = net.raw(c_in * x, sigma.log() / 4, label)
    return (raw - (x0 - c_skip * x) / c_out).square().mean()


class Run:
    """A training run: network, moving average, Adam's moments, step and history."""

    def __init__(self, options: argparse.Namespace, sigma_data: float) -> None:
        self.options = options
        self.config: dict[str, Any] = {
            "classes": len(CLASSES),
            "channels": options.channels,
            "blocks": options.blocks,
            "embedding": options.embedding,
            "sigma_data": round(sigma_data, 4),
        }
        torch.manual_seed(options.seed)
        self.net = EmojiNet(**self.config).to(memory_format=torch.channels_last)
        self.ema = EmojiNet(**self.config).to(memory_format=torch.channels_last)
        self.ema.requires_grad_(False).load_state_dict(self.net.state_dict())
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=options.lr, betas=(0.9, 0.99))
        self.step, self.seconds = 0, 0.0
        self.history: list[list[float]] = []
        self.path: Path = options.out / "checkpoint.safetensors"

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that continues it."""
        return {"config": self.config, "seed": self.options.seed, "batch": self.options.batch}

    def save(self) -> None:
        """Write the checkpoint atomically."""
        tensors = {}
        averages = self.ema.parameters()
        for (name, parameter), average in zip(self.net.named_parameters(), averages, strict=True):
            tensors[f"net/{name}"], tensors[f"ema/{name}"] = parameter.detach(), average
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"adam/{key}/{name}"] = value
        state = self.identity() | {
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
        }
        write_safetensors(self.path, tensors, {"run": json.dumps(state)})

    @torch.no_grad()
    def resume(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        if not self.path.exists():
            return False
        with safe_open(self.path, "pt") as file:
            state = json.loads(file.metadata()["run"])
            saved = {key: state[key] for key in self.identity()}
            if saved != self.identity():
                raise SystemExit(
                    f"{self.path} belongs to another run ({saved}). "
                    "Delete it or choose another --out."
                )
            averages = self.ema.parameters()
            for (name, parameter), average in zip(
                self.net.named_parameters(), averages, strict=True
            ):
                parameter.copy_(file.get_tensor(f"net/{name}"))
                average.copy_(file.get_tensor(f"ema/{name}"))
                moments = {
                    key: torch.empty_like(parameter).copy_(file.get_tensor(f"adam/{key}/{name}"))
                    for key in ("exp_avg", "exp_avg_sq")
                }
                moments["step"] = file.get_tensor(f"adam/step/{name}")
                self.optimiser.state[parameter] = moments
        self.step, self.seconds, self.history = state["step"], state["seconds"], state["history"]
        return True

    def rate(self) -> float:
        """The learning rate: warm up, hold, then fall linearly to zero."""
        options = self.options
        falling = (options.steps - self.step) / max(1.0, options.decay * options.steps)
        return options.lr * min(1.0, (self.step + 1) / options.warmup, max(0.0, falling))

    def advance(self, batches: Batches) -> float:
        """Take one training step and return its loss."""
        loss = loss_of(self.net, *batches(self.step))
        self.optimiser.param_groups[0]["lr"] = self.rate()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        keep = min(self.options.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for average, parameter in zip(
                self.ema.parameters(), self.net.parameters(), strict=True
            ):
                average.lerp_(parameter, 1 - keep)
        return loss.item()

    @torch.inference_mode()
    def probe(self, batches: Batches) -> float:
        """Loss of the averaged network on fixed rows, levels and noise."""
        return sum(loss_of(self.ema, *batches(-1 - index)).item() for index in range(4)) / 4

    def export(self, path: Path) -> None:
        """Write the averaged weights as float16, with their configuration and recipe."""
        recipe = {
            "data": f"{PACKAGE} {VERSION}",
            "steps": self.step,
            "batch": self.options.batch,
            "lr": self.options.lr,
            "decay": self.options.decay,
            "ema": self.options.ema,
            "p_mean": P_MEAN,
            "p_std": P_STD,
            "uniform": UNIFORM,
            "label_dropout": LABEL_DROPOUT,
            "seed": self.options.seed,
        }
        metadata = {
            "format": "pt",
            "config": json.dumps(self.config),
            "classes": json.dumps(NAMES),
            "licence": LICENCE,
            "recipe": json.dumps(recipe),
        }
        weights = {name: value.half() for name, value in self.ema.state_dict().items()}
        write_safetensors(path, weights, metadata)


def duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def train(run: Run, batches: Batches) -> None:
    """Train to the last step, writing a log, sheets and checkpoints."""
    options, first, before = run.options, run.step, run.seconds
    started = saved = time.perf_counter()
    losses: list[float] = []
    while run.step < options.steps:
        losses.append(run.advance(batches))
        now = time.perf_counter()
        run.seconds = before + now - started
        if run.step % options.log == 0 or run.step == options.steps:
            loss, probe = sum(losses) / len(losses), run.probe(batches)
            losses.clear()
            run.history.append([run.step, round(loss, 5), round(probe, 5)])
            pace = (now - started) / (run.step - first)
            print(
                f"step {run.step}/{options.steps}  loss {loss:.4f}  averaged {probe:.4f}  "
                f"{options.batch / pace:.0f} pictures/s  {duration(run.seconds)} done, "
                f"{duration(pace * (options.steps - run.step))} left",
                flush=True,
            )
        if run.step % options.sheet == 0:
            demo_pictures.sheet(run.ema, options.out / f"sheet-{run.step:06d}.png", per_class=4)
        if now - saved > options.save or run.step == options.steps:
            run.save()
            saved = now


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=cache_folder(), help="folder for the package and the pictures")
    add("--out", type=Path, help="folder for checkpoints and sheets (default: DATA/run)")
    add("--steps", type=int, default=32000, help="training steps (default: %(default)s)")
    add("--batch", type=int, default=32, help="pictures per step (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="learning rate (default: %(default)s)")
    add("--warmup", type=int, default=200, help="steps to reach the full learning rate")
    add("--decay", type=float, default=0.47, help="share of the run in which the rate falls")
    add("--ema", type=float, default=0.999, help="decay of the moving average")
    add("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    add("--channels", type=integers, default=[48, 96, 192], help="channels per level")
    add("--blocks", type=integers, default=[1, 1, 2], help="blocks per level")
    add("--embedding", type=int, default=192, help="width of the time and class embedding")
    add("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    add("--log", type=int, default=50, help="steps between log lines")
    add("--sheet", type=int, default=1000, help="steps between sample sheets")
    add("--save", type=float, default=60.0, help="seconds between checkpoints")
    add("--export", type=Path, default=WEIGHTS, help="file for the float16 weights")
    add("--images", type=Path, default=IMAGES, help="folder for the sheet and the curve")
    add("--report", action="store_true", help="measure how close samples are to training pictures")
    add("--export-only", action="store_true", help="export the checkpoint and do not train")
    options = parser.parse_args()
    options.out = options.out or options.data / "run"
    return options


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    pictures, labels = prepare(options.data)
    batches = Batches(pictures, labels, options.batch, options.seed)
    run = Run(options, float(batches.pictures.std()))
    verb = "continuing" if run.resume() else "starting"
    size = sum(parameter.numel() for parameter in run.net.parameters())
    print(
        f"{len(labels)} pictures in {len(NAMES)} classes, sigma_data {run.config['sigma_data']}, "
        f"{size / 1e6:.2f} M parameters, {verb} at step {run.step}",
        flush=True,
    )
    if not options.export_only:
        try:
            train(run, batches)
        except KeyboardInterrupt:
            run.save()
            raise SystemExit(
                f"Stopped at step {run.step}. Run the same command to continue."
            ) from None
    run.export(options.export)
    if run.history:
        demo_pictures.curve(run.history, options.batch, options.images / "demo-curve.png")
    demo_pictures.sheet(run.ema, options.images / "demo-sheet.png")
    print(f"{options.export}: {options.export.stat().st_size / 2**20:.2f} MiB")
    if options.report:
        demo_pictures.report(run.ema, batches.pictures)


if __name__ == "__main__":
    main()
