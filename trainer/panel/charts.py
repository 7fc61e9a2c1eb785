"""Charts as inline SVG: they take the page's colours, light or dark, and need no library."""

import math
from html import escape

COLOURS = ("#8b5cf6", "#0ea5e9", "#f59e0b", "#10b981", "#ef4444", "#ec4899", "#84cc16", "#6366f1")
WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 30, 34

LARGEST = 1e250
SAME = 1e-9
"""Relative difference up to which the numbers on an axis are one."""

MOST_DECADES = 20
"""Powers of ten on an axis that each have a tick."""


class Axis:
    """Numbers onto pixels, linearly or by their logarithm; `ticks` are round numbers on it.

    Files may hold any finite number: what is larger than LARGEST, or nearer to zero than its
    inverse, is drawn at that place, so that no reckoning overflows.
    """

    def __init__(self, values, first, last, log=False):
        self.log, self.first, self.last = log, first, last
        places = [self._place(value) for value in values]
        low, high = min(places), max(places)
        if high - low <= SAME * (1 if log else max(abs(low), abs(high))):  # as good as one number
            low, high = (low - 0.5, high + 0.5) if log else (low, low + max(1, abs(low)))
        elif log:
            margin = 0.05 * (high - low)
            low, high = low - margin, high + margin
        self.low, self.high = low, high

    def _place(self, value):
        size = min(abs(value), LARGEST)
        if self.log:
            return math.log10(max(size, 1 / LARGEST))
        return math.copysign(size, value) if size > 1 / LARGEST else 0.0

    def __call__(self, value):
        share = (self._place(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self):
        if not self.log:
            return _round_steps(self.low, self.high)
        if self.high - self.low < 1:
            return _round_steps(10**self.low, 10**self.high)
        stride = max(1, round((self.high - self.low) / MOST_DECADES))
        decades = range(math.floor(self.low), math.ceil(self.high) + 1, stride)
        marks = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        found = [mark * 10.0**power for power in decades for mark in marks]
        return [tick for tick in found if self.low <= math.log10(tick) <= self.high]


def _round_steps(low, high, count=5):
    """About `count` round numbers between two numbers."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def short(value):
    """A number for an axis: 12k, 0.05, 1.5M, 1e+12."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def line_chart(title, series, x_label, log_y=True):
    """Lines over common axes; `series` is {label: [(x, y), ...]}.

    A point that cannot be drawn (not finite, or not positive on a logarithmic axis) is a gap.
    """
    lines = {label: _pieces(points, log_y) for label, points in series.items()}
    lines = {label: pieces for label, pieces in lines.items() if pieces}
    if not lines:
        return _frame(title, _text(WIDTH / 2, HEIGHT / 2, "nothing to draw yet", "middle", "faint"))
    points = [point for pieces in lines.values() for piece in pieces for point in piece]
    x = Axis([p[0] for p in points], _LEFT, WIDTH - _RIGHT)
    y = Axis([p[1] for p in points], HEIGHT - _BOTTOM, _TOP, log_y)
    parts = [_grid(x, y, x_label)]
    for number, (label, pieces) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += [_line(piece, x, y, colour, label) for piece in pieces]
    return _frame(title, "".join(parts) + _legend(lines))


def _pieces(points, log):
    """Runs of points between the gaps."""
    pieces = [[]]
    for x, y in points:
        numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in (x, y))
        if numbers and (y > 0 or not log):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _line(points, x, y, colour, label):
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    last_x, last_y = points[-1]
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-linejoin="round"><title>{escape(label)}</title></polyline>'
        f'<circle cx="{x(last_x):.1f}" cy="{y(last_y):.1f}" r="3.5" fill="{colour}"/>'
    )


def _grid(x, y, x_label):
    parts = []
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}" class="s4s-rule"/>')
        parts.append(_text(_LEFT - 8, at + 4, short(tick), "end"))
    parts += [_text(x(tick), HEIGHT - _BOTTOM + 16, short(tick), "middle") for tick in x.ticks()]
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, x_label, "end", "faint"))
    return "".join(parts)


def _legend(labels):
    """Names of the lines in their colours, at the top right."""
    parts, at = [], WIDTH - _RIGHT
    for number, label in reversed(list(enumerate(labels))):
        parts.append(_text(at, 16, label, "end"))
        at -= 6.5 * len(label) + 11
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<circle cx="{at:.1f}" cy="12" r="4" fill="{colour}"/>')
        at -= 13
    return "".join(parts)


def _text(x, y, text, anchor="start", kind=""):
    name = f' class="s4s-{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{escape(text)}</text>'


def _frame(title, body, height=HEIGHT):
    return (
        f'<svg class="s4s-chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
        f'<text x="4" y="16" class="s4s-title">{escape(title)}</text>{body}</svg>'
    )


def heat_map(title, rows):
    """Numbers as coloured cells: violet above zero, amber below; a row of the matrix per row."""
    most = max((abs(v) for row in rows for v in row if v is not None), default=0) or 1
    columns = max(len(row) for row in rows)
    side_x, side_y = min(90, (WIDTH - _LEFT - _RIGHT) / columns), 26
    parts = []
    for i, row in enumerate(rows):
        top = _TOP + i * side_y
        parts.append(_text(_LEFT - 8, top + side_y / 2 + 4, f"step {i + 1}", "end"))
        for j, value in enumerate(row):
            left, strength = _LEFT + j * side_x, 0.85 * abs(value) / most
            colour = COLOURS[0] if value >= 0 else COLOURS[2]
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{side_x - 2:.1f}" '
                f'height="{side_y - 2}" rx="3" fill="{colour}" fill-opacity="{strength:.2f}"/>'
            )
            parts.append(_text(left + side_x / 2, top + side_y / 2 + 4, f"{value:.3g}", "middle"))
    return _frame(title, "".join(parts), _TOP + len(rows) * side_y + 8)
