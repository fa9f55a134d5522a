"""An evaluation as one HTML page: metrics with intervals, comparisons, the gain of each query, the largest gains."""

from html import escape

from onepass.evaluate.bootstrap import Difference, Interval
from onepass.evaluate.evaluation import Comparison, SystemResult
from onepass.evaluate.report import Report, summary
from onepass.html_report.figures import setting, words
from onepass.html_report.page import Cell, Row, Verdict, report_page, table

WIDTH, HEIGHT, LEFT, MARGIN = 720, 220, 48, 16
LISTED_QUERIES = 10
STYLE = ".gain { fill: var(--good); } .loss { fill: var(--bad); }"


def evaluation_page(report: Report) -> str:
    names = [str(metric) for metric in report.evaluation.options.metrics]
    body = [_facts(report), _systems(report, names)]
    for comparison, pair in zip(report.comparisons(), report.pairs(), strict=True):
        body.append(_comparison(comparison, names) + _queries(report, *pair))
    body += [_warnings(report), _settings(report)]
    title = f"Evaluation of {', '.join(system.name for system in report.systems[1:]) or report.systems[0].name}"
    return report_page(title, summary(report), body, verdict=_verdict(report, names[0]), style=STYLE)


def _verdict(report: Report, metric: str) -> Verdict:
    """Green and red where the interval of the last comparison leaves no doubt."""
    comparisons = report.comparisons()
    if not comparisons:
        return ""
    difference = comparisons[-1].metrics[metric]
    return "good" if difference.low > 0 else "bad" if difference.high < 0 else ""


def _facts(report: Report) -> str:
    collection, options = report.evaluation.collection, report.evaluation.options
    bootstrap = options.bootstrap
    return (
        f"<p>{len(collection.queries):,} queries, {collection.num_documents:,} documents; the best {options.depth:,} "
        f"of {escape(report.systems[0].name)} were reranked. Intervals hold {bootstrap.confidence:.0%} of "
        f"{bootstrap.samples:,} resamples of the queries (seed {bootstrap.seed}).</p>"
    )


def _systems(report: Report, names: list[str]) -> str:
    by_system = report.intervals()
    rows = [Row([name, *(_interval(intervals[name]) for intervals in by_system)]) for name in names]
    return "<h2>Metrics</h2>" + table(["metric", *(system.name for system in report.systems)], rows)


def _interval(interval: Interval) -> str:
    return f"{interval.mean:.4f} ({interval.low:.4f} to {interval.high:.4f})"


def _comparison(comparison: Comparison, names: list[str]) -> str:
    headings = ["metric", "difference", "interval", "p", "wins", "losses", "ties"]
    rows = [Row([name, *_cells(comparison.metrics[name])]) for name in names]
    return f"<h2>{escape(comparison.system)} against {escape(comparison.baseline)}</h2>{table(headings, rows)}"


def _cells(difference: Difference) -> list[str]:
    return [
        f"{difference.mean:+.4f}",
        f"{difference.low:+.4f} to {difference.high:+.4f}",
        difference.shown_p_value,
        *(f"{count:,}" for count in (difference.wins, difference.losses, difference.ties)),
    ]


def _queries(report: Report, system: SystemResult, baseline: SystemResult) -> str:
    """By the first metric: a bar per query, and the queries that changed most."""
    metric = str(system.metrics[0])
    gains = sorted(
        (
            (mine.values[0] - other.values[0], mine.query_id, other.values[0], mine.values[0])
            for mine, other in zip(system.queries, baseline.queries, strict=True)
        ),
        reverse=True,
    )
    changed = sorted((gain for gain in gains if gain[0]), key=lambda gain: -abs(gain[0]))[:LISTED_QUERIES]
    texts = report.evaluation.collection.queries
    rows = [
        Row([query, Cell(texts[query]), f"{before:.4f}", f"{after:.4f}", f"{gain:+.4f}"])
        for gain, query, before, after in changed
    ]
    listed = table(["query", "text", baseline.name, system.name, "difference"], rows) if rows else ""
    return f"<h3>{escape(metric)} by query</h3>{_bars([gain[0] for gain in gains])}{listed}"


def _bars(gains: list[float]) -> str:
    """Differences from the largest gain to the largest loss, around a line at 0."""
    middle, room = HEIGHT / 2, HEIGHT / 2 - MARGIN
    largest = max((abs(gain) for gain in gains), default=0.0) or 1.0
    step = (WIDTH - LEFT - MARGIN) / max(1, len(gains))
    parts = [
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{middle}" y2="{middle}"/>',
        *(
            f'<text class="dim" x="{LEFT - 6}" y="{middle - room * share + 4:.1f}" text-anchor="end">'
            f"{largest * share:+.2f}</text>"
            for share in (1, -1)
        ),
    ]
    for place, gain in enumerate(gains):
        height = room * abs(gain) / largest
        top = middle - height if gain > 0 else middle
        kind = "gain" if gain > 0 else "loss"
        parts.append(
            f'<rect class="{kind}" x="{LEFT + place * step:.2f}" y="{top:.2f}" width="{max(0.5, step * 0.9):.2f}" '
            f'height="{height:.2f}"><title>{gain:+.4f}</title></rect>'
        )
    label = f"difference of {len(gains)} queries, from {max(gains, default=0):+.4f} to {min(gains, default=0):+.4f}"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _warnings(report: Report) -> str:
    if not report.evaluation.warnings:
        return ""
    return (
        "<h2>Warnings</h2><ul>" + "".join(f"<li>{escape(text)}</li>" for text in report.evaluation.warnings) + "</ul>"
    )


def _settings(report: Report) -> str:
    document = report.to_dict()
    settings = {"onepass": document["onepass"], **document["settings"]}
    rows = [Row([words(name), Cell(setting(value))]) for name, value in settings.items()]
    return "<h2>Settings</h2>" + table(["setting", "value"], rows)
