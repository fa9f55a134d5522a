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


def page(made: Document) -> str:
    title = f"{made['model']} · {made['settings']['workload']}"
    body = [
        *(f"<p class=bad>{escape(reason)}</p>" for reason in report.void_reasons(made)),
        f"<p>{escape(report.machine(made))}<br>",
        f"{escape(made['date'])}, commit {escape(made['commit'] or 'unknown')}</p>",
        f"<p><code>{escape(made['command'])}</code></p>",
        *_peers(made),
        *_drift(made),
        *_modes(made),
        *_scaling(made),
        *_latencies(made),
        *_rooflines(made),
        *_notes(made),
        *_facts(made),
    ]
    return report_page(title, finding(made), body)


def _plain(made: Document) -> list[Document]:
    return [row for row in made["rows"] if row["purpose"] == "modes"]


def _called(row: Document) -> str:
    return f"{row['mode']} {row['dtype']}"


def _peers(made: Document) -> Iterable[str]:
    if not made["peers"]:
        return
    yield "<h2>Against peers: same machine, same weights, same tokens, same run</h2>"
    yield _table(PEER_HEADINGS, [(peer_cells(peer), bool(peer["void"])) for peer in made["peers"]])
    best = [row for row in _plain(made) if made["fastest"].get(row["dtype"]) == row["mode"]]
    drawn = [(row["items_per_second"], f"onepass {_called(row)}", "ours") for row in best]
    drawn += [(p["items_per_second"], f"{p['peer']} {p['dtype']}", "peer") for p in made["peers"] if not p["void"]]
    drawn = sorted((one for one in drawn if one[0]), reverse=True)
    yield svg.bars([svg.Bar(label, value, f"{number(value)} items/s", kind) for value, label, kind in drawn])


def _drift(made: Document) -> Iterable[str]:
    if lines := drift_cells(made):
        yield f"<h2>{escape(DRIFT_TITLE.capitalize())}</h2>"
        yield _table(DRIFT_HEADINGS, [(line, False) for line in lines])


def _modes(made: Document) -> Iterable[str]:
    yield "<h2>Throughput of each mode</h2>"
    rows = _plain(made)
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
    headings, cells = cells_of(made, "modes")
    yield _tables(headings, [(line, bool(row["void"])) for line, row in zip(cells, rows, strict=True)])
    if parts := part_cells(made):
        yield "<h2>Latencies by kind</h2>"
        yield _table(PART_HEADINGS, [(line, False) for line in parts])
    beside = [bool(row["void"]) for row in made["rows"] if row["purpose"] == "alone"]
    if beside:
        headings, cells = cells_of(made, "alone")
        yield f"<h2>{report.PURPOSES['alone']}</h2>"
        yield _tables(headings, list(zip(cells, beside, strict=True)))


def _scaling(made: Document) -> Iterable[str]:
    if made["speedup_table"]:
        yield "<h2>Times faster than serial</h2>"
        headings, lines = speedups(made)
        yield _table(headings, [(line, False) for line in lines])
    swept = [row for row in made["rows"] if row["sweep"] and not row["void"]]
    for name in dict.fromkeys(name for row in swept for name in row["sweep"]):
        found: dict[str, list[tuple[float, float]]] = {}
        for row in swept:
            if name in row["sweep"]:
                found.setdefault(_called(row), []).append((row["sweep"][name], row["items_per_second"]))
        yield f"<h2>Scaling with {escape(name)}</h2>"
        yield svg.lines([svg.Series(label, sorted(points)) for label, points in found.items()], name, "items/s")


def _latencies(made: Document) -> Iterable[str]:
    rows = [(_called(row), row["times_ms"]) for row in _plain(made) if row["times_ms"] and row["mode"] != "serial"]
    if rows:
        yield "<h2>Latency of every timed call</h2>"
        yield svg.strips(rows, "ms")


def _rooflines(made: Document) -> Iterable[str]:
    if not made["ceilings"]:
        return
    yield "<h2>Roofline</h2><p>The work a request needs at least, the shared query once, against what this machine "
    yield "reached in a large product and a large copy, measured first in the same run.</p>"
    for tops in made["ceilings"]:
        rows = [row for row in _plain(made) if row["dtype"] == tops["dtype"] and row["reached"]]
        points = [(_called(r), r["flops_needed"] / r["bytes_needed"], 1e12 * r["reached"]["tflops"]) for r in rows]
        yield svg.roofline(tops["flops_per_second"], tops["bytes_per_second"], points)


def _notes(made: Document) -> Iterable[str]:
    if notes := report.notes(made):
        yield f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"


def _facts(made: Document) -> Iterable[str]:
    yield "<h2>How it was run</h2>"
    yield "<ul>"
    for key, value in report.facts(made).items():
        yield f"<li>{escape(key)}: <code>{escape(value)}</code></li>"
    for work in made["workloads"]:
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
