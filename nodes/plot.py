"""A table as a picture: its noise levels on the left, its coefficients on the right."""

import numpy as np
from PIL import Image, ImageDraw

from .sheets import font as default_font

_SIZE, _EDGE, _TOP = (960, 420), 54, 56
_INK, _FAINT, _CALLS = "#222222", "#d8d8d8", "#d1495b"
_BARS = ("#2e6f95", "#edae49", "#66a182", "#8d6a9f", "#a0a0a0")


def plot(table):
    """A PIL image of one table."""
    image = Image.new("RGB", _SIZE, "white")
    draw, font = ImageDraw.Draw(image), default_font()
    title = f"{table.nfe} calls: {table.family}, order {table.order}, {table.form} form"
    draw.text((_EDGE, 14), title, fill=_INK, font=font)
    middle = _SIZE[0] // 2
    _levels(draw, font, table, (_EDGE, _TOP, middle - 24, _SIZE[1] - _EDGE))
    _bars(draw, font, table, (middle + 40, _TOP, _SIZE[0] - 20, _SIZE[1] - _EDGE))
    return image


def _levels(draw, font, table, box):
    """log10 sigma over the calls: nodes as a line, the times that the network sees as dots."""
    left, top, right, bottom = box
    nodes, calls = table.sigmas, table.call_sigmas
    positive = np.concatenate([nodes[nodes > 0], calls[calls > 0]])
    low, high = np.log10(positive.min()), np.log10(positive.max())

    def place(share, sigma):
        level = (np.log10(max(sigma, positive.min())) - low) / max(high - low, 1e-9)
        return left + share * (right - left), bottom - level * (bottom - top)

    for power in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        _, y = place(0, 10.0**power)
        draw.line([(left, y), (right, y)], fill=_FAINT)
        draw.text((left - 6, y), f"{10.0**power:g}", fill=_INK, font=font, anchor="rm")
    line = [place(k / table.steps, sigma) for k, sigma in enumerate(nodes)]
    draw.line(line, fill=_BARS[0], width=2)
    for x, y in line:
        draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=_BARS[0])
    for k, sigma in enumerate(calls):
        x, y = place(k / table.nfe, sigma)
        draw.ellipse([x - 3, y - 3, x + 3, y + 3], outline=_CALLS, width=2)
    draw.text((left, bottom + 10), "sigma: nodes", fill=_BARS[0], font=font)
    draw.text((left + 110, bottom + 10), "model calls", fill=_CALLS, font=font)
    if nodes[-1] == 0:
        draw.text((right, bottom + 10), "ends at 0", fill=_INK, font=font, anchor="ra")


def _bars(draw, font, table, box):
    """The first coefficient array, one group of bars a step, the newest evaluation first."""
    left, top, right, bottom = box
    name, array = sorted(table.coefficients.items())[-1]
    rows = array.reshape(len(array), -1)
    reach = max(1e-9, float(np.abs(rows).max()))
    zero = (top + bottom) / 2
    draw.line([(left, zero), (right, zero)], fill=_INK)
    for sign in (1, -1):
        y = zero - sign * (bottom - top) / 2 * 0.95
        draw.text((left - 4, y), f"{sign * reach:.2f}", fill=_INK, font=font, anchor="rm")
    group = (right - left) / len(rows)
    width = group * 0.8 / rows.shape[1]
    for step, row in enumerate(rows):
        for k, value in enumerate(row):
            x = left + step * group + group * 0.1 + k * width
            y = zero - value / reach * (bottom - top) / 2 * 0.95
            colour = _BARS[min(k, len(_BARS) - 1)]
            draw.rectangle([x, min(y, zero), x + width - 1, max(y, zero)], fill=colour)
    draw.text((left, bottom + 10), f"coefficients {name}, by step", fill=_INK, font=font)
