"""A benchmark's document as one HTML file with plots: peers, throughput, scaling, latencies, roofline, and the facts.

The frame, the style sheet and the drawing are `html_report`'s; the tables' cells are `tables`'s.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from onepass.bench.document import Document
from onepass.bench.report import tables as report
from onepass.bench.report.cells import PART_HEADINGS, PEER_HEADINGS, cells_of, part_cells, peer_cells, speedups
from onepass.bench.report.drift import DRIFT_HEADINGS, DRIFT_TITLE, drift_cells
from onepass.bench.report.finding import finding
from onepass.html_report import svg
from onepass.html_report.figures import number
from onepass.html_report.page import Row, report_page, table


def page(document: Document) -> str:
    title = f"{document['model']} · {document['settings']['workload']}"
    body = [
        *(f"<p class=bad>{escape(reason)}</p>" for reason in report.void_reasons(document)),
        f"<p>{escape(report.machine(document))}<br>",
        f"{escape(document['date'])}, commit {escape(document['commit'] or 'unknown')}</p>",
        f"<p><code>{escape(document['command'])}</code></p>",
        *_peers(document),
        *_drift(document),
        *_modes(document),
        *_scaling(document),
        *_latencies(document),
        *_rooflines(document),
        *_notes(document),
        *_facts(document),
    ]
    return report_page(title, finding(document), body)


def _plain(document: Document) -> list[Document]:
    return [row for row in document["rows"] if row["purpose"] == "modes"]


def _called(row: Document) -> str:
    return f"{row['mode']} {row['dtype']}"


def _peers(document: Document) -> Iterable[str]:
    if not document["peers"]:
        return
    yield "<h2>Against peers: same machine, same weights, same tokens, same run</h2>"
    yield _table(PEER_HEADINGS, [(peer_cells(peer), bool(peer["void"])) for peer in document["peers"]])
    best = [row for row in _plain(document) if document["fastest"].get(row["dtype"]) == row["mode"]]
    drawn = [(row["items_per_second"], f"onepass {_called(row)}", "ours") for row in best]
    drawn += [(p["items_per_second"], f"{p['peer']} {p['dtype']}", "peer") for p in document["peers"] if not p["void"]]
    drawn = sorted((one for one in drawn if one[0]), reverse=True)
    yield svg.bars([svg.Bar(label, value, f"{number(value)} items/s", kind) for value, label, kind in drawn])


def _drift(document: Document) -> Iterable[str]:
    if lines := drift_cells(document):
        yield f"<h2>{escape(DRIFT_TITLE.capitalize())}</h2>"
        yield _table(DRIFT_HEADINGS, [(line, False) for line in lines])


def _modes(document: Document) -> Iterable[str]:
    yield "<h2>Throughput of each mode</h2>"
    rows = _plain(document)
    yield svg.bars(
        [
            svg.Bar(
                _called(row),
                row["items_per_second"] or 0.0,
                "void" if row["void"] else f"{number(row['items_per_second'])} items/s",
                "void" if row["void"] else "ours",
            )
            for row in rows
        ]
    )
    headings, cells = cells_of(document, "modes")
    yield _tables(headings, [(line, bool(row["void"])) for line, row in zip(cells, rows, strict=True)])
    if parts := part_cells(document):
        yield "<h2>Latencies by kind</h2>"
        yield _table(PART_HEADINGS, [(line, False) for line in parts])
    beside = [bool(row["void"]) for row in document["rows"] if row["purpose"] == "alone"]
    if beside:
        headings, cells = cells_of(document, "alone")
        yield f"<h2>{report.PURPOSES['alone']}</h2>"
        yield _tables(headings, list(zip(cells, beside, strict=True)))


def _scaling(document: Document) -> Iterable[str]:
    if document["speedup_table"]:
        yield "<h2>Times faster than serial</h2>"
        headings, lines = speedups(document)
        yield _table(headings, [(line, False) for line in lines])
    swept = [row for row in document["rows"] if row["sweep"] and not row["void"]]
    for name in dict.fromkeys(name for row in swept for name in row["sweep"]):
        series: dict[str, list[tuple[float, float]]] = {}
        for row in swept:
            if name in row["sweep"]:
                series.setdefault(_called(row), []).append((row["sweep"][name], row["items_per_second"]))
        yield f"<h2>Scaling with {escape(name)}</h2>"
        yield svg.lines([svg.Series(label, sorted(points)) for label, points in series.items()], name, "items/s")


def _latencies(document: Document) -> Iterable[str]:
    rows = [(_called(row), row["times_ms"]) for row in _plain(document) if row["times_ms"] and row["mode"] != "serial"]
    if rows:
        yield "<h2>Latency of every timed call</h2>"
        yield svg.strips(rows, "ms")


def _rooflines(document: Document) -> Iterable[str]:
    if not document["ceilings"]:
        return
    yield "<h2>Roofline</h2><p>The work a request needs at least, the shared query once, against what this machine "
    yield "reached in a large product and a large copy, measured first in the same run.</p>"
    for tops in document["ceilings"]:
        rows = [row for row in _plain(document) if row["dtype"] == tops["dtype"] and row["reached"]]
        points = [(_called(r), r["flops_needed"] / r["bytes_needed"], 1e12 * r["reached"]["tflops"]) for r in rows]
        yield svg.roofline(tops["flops_per_second"], tops["bytes_per_second"], points)


def _notes(document: Document) -> Iterable[str]:
    if notes := report.notes(document):
        yield f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"


def _facts(document: Document) -> Iterable[str]:
    yield "<h2>How it was run</h2>"
    yield "<ul>"
    for key, value in report.facts(document).items():
        yield f"<li>{escape(key)}: <code>{escape(value)}</code></li>"
    for work in document["workloads"]:
        yield f"<li>workload {escape(work['name'])}: {work['items']:,} items, {work['tokens']:,} tokens, "
        yield f"sha256 <code>{work['checksum']}</code></li>"
    yield "</ul>"


def _tables(headings: tuple[str, ...], rows: Sequence[tuple[Sequence[str], bool]]) -> str:
    """The columns that the terminal shows, which fit a window; the others below, folded."""
    others = report.LEFT_OUT.get(headings, ())

    def chosen(wanted: Callable[[str], bool]) -> str:
        keep = [i for i, heading in enumerate(headings) if i == 0 or wanted(heading)]
        return _table([headings[i] for i in keep], [([cells[i] for i in keep], void) for cells, void in rows])

    more = f"<details><summary>More columns</summary>{chosen(lambda heading: heading in others)}</details>"
    return chosen(lambda heading: heading not in others) + (more if others else "")


def _table(headings: Sequence[str], rows: Iterable[tuple[Sequence[str], bool]]) -> str:
    return table(headings, (Row(cells, "void" if void else "") for cells, void in rows))
