"""Small charts as inline SVG, so that a report is one file that needs nothing else: bars, lines, strips, a roofline.

Colours come from the page's style sheet by class; what is drawn is decided in `html`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from onepass.html_report.figures import number

WIDTH, LEFT, RIGHT = 720, 220, 110
BAR, GAP = 18, 8
HEIGHT, TOP, BOTTOM = 300, 28, 46
NAMES = 190  # room for the names of points, right of a plot
LINE = 16


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    kind: str = "ours"  # a class of the style sheet: ours, peer, void


@dataclass(frozen=True)
class Series:
    label: str
    points: list[tuple[float, float]]


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal, the longest as wide as there is room."""
    most = max((row.value for row in rows), default=0.0) or 1.0
    room = WIDTH - LEFT - RIGHT
    parts = []
    for n, row in enumerate(rows):
        y = n * (BAR + GAP) + GAP
        width = room * row.value / most
        parts.append(_text(LEFT - 8, y + BAR - 5, row.label, "end"))
        parts.append(f'<rect class="{row.kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        parts.append(_text(LEFT + width + 6, y + BAR - 5, row.shown))
    return _svg(parts, len(rows) * (BAR + GAP) + 2 * GAP)


def strips(rows: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """Every single time as a tick, each row on the same scale with an axis below, the median as a taller one."""
    longest = max((value for _, values in rows for value in values), default=0.0) or 1.0
    step = _nice_step(longest)
    most = step * math.ceil(longest / step)
    room = WIDTH - LEFT - RIGHT
    bottom = len(rows) * (BAR + GAP) + GAP
    parts = []
    for n in range(round(most / step) + 1):
        x = LEFT + room * n * step / most
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{GAP}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + LINE, number(n * step) if n else f"0 {unit}", "middle"))
    for n, (label, values) in enumerate(rows):
        y = n * (BAR + GAP) + GAP
        parts.append(_text(LEFT - 8, y + BAR - 5, label, "end"))
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT + room}" y1="{y + BAR}" y2="{y + BAR}"/>')
        for value in values:
            x = LEFT + room * value / most
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 5}" y2="{y + BAR}"/>')
        middle = median(values)
        x = LEFT + room * middle / most
        parts.append(f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + BAR}"/>')
        parts.append(_text(LEFT + room + 6, y + BAR - 5, f"{number(middle)} {unit}"))
    return _svg(parts, bottom + LINE + GAP)


def _nice_step(longest: float) -> float:
    """1, 2 or 5 times a power of ten, so that an axis has three to six steps."""
    power = 10.0 ** math.floor(math.log10(longest / 3))
    return max(step * power for step in (1, 2, 5) if step * power <= longest / 3)


def lines(series: Sequence[Series], x_label: str, y_label: str) -> str:
    """Both axes logarithmic: scaling is a slope."""
    points = [point for one in series for point in one.points if min(point) > 0]
    if not points:
        return ""
    area = _Area.around(points)
    parts = area.axes(x_label, y_label)
    named: list[tuple[float, float, str]] = []
    for n, one in enumerate(series):
        at = [area.place(x, y) for x, y in one.points if x > 0 and y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline class="line s{n % 6}" points="{path}"/>')
        parts += [f'<circle class="dot s{n % 6}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in at]
        if at:
            named.append((at[-1][0], at[-1][1], one.label))
    return _svg([*parts, *_names(named)], HEIGHT)


def roofline(flops: float, bandwidth: float, points: Sequence[tuple[str, float, float]]) -> str:
    """`points` are (label, FLOPs a byte, FLOP/s); the roof is what the ceilings allow at each intensity."""
    ridge = flops / bandwidth
    xs = [ridge / 100, ridge * 100, *(x for _, x, _ in points)]
    ys = [flops * 1.5, *(y for _, _, y in points if y > 0)]
    low, high = min(xs), max(xs)
    area = _Area.around([(low, min(ys)), (high, max(ys))])
    roof = [(max(low, min(ys) / bandwidth), max(min(ys), low * bandwidth)), (ridge, flops), (high, flops)]
    path = " ".join("{:.1f},{:.1f}".format(*area.place(x, y)) for x, y in roof)
    parts = [*area.axes("FLOPs needed a byte", "FLOP/s"), f'<polyline class="roof" points="{path}"/>']
    named: list[tuple[float, float, str]] = []
    for n, (label, x, y) in enumerate(sorted(points, key=lambda p: -p[2])):
        if y > 0:
            px, py = area.place(x, y)
            parts.append(f'<circle class="dot s{n % 6}" cx="{px:.1f}" cy="{py:.1f}" r="4"/>')
            named.append((px, py, label))
    return _svg([*parts, *_names(named)], HEIGHT)


def _names(named: Sequence[tuple[float, float, str]]) -> list[str]:
    """Names right of the plot, in the order of their points and a line apart, each joined to its point."""
    parts, below = [], float(TOP)
    for x, y, name in sorted(named, key=lambda one: one[1]):
        below = max(below + LINE, y + 4)
        left = WIDTH - NAMES + 14
        parts.append(f'<line class="axis" x1="{x + 5:.1f}" x2="{left - 4}" y1="{y:.1f}" y2="{below - 4:.1f}"/>')
        parts.append(_text(left, below, name))
    return parts


@dataclass(frozen=True)
class _Area:
    """A plot's rectangle with logarithmic axes."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]]) -> "_Area":
        xs, ys = [x for x, _ in points], [y for _, y in points]
        return cls(*_decades(min(xs), max(xs)), *_decades(min(ys), max(ys)))

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.low_x) / math.log(self.high_x / self.low_x)
        up = math.log(y / self.low_y) / math.log(self.high_y / self.low_y)
        left, right = 70, WIDTH - NAMES
        return left + across * (right - left), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    def axes(self, x_label: str, y_label: str) -> list[str]:
        parts = []
        for x in _powers(self.low_x, self.high_x):
            px, py = self.place(x, self.low_y)
            parts.append(f'<line class="axis" x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{py:.1f}"/>')
            parts.append(_text(px, py + 16, _short(x), "middle"))
        for y in _powers(self.low_y, self.high_y):
            px, py = self.place(self.low_x, y)
            parts.append(f'<line class="axis" x1="{px:.1f}" x2="{WIDTH - NAMES}" y1="{py:.1f}" y2="{py:.1f}"/>')
            parts.append(_text(px - 6, py + 4, _short(y), "end"))
        parts.append(_text((WIDTH - NAMES + 70) / 2, HEIGHT - 8, x_label, "middle"))
        parts.append(_text(8, 12, y_label))
        return parts


def _decades(low: float, high: float) -> tuple[float, float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return 10.0**first, 10.0 ** max(last, first + 1)


def _powers(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, (last - first) // 6)
    return [10.0**n for n in range(first, last + 1, step)]


def _short(value: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'
