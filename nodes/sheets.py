"""Labelled sheets of pictures, drawn with Pillow."""

import base64
import inspect
import io

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

_GAP, _TEXT = 6, 14
_SMALL, _LARGE = 96, 384


def font(size=_TEXT):
    """Pillow's own font; before 10.1 it has one size."""
    default = ImageFont.load_default
    return default(size=size) if "size" in inspect.signature(default).parameters else default()


class Row:
    """One row of a sheet: a title, pictures [n, h, w, 3] in [0, 1], a caption below each."""

    def __init__(self, title, pictures, captions=None):
        self.title, self.pictures = title, pictures
        self.captions = captions or [""] * len(pictures)


def pictures_of(model, x, vae=None):
    """Results x of a host's BaseModel as pictures [n, h, w, 3] in [0, 1], on the CPU.

    With a VAE real ones; otherwise by the latent format's own rough colours, or its first channel
    in grey. Of a video the first frame is shown.
    """
    if vae is not None:
        images = vae.decode(model.process_latent_out(x.float()))
        return (images[:, 0] if images.ndim == 5 else images).float().clamp(0, 1).cpu()
    x = {3: x[:, :, None], 5: x[:, :, 0]}.get(x.ndim, x).float().cpu()
    factors = getattr(model.latent_format, "latent_rgb_factors", None)
    if factors is None or len(factors) != x.shape[1]:
        factors = [[1.0] * 3] + [[0.0] * 3] * (x.shape[1] - 1)
    colours = torch.nn.functional.linear(x.movedim(1, -1), torch.tensor(factors).T)
    bias = getattr(model.latent_format, "latent_rgb_factors_bias", None)
    if bias is not None:
        colours = colours + torch.tensor(bias)
    return (colours / 2 + 0.5).clamp(0, 1)


def image_of(picture, longest=None):
    """One picture [h, w, 3] as a PIL image; `longest` scales its longer side."""
    image = Image.fromarray((picture.numpy() * 255).round().astype(np.uint8))
    if longest:
        factor = longest / max(image.size)
        size = [max(1, round(side * factor)) for side in image.size]
        how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS
        image = image.resize(size, how)
    return image


def sheet(rows):
    """A PIL image of all rows."""
    letters = font()
    largest = max(max(row.pictures.shape[1:3]) for row in rows)
    longest = min(_LARGE, max(_SMALL, largest))
    tiles = [[image_of(picture, longest) for picture in row.pictures] for row in rows]
    width, height = (max(tile.size[k] for line in tiles for tile in line) for k in (0, 1))
    captioned = any(any(row.captions) for row in rows)
    line = _TEXT + _GAP
    step = line + height + (line if captioned else 0) + _GAP
    columns = max(map(len, tiles))
    widest = max(int(letters.getlength(row.title)) for row in rows) + 2 * _GAP
    size = max(widest, columns * (width + _GAP) + _GAP), len(rows) * step + _GAP
    out = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(out)
    for number, (row, pictures) in enumerate(zip(rows, tiles, strict=True)):
        top = _GAP + number * step
        draw.text((_GAP, top), row.title, fill="black", font=letters)
        for column, (tile, caption) in enumerate(zip(pictures, row.captions, strict=True)):
            left = _GAP + column * (width + _GAP)
            out.paste(tile, (left, top + line))
            draw.text((left, top + line + height + 1), caption, fill="#555", font=letters)
    return out


def as_image(picture):
    """A PIL image as the host's IMAGE [1, h, w, 3]."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255)[None]


def data_uri(picture, longest=96, quality=85):
    """A PIL image as a small JPEG in a data URI."""
    small, file = picture.copy(), io.BytesIO()
    small.thumbnail((longest, longest))
    small.convert("RGB").save(file, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
