"""Train the bundled emoji model from nothing: `python tools/train_demo.py`.

Fetches the Noto images with npm, prepares them once, trains on the CPU, and exports
s4s_core/demo/emoji.safetensors with its sample sheet and its training curve. A killed run
continues from its last checkpoint: every step draws from a generator seeded by the run's seed and
the step's number, so a resumed run sees the very numbers that an uninterrupted one would have
seen. The learning rate falls at the end of the run only, so a finished run can be made longer.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from emoji_data import (  # noqa: E402
    CLASSES,
    NAMES,
    PACKAGE,
    SIZE,
    UNMIRRORED,
    VERSION,
    cache_folder,
    prepare,
    write_safetensors,
)

from s4s_core import classical_table, sample, schedule  # noqa: E402
from s4s_core.demo import WEIGHTS, DemoModel  # noqa: E402
from s4s_core.demo.network import SIGMA_RANGE, EmojiNet  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LICENCE = (
    "Trained on images of Noto Emoji, Copyright Google LLC, licensed under the Apache License, "
    "Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0), as packaged by "
    f"{PACKAGE} {VERSION}. See NOTICE.md."
)

# Noise levels: lognormal, but for a few rows that cover the whole range evenly, so that no level
# is left to extrapolation. Labels are dropped at times to train the null class.
P_MEAN, P_STD, UNIFORM, LABEL_DROPOUT = 0.1, 1.4, 0.05, 0.1


class Batches:
    """Augmented training batches; a step's batch depends on the seed and the step alone."""

    def __init__(self, pictures, labels, batch, seed):
        self.pictures, self.labels = pictures.float() / 127.5 - 1, labels
        self.batch, self.seed = batch, seed
        self.mirrors = torch.tensor([name not in UNMIRRORED for name in NAMES])
        # Classes are drawn by the square root of their size: flags must not crowd fruit out.
        sizes = torch.bincount(labels, minlength=len(CLASSES)).float()
        self.weights = sizes[labels].rsqrt()

    def __call__(self, step):
        """x0, labels (some of them null), sigmas and noise of a step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.multinomial(self.weights, self.batch, replacement=True, generator=generator)
        x0, label = self.pictures[rows], self.labels[rows]
        flip = (torch.rand(self.batch, generator=generator) < 0.5) & self.mirrors[label]
        x0 = torch.where(flip[:, None, None, None], x0.flip(3), x0)
        even = torch.rand(self.batch, generator=generator) < UNIFORM
        # One level from each of `batch` equally likely bands: less noise in the gradient.
        band = (torch.arange(self.batch) + torch.rand(self.batch, generator=generator)) / self.batch
        sigma = (torch.special.ndtri(band) * P_STD + P_MEAN).exp()
        low, high = (math.log(level) for level in SIGMA_RANGE)
        spread = (low + (high - low) * torch.rand(self.batch, generator=generator)).exp()
        sigma = torch.where(even, spread, sigma).clamp(*SIGMA_RANGE)
        dropped = torch.rand(self.batch, generator=generator) < LABEL_DROPOUT
        label = label.masked_fill(dropped, len(CLASSES))
        return x0, label, sigma, torch.randn(x0.shape, generator=generator)


# The run ------------------------------------------------------------------------------------


def loss_of(net, x0, label, sigma, noise):
    """EDM's loss: its weighting makes it the plain error of the raw network."""
    level = sigma[:, None, None, None]
    c_skip, c_out, c_in = net.preconditioning(level)
    x = x0 + level * noise
    raw = net.raw(c_in * x, sigma.log() / 4, label)
    return (raw - (x0 - c_skip * x) / c_out).square().mean()


class Run:
    """What a checkpoint holds: network, moving average, Adam's moments, step and history."""

    def __init__(self, options, sigma_data):
        self.options = options
        self.config = {
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
        self.step, self.seconds, self.history = 0, 0.0, []
        self.path = options.out / "checkpoint.safetensors"

    def identity(self):
        """What must agree between a checkpoint and the run that continues it."""
        return {"config": self.config, "seed": self.options.seed, "batch": self.options.batch}

    def save(self):
        """Write the checkpoint, whole or not at all."""
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
    def resume(self):
        """Continue from the checkpoint, if there is one; says whether there was."""
        if not self.path.exists():
            return False
        with safe_open(self.path, "pt") as file:
            state = json.loads(file.metadata()["run"])
            found = {key: state[key] for key in self.identity()}
            if found != self.identity():
                raise SystemExit(
                    f"{self.path} is of another run ({found}): give another --out, or remove it."
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

    def rate(self):
        """The learning rate: warm up, stay, fall linearly to zero over the last part."""
        options = self.options
        falling = (options.steps - self.step) / max(1.0, options.decay * options.steps)
        return options.lr * min(1.0, (self.step + 1) / options.warmup, max(0.0, falling))

    def advance(self, batches):
        """One training step; its loss."""
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
    def probe(self, batches):
        """The averaged network's loss on fixed rows, levels and noise: a steady curve."""
        return sum(loss_of(self.ema, *batches(-1 - index)).item() for index in range(4)) / 4

    def export(self, path):
        """The averaged weights in float16, with what a reader must know about them."""
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


def duration(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def train(run, batches):
    """Run to the last step, with a log, sheets and checkpoints on the way."""
    options, first, before = run.options, run.step, run.seconds
    started = saved = time.perf_counter()
    losses = []
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
                f"step {run.step}/{options.steps}  loss {loss:.4f}  average's {probe:.4f}  "
                f"{options.batch / pace:.0f} pictures/s  {duration(run.seconds)} done, "
                f"{duration(pace * (options.steps - run.step))} left",
                flush=True,
            )
        if run.step % options.sheet == 0:
            sheet(run.ema, options.out / f"sheet-{run.step:06d}.png", per_class=4)
        if now - saved > options.save or run.step == options.steps:
            run.save()
            saved = now


# Pictures -----------------------------------------------------------------------------------


@torch.inference_mode()
def samples(net, labels, seed=0, cfg=2.0, nfe=20):
    """Pictures in [-1, 1] of class ids [N], `nfe` calls each."""
    model = DemoModel(net, NAMES, "ve", cfg)
    table = classical_table("ipndm", schedule("edm", nfe, model), order=3, space=model)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), *model.shape, generator=generator)
    parts = zip(noise.split(64), labels.split(64), strict=True)
    return torch.cat(
        [sample(model.denoise, x * model.sigma_max, table, part).clamp(-1, 1) for x, part in parts]
    )


def sheet(net, path, per_class=8, cfg=2.0, scale=2):
    """A labelled sheet: a row of pictures for each class, 20 calls a picture."""
    labels = torch.arange(len(NAMES)).repeat_interleave(per_class)
    pictures = (samples(net, labels, cfg=cfg) + 1).mul(127.5).round().byte()
    pictures = pictures.permute(0, 2, 3, 1).numpy()
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


def curve(run, path):
    """The training curve as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps, losses, probes = zip(*run.history, strict=True)
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    axes.plot(steps, losses, color="0.75", label="training batches")
    axes.plot(steps, probes, color="tab:blue", label="averaged weights, fixed rows and noise")
    axes.set(xlabel=f"step ({run.options.batch} pictures each)", ylabel="loss (EDM weighting)")
    axes.set(yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def originality(net, batches, count=480, cfg=2.0):
    """Root mean square distance of samples to their nearest training image: float [count].

    Mirror images of training images count as training images.
    """
    labels = torch.arange(count) % len(NAMES)
    drawn = samples(net, labels, seed=1, cfg=cfg).flatten(1)
    seen = torch.cat([batches.pictures, batches.pictures.flip(3)]).flatten(1)
    return torch.cdist(drawn, seen).amin(1) / drawn.shape[1] ** 0.5


def report(net, batches):
    """Print how far samples are from the training images."""
    for cfg in (1.0, 2.0):
        distance = originality(net, batches, cfg=cfg)
        middle, near = distance.median().item(), (distance < 0.1).float().mean().item()
        print(
            f"CFG {cfg:g}: RMSE to the nearest training image {middle:.3f} (median), "
            f"below 0.1 for {near:.0%} of the samples"
        )


# The command --------------------------------------------------------------------------------


def integers(text):
    return [int(part) for part in text.split(",") if part]


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=cache_folder(), help="folder of the package and the pictures")
    add("--out", type=Path, help="folder of checkpoints and sheets (default: DATA/run)")
    add("--steps", type=int, default=32000, help="length of the run (default: %(default)s)")
    add("--batch", type=int, default=32, help="pictures a step (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="learning rate (default: %(default)s)")
    add("--warmup", type=int, default=200, help="steps until the full learning rate")
    add("--decay", type=float, default=0.47, help="last part of the run, in which the rate falls")
    add("--ema", type=float, default=0.999, help="decay of the moving average of the weights")
    add("--seed", type=int, default=0)
    add("--channels", type=integers, default=[48, 96, 192], help="channels of each level")
    add("--blocks", type=integers, default=[1, 1, 2], help="blocks of each level")
    add("--embedding", type=int, default=192, help="width of the time and class embedding")
    add("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    add("--log", type=int, default=50, help="steps between two lines of the log")
    add("--sheet", type=int, default=1000, help="steps between two sample sheets")
    add("--save", type=float, default=60.0, help="seconds between two checkpoints")
    add("--export", type=Path, default=WEIGHTS, help="where the float16 weights go")
    add("--images", type=Path, default=IMAGES, help="folder of the sheet and the curve")
    add("--report", action="store_true", help="measure how near samples are to training images")
    add("--export-only", action="store_true", help="export the checkpoint without training")
    options = parser.parse_args()
    options.out = options.out or options.data / "run"
    return options


def main():
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
            raise SystemExit(f"Stopped at step {run.step}; the same command continues.") from None
    run.export(options.export)
    if run.history:
        curve(run, options.images / "demo-curve.png")
    sheet(run.ema, options.images / "demo-sheet.png")
    print(f"{options.export}: {options.export.stat().st_size / 2**20:.2f} MiB")
    if options.report:
        report(run.ema, batches)


if __name__ == "__main__":
    main()
