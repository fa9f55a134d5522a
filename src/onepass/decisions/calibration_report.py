"""A calibration as one HTML page: the errors before and after, and reliability curves as inline SVG."""

from collections.abc import Mapping
from html import escape

import numpy as np

from onepass.decisions.calibration import Calibration
from onepass.decisions.fit import Fit
from onepass.decisions.metrics import CurvePoint, reliability_curve
from onepass.decisions.questions import QuestionType
from onepass.html_report.page import Row, report_page, table

SIDE, MARGIN = 300, 44
BEFORE, AFTER = "s1", "s0"  # colours of the style sheet
STYLE = """
svg { max-width: 25rem } svg text.before { fill: var(--s1) } svg text.after { fill: var(--accent) }
svg circle { opacity: .6 }
"""


def calibration_page(calibration: Calibration, fits: Mapping[QuestionType, Fit]) -> str:
    note = (
        "<p>Every figure after the fit was measured on folds that the fit had not seen. A curve on the diagonal is "
        "right as often as it says; the area of a point is the number of questions in it.</p>"
    )
    sections = [_section(kind, fit) for kind, fit in fits.items()]
    return report_page(f"Calibration {calibration.name}", _summary(fits), [note, *sections], style=STYLE)


def _summary(fits: Mapping[QuestionType, Fit]) -> str:
    """`choice: expected calibration error 0.120 → 0.031 over 240 questions.`"""
    errors = (
        f"{kind}: expected calibration error {fit.before.ece:.3f} → {fit.after.ece:.3f} "
        f"over {fit.before.count:,} questions"
        for kind, fit in fits.items()
    )
    return "; ".join(errors) + "."


def _section(kind: str, fit: Fit) -> str:
    rows = [
        Row((title, f"{getattr(fit.before, name):.4f}", f"{getattr(fit.after, name):.4f}"))
        for title, name in (
            ("expected calibration error", "ece"),
            ("Brier score", "brier"),
            ("log-loss", "log_loss"),
            ("accuracy", "accuracy"),
        )
    ]
    bias = ", ".join(f"{value:+.2f}" for value in fit.calibration.bias[:12])
    return (
        f'<h2>{escape(kind)}: {fit.before.count} questions</h2><div class="columns">'
        f"<div>{_plot(fit)}</div><div>{table(('', 'before', 'after'), rows)}"
        f"<p>temperature {fit.calibration.temperature:.3f}<br>bias by position {bias}</p></div></div>"
    )


def _plot(fit: Fit) -> str:
    before = reliability_curve(fit.probabilities_before, fit.truth)
    after = reliability_curve(fit.probabilities_after, fit.truth)
    ticks = "".join(_tick(value) for value in np.linspace(0, 1, 6))
    size = SIDE + 2 * MARGIN
    return (
        f'<svg width="{size}" viewBox="0 0 {size} {size}" role="img" aria-label="reliability before and after">'
        f'<rect class="axis" x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none"/>{ticks}'
        f'<line class="roof" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'
        f"{_curve(before, BEFORE)}{_curve(after, AFTER)}"
        f'<text x="{_x(0.5)}" y="{size - 8}" text-anchor="middle">probability of the likeliest option</text>'
        f'<text x="12" y="{_y(0.5)}" text-anchor="middle" transform="rotate(-90 12 {_y(0.5)})">how often right</text>'
        f'<text x="{_x(0.02)}" y="{MARGIN - 12}" class="before">before</text>'
        f'<text x="{_x(0.2)}" y="{MARGIN - 12}" class="after">after</text></svg>'
    )


def _tick(value: float) -> str:
    return (
        f'<text x="{_x(value)}" y="{_y(0) + 16}" text-anchor="middle">{value:.1f}</text>'
        f'<text x="{MARGIN - 6}" y="{_y(value) + 4}" text-anchor="end">{value:.1f}</text>'
    )


def _curve(points: list[CurvePoint], series: str) -> str:
    total = sum(point.count for point in points)
    path = " ".join(f"{_x(point.confidence):.1f},{_y(point.accuracy):.1f}" for point in points)
    dots = "".join(
        f'<circle cx="{_x(point.confidence):.1f}" cy="{_y(point.accuracy):.1f}" '
        f'r="{3 + 9 * (point.count / total) ** 0.5:.1f}" class="dot {series}">'
        f"<title>{point.count} questions: said {point.confidence:.2f}, right {point.accuracy:.2f}</title></circle>"
        for point in points
    )
    return f'<polyline class="line {series}" points="{path}"/>{dots}'


def _x(value: float) -> float:
    return MARGIN + SIDE * value


def _y(value: float) -> float:
    return MARGIN + SIDE * (1 - value)
