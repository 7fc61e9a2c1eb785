"""Charts as inline SVG, in the page's colours: lines, heat maps, and the tables of a solver.

For the tab Solvers and for `inspect --page`; no gradio here.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeGuard

from s4s_core.app.description import describe
from s4s_core.errors import visible
from s4s_core.table import SolverPack, SolverTable

from .markup import score_table

Point = tuple[float | None, float | None]

COLOURS = ("#8b5cf6", "#0ea5e9", "#f59e0b", "#10b981", "#ef4444", "#ec4899", "#84cc16", "#6366f1")
WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 30, 34

LARGEST = 1e250
SAME = 1e-9
"""Numbers on an axis with a smaller relative difference count as equal."""

MOST_DECADES = 20
"""How many powers of ten on an axis get a tick each."""

MOST_LABELS = 12
"""How many bars get their numbers written at them."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px system-ui, sans-serif; max-width: 1240px; margin: 2rem auto; color: #1e293b; }}
.s4s-charts {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
.s4s-chart {{ width: 560px; }} .s4s-chart text {{ font-size: 12px; fill: currentColor; }}
.s4s-chart text.s4s-title {{ font-weight: 600; }}
.s4s-chart .s4s-rule {{ stroke: currentColor; stroke-opacity: .15; }}
.s4s-scores th, .s4s-scores td {{ padding: .2rem 1rem; text-align: right; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #0b0f19; color: #e2e8f0; }} }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


class Axis:
    """Maps numbers to pixels, linearly or by their logarithm.

    Files may hold any finite number: sizes above LARGEST and below its inverse are clipped, so that
    nothing overflows.
    """

    def __init__(
        self, values: Sequence[float], first: float, last: float, log: bool = False
    ) -> None:
        self.log, self.first, self.last = log, first, last
        places = [self._place(value) for value in values]
        low, high = min(places), max(places)
        if high - low <= SAME * (1 if log else max(abs(low), abs(high))):  # all equal
            low, high = (low - 0.5, high + 0.5) if log else (low, low + max(1, abs(low)))
        elif log:
            margin = 0.05 * (high - low)
            low, high = low - margin, high + margin
        self.low, self.high = low, high

    def _place(self, value: float) -> float:
        size = min(abs(value), LARGEST)
        if self.log:
            return math.log10(max(size, 1 / LARGEST))
        return math.copysign(size, value) if size > 1 / LARGEST else 0.0

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Return round numbers along the axis."""
        if not self.log:
            return _round_steps(self.low, self.high)
        if self.high - self.low < 1:
            return _round_steps(10**self.low, 10**self.high)
        stride = max(1, round((self.high - self.low) / MOST_DECADES))
        decades = range(math.floor(self.low), math.ceil(self.high) + 1, stride)
        marks = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        ticks = [mark * 10.0**power for power in decades for mark in marks]
        return [tick for tick in ticks if self.low <= math.log10(tick) <= self.high]


def _round_steps(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between two numbers."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Format a number for an axis: 12k, 0.05, 1.5M, 1e+12."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def line_chart(title: str, series: dict[str, list[Point]], x_label: str, log_y: bool = True) -> str:
    """Draw lines; `series` is {label: [(x, y), ...]}.

    A point that cannot be drawn (not finite, or not positive on a logarithmic axis) is a gap.
    """
    lines = {label: _pieces(points, log_y) for label, points in series.items()}
    lines = {label: pieces for label, pieces in lines.items() if pieces}
    if not lines:
        return _frame(title, _text(WIDTH / 2, HEIGHT / 2, "no data yet", "middle", "faint"))
    points = [point for pieces in lines.values() for piece in pieces for point in piece]
    x = Axis([p[0] for p in points], _LEFT, WIDTH - _RIGHT)
    y = Axis([p[1] for p in points], HEIGHT - _BOTTOM, _TOP, log_y)
    parts = [_grid(x, y, x_label)]
    for number, (label, pieces) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += [_line(piece, x, y, colour, label) for piece in pieces]
    return _frame(title, "".join(parts) + _legend(lines))


def _pieces(points: list[Point], log: bool) -> list[list[tuple[float, float]]]:
    """Split a line at its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if _is_finite(x) and _is_finite(y) and (y > 0 or not log):
            pieces[-1].append((x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _line(points: list[tuple[float, float]], x: Axis, y: Axis, colour: str, label: str) -> str:
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    last_x, last_y = points[-1]
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-linejoin="round"><title>{escape(label)}</title></polyline>'
        f'<circle cx="{x(last_x):.1f}" cy="{y(last_y):.1f}" r="3.5" fill="{colour}"/>'
    )


def _grid(x: Axis, y: Axis, x_label: str) -> str:
    parts = []
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}" class="s4s-rule"/>')
        parts.append(_text(_LEFT - 8, at + 4, short(tick), "end"))
    parts += [_text(x(tick), HEIGHT - _BOTTOM + 16, short(tick), "middle") for tick in x.ticks()]
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, x_label, "end", "faint"))
    return "".join(parts)


def _legend(labels: Iterable[str]) -> str:
    """Name the lines in their colours, at the top right."""
    parts, at = [], float(WIDTH - _RIGHT)
    for number, label in reversed(list(enumerate(labels))):
        parts.append(_text(at, 16, label, "end"))
        at -= 6.5 * len(label) + 11
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<circle cx="{at:.1f}" cy="12" r="4" fill="{colour}"/>')
        at -= 13
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    name = f' class="s4s-{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{escape(text)}</text>'


def _frame(title: str, body: str, height: float = HEIGHT) -> str:
    return (
        f'<svg class="s4s-chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">'
        f'<text x="4" y="16" class="s4s-title">{escape(title)}</text>{body}</svg>'
    )


def heat_map(title: str, rows: Sequence[Sequence[float]]) -> str:
    """Draw a matrix as coloured cells: violet above zero, amber below."""
    most = max((abs(value) for row in rows for value in row), default=0) or 1
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


def bar_chart(title: str, values: Sequence[float], x_label: str) -> str:
    """Draw a bar from zero for each of some numbers >= 0, with a line at 1."""
    step = (WIDTH - _LEFT - _RIGHT) / len(values)
    y = Axis([0, 1, *values], HEIGHT - _BOTTOM, _TOP + 14)
    parts = [
        f'<path d="M{_LEFT} {y(level):.1f}H{WIDTH - _RIGHT}" class="s4s-rule"/>'
        + _text(_LEFT - 8, y(level) + 4, str(level), "end")
        for level in (0, 1)
    ]
    width = min(48, 0.7 * step)
    for number, value in enumerate(values):
        middle, top = _LEFT + (number + 0.5) * step, y(value)
        parts.append(
            f'<rect x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{y(0) - top:.1f}" rx="3" fill="{COLOURS[0]}">'
            f"<title>{escape(f'{x_label} {number + 1}: {value:.3g}')}</title></rect>"
        )
        if len(values) <= MOST_LABELS:
            parts.append(
                _text(middle, top - 5, f"{value:.2f}" if value < 100 else short(value), "middle")
            )
            parts.append(_text(middle, HEIGHT - _BOTTOM + 16, str(number + 1), "middle"))
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, x_label, "end", "faint"))
    return _frame(title, "".join(parts))


def table_charts(table: SolverTable) -> list[str]:
    """Draw a table: its noise levels, its guidance if it sets that, its coefficients by step."""
    sigmas, calls = table.sigmas.tolist(), table.call_sigmas.tolist()
    lines: dict[str, list[Point]] = {"nodes": list(enumerate(sigmas))}
    if len(calls) == len(sigmas) - 1 and calls != sigmas[:-1]:
        lines["given to the model"] = list(enumerate(calls))
    charts = [line_chart("Noise level (sigma) by step", lines, "step")]
    if table.guidance is not None:
        charts.append(bar_chart("Guidance by call, 1 is your CFG", table.guidance.tolist(), "call"))
    for name, array in table.coefficients.items():
        if not len(array):  # a corrector has no coefficients if there is only one call
            continue
        rows = array.reshape(len(array), -1).tolist()
        charts.append(heat_map(f"Coefficients {name} ({table.family}, {table.form})", rows))
    return charts


def chart_page(file: str, pack: SolverPack) -> str:
    """Return an HTML page with the scores and the charts of all tables of a pack."""
    description = describe(pack)
    titles, parts = description.titles, [score_table(description)]
    for name, table in pack.named.items():
        charts, heading = "".join(table_charts(table)), escape(titles[name])
        parts.append(f'<h2>{heading}</h2><div class="s4s-charts">{charts}</div>')
    title = escape(visible(description.name or file))
    return _PAGE.format(title=title, body="".join(parts))
