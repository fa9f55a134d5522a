"""The page of `onepass visualize`: what each mode computes of one workload, counted, drawn and timed.

Running the modes is `mode_run`, drawing is `drawing`, the frame and the style sheet are `html_report`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from onepass.html_report.figures import number
from onepass.html_report.page import Row, report_page, table
from onepass.visualize.document import DRAWN_STEPS
from onepass.visualize.drawing import STYLE, kinds_of, legend, tiles, timeline
from onepass.visualize.mode_run import ModeRun

HEADINGS = (
    "mode", "steps", "tokens", "computed twice", "tiles", "tiles needed", "pairs seen", "device ms", "total ms",
)  # fmt: skip


def visualize_page(runs: Sequence[ModeRun], facts: Mapping[str, Any]) -> str:
    """`facts` are settings and provenance, as text."""
    title = f"{facts['model']} · {facts['workload']}"
    return report_page(title, summary(runs), _body(runs, facts), style=STYLE)


def summary(runs: Sequence[ModeRun]) -> str:
    """`packed-segment computes 1,240 tiles in 1 step and 35 ms; packed-dense 4,096 (3.3 x), serial 9,000 (7.3 x).`"""
    ours = next((run for run in runs if run.name == "packed-segment"), runs[0])
    others = [f"{run.name} {run.tiles:,} ({number(run.tiles / max(1, ours.tiles))} x)" for run in runs if run != ours]
    steps = f"{len(ours.steps)} step{'' if len(ours.steps) == 1 else 's'}"
    head = f"{ours.name} computes {ours.tiles:,} tiles of attention in {steps} and {number(ours.total_ms)} ms"
    return f"{head}; {', '.join(others)}." if others else f"{head}."


def rows_of(runs: Sequence[ModeRun]) -> list[Row]:
    return [
        Row(
            (
                run.name,
                f"{len(run.steps):,}",
                f"{run.computed_tokens:,}",
                f"{run.repeated_tokens:,}",
                f"{run.tiles:,}",
                f"{run.visible_tiles:,}",
                _share(run.visible_pairs / max(1, run.pairs)),
                number(sum(step.device_ms for step in run.trace.steps)),
                number(run.total_ms),
            )
        )
        for run in runs
    ]


def _share(part: float) -> str:
    """Percent, with one digit of what is below 1 %."""
    return f"{100 * part:.1g} %" if part < 0.01 else f"{100 * part:.0f} %"


def _body(runs: Sequence[ModeRun], facts: Mapping[str, Any]) -> Iterator[str]:
    first = runs[0].steps[0].visited
    yield table(HEADINGS, rows_of(runs))
    yield (
        f"<p>A tile is {first.block} asking tokens against a page of {first.page} context keys, or against "
        f"{first.block} keys of the step's items. Tiles are counted from the table that the kernel walks, in every "
        "layer but the last, which asks at read-outs only; those that are needed are counted by the visibility rule, "
        "token by token. "
        "“Pairs seen” is the part of a mode's pairs of token and key that the rule allows. “Computed twice” are tokens "
        "beyond the query once and every item once.</p>"
    )
    yield "<h2>Steps on a time axis</h2>"
    yield timeline([(run.name, run.trace.steps, run.end_ms) for run in runs])
    yield f"<p>{_times(runs)}</p>"
    yield "<h2>Which tiles each mode computes</h2>"
    yield legend(kinds_of([step for run in runs for step in run.steps[:DRAWN_STEPS]]))
    for run in runs:
        yield from _mode(run)
    yield "<h2>How it was run</h2><ul>"
    for key, value in facts.items():
        yield f"<li>{escape(key)}: <code>{escape(str(value))}</code></li>"
    yield "</ul>"


def _mode(run: ModeRun) -> Iterator[str]:
    count = len(run.steps)
    yield f"<h3>{escape(run.name)}</h3><p>{escape(run.reason)}. Attention by <code>{escape(run.attention)}</code>.</p>"
    yield '<div class="steps">'
    for n, (step, shape) in enumerate(zip(run.steps[:DRAWN_STEPS], run.shapes, strict=False)):
        words = f"step {n + 1} of {count:,}: {step.visited.count:,} tiles, rung {shape.tokens:,}"
        if n < len(run.trace.steps):
            words += f", {run.trace.steps[n].tokens:,} tokens"
        yield f"<figure>{tiles(step, f'{run.name}, {words}')}<figcaption>{escape(words)}</figcaption></figure>"
    yield "</div>"
    if count > DRAWN_STEPS:
        rest = sum(step.visited.count for step in run.steps[DRAWN_STEPS:])
        yield f"<p>And {count - DRAWN_STEPS:,} more steps with {rest:,} tiles.</p>"


def _times(runs: Sequence[ModeRun]) -> str:
    spread = "; ".join(
        f"{escape(run.name)} {number(median(run.times_ms))} ms ({number(min(run.times_ms))} to "
        f"{number(max(run.times_ms))}, {len(run.times_ms)})"
        for run in runs
    )
    return (
        "Median of runs with nothing cached, their range, and how many there were (a mode is repeated for a minute at "
        f"most): {spread}. The run of median time is drawn."
    )
