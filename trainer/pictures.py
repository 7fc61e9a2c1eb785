"""Labelled grids of sampled pictures."""

import inspect
import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError

_MARGIN, _SCALE = 6, 2


def to_pixels(x):
    """Pictures [n, 3, h, w] in [-1, 1] as uint8 [n, h, w, 3]."""
    pixels = (x.clamp(-1, 1) * 127.5 + 127.5).round().byte()
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def _font(size=13):
    """Pillow's own font; before 10.1 (the WebUIs hold 9.5) it has one size."""
    default = ImageFont.load_default
    return default(size=size) if "size" in inspect.signature(default).parameters else default()


def grid(rows, scale=_SCALE):
    """A PIL image: one row of pictures [n, 3, h, w] per label, the label in front of it."""
    font = _font()
    height, width = (scale * side for side in next(iter(rows.values())).shape[2:])
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
            tile = tile.resize((width, height), Image.Resampling.NEAREST)
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


def can_show(model):
    """Are the model's results RGB pictures?"""
    return len(model.shape) == 3 and model.shape[0] == 3
