"""A calibration as one HTML page: the errors before and after, and reliability curves as inline SVG."""

from collections.abc import Mapping
from html import escape

import numpy as np

from onepass.decisions.calibration import Calibration
from onepass.decisions.fit import Fit
from onepass.decisions.metrics import CurvePoint, reliability_curve
from onepass.decisions.questions import QuestionType

SIDE, MARGIN = 300, 44
BEFORE, AFTER = "#c2410c", "#1d4ed8"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .25rem .9rem .25rem 0; text-align: right }
td:first-child, th:first-child { text-align: left } th { border-bottom: 1px solid #9ca3af; font-weight: 600 }
.row { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start }
.note { color: #6b7280 }
"""


def report_page(calibration: Calibration, fits: Mapping[QuestionType, Fit]) -> str:
    sections = "".join(_section(kind, fit) for kind, fit in fits.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(calibration.name)}</title>'
        f"<style>{STYLE}</style></head><body><h1>Calibration {escape(calibration.name)}</h1>"
        '<p class="note">Every figure after the fit was measured on folds that the fit had not seen. A curve on the '
        "diagonal is right as often as it says; the area of a point is the number of questions in it.</p>"
        f"{sections}</body></html>\n"
    )


def _section(kind: str, fit: Fit) -> str:
    rows = "".join(
        f"<tr><td>{title}</td><td>{getattr(fit.before, name):.4f}</td><td>{getattr(fit.after, name):.4f}</td></tr>"
        for title, name in (
            ("expected calibration error", "ece"),
            ("Brier score", "brier"),
            ("log-loss", "log_loss"),
            ("accuracy", "accuracy"),
        )
    )
    bias = ", ".join(f"{value:+.2f}" for value in fit.calibration.bias[:12])
    return (
        f"<h2>{escape(kind)}: {fit.before.count} questions</h2><div class=row>"
        f"{_plot(fit)}<div><table><tr><th></th><th>before</th><th>after</th></tr>{rows}</table>"
        f"<p>temperature {fit.calibration.temperature:.3f}<br>bias by position {bias}</p></div></div>"
    )


def _plot(fit: Fit) -> str:
    before = reliability_curve(fit.probabilities_before, fit.truth)
    after = reliability_curve(fit.probabilities_after, fit.truth)
    ticks = "".join(_tick(value) for value in np.linspace(0, 1, 6))
    size = SIDE + 2 * MARGIN
    return (
        f'<svg width="{size}" height="{size}" viewBox="0 0 {size} {size}" role="img" '
        'aria-label="reliability before and after" font-size="11" fill="#374151">'
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#9ca3af"/>{ticks}'
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#9ca3af" stroke-dasharray="4 4"/>'
        f"{_curve(before, BEFORE)}{_curve(after, AFTER)}"
        f'<text x="{_x(0.5)}" y="{size - 8}" text-anchor="middle">probability of the likeliest option</text>'
        f'<text x="12" y="{_y(0.5)}" text-anchor="middle" transform="rotate(-90 12 {_y(0.5)})">how often right</text>'
        f'<text x="{_x(0.02)}" y="{MARGIN - 12}" fill="{BEFORE}">before</text>'
        f'<text x="{_x(0.2)}" y="{MARGIN - 12}" fill="{AFTER}">after</text></svg>'
    )


def _tick(value: float) -> str:
    return (
        f'<text x="{_x(value)}" y="{_y(0) + 16}" text-anchor="middle">{value:.1f}</text>'
        f'<text x="{MARGIN - 6}" y="{_y(value) + 4}" text-anchor="end">{value:.1f}</text>'
    )


def _curve(points: list[CurvePoint], colour: str) -> str:
    total = sum(point.count for point in points)
    path = " ".join(f"{_x(point.confidence):.1f},{_y(point.accuracy):.1f}" for point in points)
    dots = "".join(
        f'<circle cx="{_x(point.confidence):.1f}" cy="{_y(point.accuracy):.1f}" '
        f'r="{3 + 9 * (point.count / total) ** 0.5:.1f}" fill="{colour}" fill-opacity="0.55">'
        f"<title>{point.count} questions: said {point.confidence:.2f}, right {point.accuracy:.2f}</title></circle>"
        for point in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _x(value: float) -> float:
    return MARGIN + SIDE * value


def _y(value: float) -> float:
    return MARGIN + SIDE * (1 - value)
