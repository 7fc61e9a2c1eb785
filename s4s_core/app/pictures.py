"""Sheets of pictures, thumbnails and data URIs. Pictures are tensors [n, 3, h, w] in [0, 1]."""

import base64
import inspect
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ..atomic import write_atomic
from ..errors import S4SError, short

_GAP, _TEXT = 6, 14
_SMALLEST, _LARGEST = 128, 384
_LONGEST_TITLE = 100
THUMBNAIL, LARGEST_THUMBNAIL, QUALITIES = 256, 30_000, (85, 70, 50, 25)
"""Side of a thumbnail and its most bytes: it lives twice in a header of bounded size."""

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclass(frozen=True)
class Row:
    """One row of a sheet: a title, pictures, and optionally a caption below each of them."""

    title: str
    pictures: torch.Tensor
    captions: Sequence[str] = ()


def font(size: int = _TEXT) -> Font:
    """Return Pillow's own font; before Pillow 10.1 (WebUIs pin 9.5) it has only one size."""
    default = ImageFont.load_default
    return default(size=size) if "size" in inspect.signature(default).parameters else default()


def to_pixels(pictures: torch.Tensor) -> np.ndarray:
    """Convert pictures to uint8 [n, h, w, 3]."""
    pixels = (pictures.clamp(0, 1) * 255).round().byte()
    return np.ascontiguousarray(pixels.permute(0, 2, 3, 1).cpu().numpy())


def image_of(picture: torch.Tensor, longest: int | None = None) -> Image.Image:
    """Convert one picture [3, h, w] to a PIL image; `longest` scales its longer side."""
    image = Image.fromarray(to_pixels(picture[None])[0])
    return image if longest is None else _scaled(image, longest)


def _scaled(image: Image.Image, longest: int) -> Image.Image:
    """Resize to a longer side of `longest` pixels; enlarged pixels stay sharp."""
    factor = longest / max(image.size)
    width, height = (max(1, round(side * factor)) for side in image.size)
    how = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS
    return image.resize((width, height), how)


def sheet(rows: Sequence[Row]) -> Image.Image:
    """Draw rows of pictures, each under its title, which a file may name: it is cut."""
    letters, line = font(), _TEXT + _GAP
    longest = min(_LARGEST, max(_SMALLEST, *(max(row.pictures.shape[2:]) for row in rows)))
    tiles = [[image_of(picture, longest) for picture in row.pictures] for row in rows]
    width, height = (max(tile.size[k] for row in tiles for tile in row) for k in (0, 1))
    step = line + height + _GAP + (line if any(row.captions for row in rows) else 0)
    titles = [short(row.title, _LONGEST_TITLE) for row in rows]
    widest = max(int(letters.getlength(title)) for title in titles) + 2 * _GAP
    columns = max(map(len, tiles))
    size = max(widest, columns * (width + _GAP) + _GAP), len(rows) * step + _GAP
    out = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(out)
    for number, (row, title, images) in enumerate(zip(rows, titles, tiles, strict=True)):
        top = _GAP + number * step
        draw.text((_GAP, top), title, fill="black", font=letters)
        for column, tile in enumerate(images):
            left = _GAP + column * (width + _GAP)
            out.paste(tile, (left, top + line))
            if row.captions:
                place = (left, top + line + height + 1)
                draw.text(place, row.captions[column], fill="#555", font=letters)
    return out


def square(pictures: torch.Tensor) -> Image.Image:
    """Lay pictures out in a square, without gaps or labels."""
    pixels = to_pixels(pictures)
    height, width = pixels.shape[1:3]
    columns = next(n for n in range(1, len(pixels) + 1) if n * n >= len(pixels))
    rows = -(-len(pixels) // columns)
    out = Image.new("RGB", (columns * width, rows * height), "white")
    for number, picture in enumerate(pixels):
        place = (number % columns * width, number // columns * height)
        out.paste(Image.fromarray(picture), place)
    return out


def thumbnail(pictures: torch.Tensor) -> str:
    """Return a data URI of the first four pictures in a square, small enough for a header."""
    columns = 1 if len(pictures) == 1 else 2
    side = THUMBNAIL // columns
    image = Image.new("RGB", (THUMBNAIL, THUMBNAIL), "white")
    for number, picture in enumerate(pictures[:4]):
        image.paste(image_of(picture, side), (number % columns * side, number // columns * side))
    for quality in QUALITIES:
        data = _jpeg(image, quality)
        if len(data) <= LARGEST_THUMBNAIL:
            break
    return _uri(data)


def data_uri(image: Image.Image, longest: int) -> str:
    """Return a PIL image as a JPEG in a data URI, at most `longest` pixels wide and high."""
    small = image.copy()
    small.thumbnail((longest, longest))
    return _uri(_jpeg(small, 85))


def _jpeg(image: Image.Image, quality: int) -> bytes:
    data = io.BytesIO()
    image.convert("RGB").save(data, format="JPEG", quality=quality)
    return data.getvalue()


def _uri(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def save_png(path: Path, image: Image.Image) -> None:
    """Write a PIL image as PNG, atomically; raise S4SError if that fails."""
    data = io.BytesIO()
    image.save(data, format="PNG", optimize=True)
    try:
        write_atomic(path, data.getvalue())
    except OSError as error:
        raise S4SError(f"Could not save {path}: {error.strerror or error}.") from error
