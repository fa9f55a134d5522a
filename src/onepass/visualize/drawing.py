"""The pictures of `onepass visualize` as inline SVG: the tiles of a step, and the steps of every mode on a time axis.

Colours are classes of STYLE, which names the custom properties of the reports' theme.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median
from typing import Any

import numpy as np

from onepass.html_report.figures import number
from onepass.trace import TraceStep
from onepass.visualize.tiles import StepTiles, TileGrid

STYLE = """
.tile.whole { fill: var(--accent); } .tile.masked { fill: var(--s4); } .tile.own { fill: var(--s2); }
.tile.unneeded { fill: var(--bad); opacity: .45; } .tile.grid { fill: var(--raised); stroke: var(--line); }
.step { fill: var(--accent); stroke: var(--paper); } .step.odd { opacity: .7; }
.wait { fill: var(--peer); opacity: .35; }
.legend span { white-space: nowrap; margin-right: 1rem; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; vertical-align: -.05rem; margin-right: .35rem; }
.steps { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; align-items: flex-end; }
.steps figure { margin: 0; min-width: 0; max-width: 100%; } .steps svg { width: auto; max-width: 100%; }
figcaption { color: var(--dim); font-size: .85rem; font-variant-numeric: tabular-nums; margin-top: .3rem; }
.cut { stroke: var(--paper); stroke-width: 3; stroke-dasharray: 4 3; }
@media (max-width: 48rem) {
  svg.timeline text { font-size: 20px; } .legend span { white-space: normal; display: block; }
}
"""
KINDS = {
    "whole": "page of context keys that all tokens of the block see: no mask",
    "masked": "page of context keys, masked",
    "own": "keys of items in the step, masked",
    "unneeded": "computed, but no token may see any of its keys",
}
WIDTH, LEFT, RIGHT = 720, 180, 150
ROW, BAR = 34, 20
CUT = 5.0
SIDE, MAX_SIDE = 460, 12.0  # of a picture, and of one tile


def legend(kinds: Sequence[str]) -> str:
    swatches = (
        f'<span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="tile {kind}" width="10" height="10"/></svg>'
        f"{escape(KINDS[kind])}</span>"
        for kind in kinds
    )
    return f'<p class="legend">{"".join(swatches)}</p>'


def kinds_of(steps: Sequence[StepTiles]) -> list[str]:
    """The kinds of tiles that occur, in the order of the legend."""
    present = {kind for step in steps for kind, mask, _ in _layers(step) if mask.any()}
    return [kind for kind in KINDS if kind in present]


def tiles(step: StepTiles, title: str) -> str:
    """Rows are blocks of asking tokens; columns are pages, then blocks of own keys, without those nobody uses."""
    visited = step.visited
    rows, entries, own = _extent(step)
    gap = 1.5 if entries and own else 0.0
    columns = entries + own + gap
    side = max(1.0, min(MAX_SIDE, SIDE / max(rows, columns, 1)))
    parts = [_rect("grid", 0, 0, entries, rows, side), _rect("grid", entries + gap, 0, own, rows, side)]
    for kind, mask, shift in _layers(step):
        kept = mask[:rows, : own if shift else entries]
        for row, first, last in _runs(kept):
            parts.append(_rect(kind, first + (entries + gap if shift else 0), row, last - first, 1, side))
    width, height = columns * side, rows * side
    return (
        f'<svg viewBox="0 0 {width:.1f} {height:.1f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(title)}: {visited.count:,} tiles of {visited.block} tokens">{"".join(parts)}</svg>'
    )


def tile_rows(step: StepTiles) -> dict[str, Any]:
    """The same picture as numbers: its rows, page-table entries and blocks of own keys, and `runs` of tiles of a kind,
    each [row, first, end] among the entries or, of kind `own` and `unneeded_own`, among the blocks of own keys."""
    rows, entries, own = _extent(step)
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for kind, mask, is_own in _layers(step):
        name = f"{kind}_own" if is_own and kind != "own" else kind
        runs[name] = list(_runs(mask[:rows, : own if is_own else entries]))
    return {"rows": rows, "entries": entries, "own_blocks": own, "runs": runs}


def timeline(rows: Sequence[tuple[str, Sequence[TraceStep], float]]) -> str:
    """A row per mode: its steps from launch to collection, and the request's whole time, on one axis in ms. A mode far
    slower than the others is cut at the axis's end, and says so."""
    longest = _axis_end([total for _, _, total in rows])
    unit = 10.0 ** math.floor(math.log10(longest / 2))
    step = max(size * unit for size in (1, 2, 5) if size * unit <= longest / 2)
    most = step * math.ceil(longest / step)
    room = WIDTH - LEFT - RIGHT
    bottom = len(rows) * ROW
    parts = []
    for n in range(round(most / step) + 1):
        x = LEFT + room * n * step / most
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
        label = number(n * step) if n else "0 ms"
        parts.append(f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    for n, (name, steps, total) in enumerate(rows):
        y = n * ROW + (ROW - BAR) / 2
        scale = room / most
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15:.1f}" text-anchor="end">{escape(name)}</text>')
        shown = min(total, most)
        parts.append(f'<rect class="wait" x="{LEFT}" y="{y}" width="{shown * scale:.2f}" height="{BAR}"/>')
        for at, one in enumerate(steps):
            start, stop = min(one.launched_ms, most), min(one.collected_ms, most)
            x, width = LEFT + start * scale, (stop - start) * scale
            kind = "step odd" if at % 2 else "step"
            words = f"step {at + 1}: {one.tokens:,} tokens, {one.device_ms:.2f} ms on the device"
            parts.append(
                f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{max(width, 0.4):.2f}" height="{BAR}">'
                f"<title>{words}</title></rect>"
            )
        end = LEFT + shown * scale + 6
        parts.append(f'<text x="{end:.1f}" y="{y + 15:.1f}">{number(total)} ms{", cut" if total > most else ""}</text>')
        if total > most:
            parts.append(f'<line class="cut" x1="{end - 14:.1f}" x2="{end - 14:.1f}" y1="{y}" y2="{y + BAR}"/>')
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {bottom + 24}" role="img" '
        f'aria-label="steps of each mode on a time axis">{"".join(parts)}</svg>'
    )


def _axis_end(totals: Sequence[float]) -> float:
    """The longest that is not CUT times as long as the median."""
    if not totals:
        return 1.0
    return max(total for total in totals if total <= CUT * median(totals)) or 1.0


def _layers(step: StepTiles) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Kind, which tiles, and whether they are of own keys."""
    visited, seen = step.visited, step.visible
    needless = visited.pages & ~seen.pages, visited.own & ~seen.own
    yield "whole", visited.whole & seen.pages, False
    yield "masked", visited.pages & seen.pages & ~visited.whole, False
    yield "own", visited.own & seen.own, True
    yield "unneeded", needless[0], False
    yield "unneeded", needless[1], True


def _extent(step: StepTiles) -> tuple[int, int, int]:
    """Rows, entries and own blocks up to the last that is visited."""

    def last(grid: np.ndarray, axis: int) -> int:
        used = np.flatnonzero(grid.any(axis)) if grid.size else np.zeros(0, int)
        return int(used[-1]) + 1 if len(used) else 0

    grid: TileGrid = step.visited
    return max(last(grid.pages, 1), last(grid.own, 1), 1), last(grid.pages, 0), last(grid.own, 0)


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(row, first, last + 1) of consecutive tiles."""
    for row in np.flatnonzero(mask.any(1)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].astype(np.int8), [0]])))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield int(row), first, last


def _rect(kind: str, x: float, y: float, width: float, height: float, side: float) -> str:
    if not width or not height:
        return ""
    inset = 0.0 if kind == "grid" or side < 4 else 0.6
    return (
        f'<rect class="tile {kind}" x="{x * side + inset:.1f}" y="{y * side + inset:.1f}" '
        f'width="{width * side - 2 * inset:.1f}" height="{height * side - 2 * inset:.1f}"/>'
    )
