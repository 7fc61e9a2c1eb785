"""Pictures of a model's results, and labelled grids of them."""

import inspect
import io
import sys

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn.functional import interpolate

from s4s_core import sample
from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError
from s4s_core.teacher import Pairs
from s4s_core.training.memory import Batcher, is_out_of_memory

BATCH = 32
"""Samples that are computed at once where memory holds them."""

SIDE = 128
"""Pixels of a tile's longer side, about."""

_MARGIN = 6


@torch.inference_mode()
def results(model, table, x, cond, tell=None, workers=None):
    """Results of a table from noise x, on as many samples at once as memory holds.

    tell(share) hears after every model call how much is done, 0 to 1; `workers` remember the batch
    that fits.
    """
    noise = Pairs(x, cond, x)

    def run(batch):
        parts = []
        for part in noise.batches(batch):

            def show(p, before=sum(map(len, parts)), part=part):  # noqa: B008
                tell((before + len(part) * (p.call + 1) / p.nfe) / len(noise))

            parts.append(sample(model.denoise, part.x, table, part.cond, tell and show))
        return torch.cat(parts)

    return (workers or Batcher(BATCH)).call(run)


@torch.inference_mode()
def pictures(model, x):
    """Pictures [n, 3, h, w] in [0, 1] in main memory, decoded one by one.

    None where the model's results cannot be shown.
    """
    x = x.to(getattr(model, "device", "cpu"))
    parts = [model.decode(part) for part in x.split(1)]
    return None if parts[0] is None else torch.cat([p.float().cpu() for p in parts])


def if_memory_allows(function):
    """What the function returns; None, and a word about it, where memory does not hold pictures."""
    try:
        return function()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    print("There is no memory for sample pictures: going on without them.", file=sys.stderr)
    return None


def can_show(model):
    """Has the model a picture of a result?"""
    return pictures(model, torch.zeros(1, *model.shape)) is not None


def tiles(pictures):
    """Pictures of about SIDE pixels: small ones are enlarged, large ones are averaged."""
    longest = max(pictures.shape[2:])
    if longest <= SIDE:
        return interpolate(pictures, scale_factor=SIDE // longest, mode="nearest")
    return interpolate(pictures, scale_factor=SIDE / longest, mode="area")


def to_pixels(pictures):
    """Pictures [n, 3, h, w] in [0, 1] as uint8 [n, h, w, 3]."""
    pixels = (pictures.clamp(0, 1) * 255).round().byte()
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def _font(size=13):
    """Pillow's own font; before 10.1 (the WebUIs hold 9.5) it has one size."""
    default = ImageFont.load_default
    return default(size=size) if "size" in inspect.signature(default).parameters else default()


def grid(rows):
    """A PIL image: one row of pictures [n, 3, h, w] per label, the label in front of it."""
    font = _font()
    height, width = next(iter(rows.values())).shape[2:]
    count = max(len(x) for x in rows.values())
    left = max(int(font.getlength(label)) for label in rows) + 3 * _MARGIN
    step = height + _MARGIN
    sheet = Image.new(
        "RGB", (left + count * (width + _MARGIN), len(rows) * step + _MARGIN), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for row, (label, x) in enumerate(rows.items()):
        top = _MARGIN + row * step
        draw.text((_MARGIN, top + height / 2), label, fill="black", font=font, anchor="lm")
        for column, pixels in enumerate(to_pixels(x)):
            tile = Image.fromarray(np.ascontiguousarray(pixels))
            sheet.paste(tile, (left + column * (width + _MARGIN), top))
    return sheet


def save_png(path, image):
    """Write a PIL image as PNG, atomically; S4SError says why it cannot be."""
    data = io.BytesIO()
    image.save(data, format="PNG", optimize=True)
    try:
        write_atomic(path, data.getvalue())
    except OSError as error:
        raise S4SError(f"{path} cannot be saved: {error.strerror or error}.") from error
