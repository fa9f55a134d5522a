"""A benchmark's document as tables for the terminal and as Markdown.

Headings and cells are `cells`; the page with plots is `html`. Ratios come first and times second; void rows stay, and
say why.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench.document import Document, stem
from onepass.bench.report.cells import (
    HEADINGS,
    HTTP_HEADINGS,
    MIXED_HEADINGS,
    PART_HEADINGS,
    PEER_HEADINGS,
    cells_of,
    part_cells,
    peer_cells,
    speedups,
)
from onepass.bench.report.drift import DRIFT_HEADINGS, DRIFT_TITLE, drift_cells, forms
from onepass.bench.report.finding import finding
from onepass.html_report.figures import number, setting, words

if TYPE_CHECKING:
    from rich.table import Table

PURPOSES = {"modes": "Modes", "alone": "Workload small alone, in the same run", "sweep": "Sweeps"}
TERMINAL_LEAVES_OUT = ("ms/item", "p95 ms", "tokens/s", "peak GB", "compiled")
HTTP_LEAVES_OUT = ("dtype", "offered", "p95 ms", "encode ms", "http ms", "client CPU", "compiled")
MIXED_LEAVES_OUT = ("dtype", "TFLOP/s", "p50 ms", "p99 ms")  # latencies have a table by kind
LEFT_OUT = {HEADINGS: TERMINAL_LEAVES_OUT, HTTP_HEADINGS: HTTP_LEAVES_OUT, MIXED_HEADINGS: MIXED_LEAVES_OUT}
LEFT_ALIGNED = ("mode", "dtype", "kind", "peer", "verdict", "system", "beside onepass")


def tables(document: Document) -> "list[Table]":
    """For the terminal: the modes, the sweeps, the speed-ups and the peers, where there are any."""
    shape = document["workloads"][0]
    title = (
        f"{document['model']} · {shape['name']}: {shape['query_tokens']:g} + {_each(shape)} x {_lengths(shape)} tokens"
    )
    if shape["in_flight"] > 1:
        title += f", {shape['in_flight']} requests kept in flight"
    shown = []
    for purpose, heading in {**PURPOSES, "modes": title}.items():
        headings, rows = cells_of(document, purpose)
        keep = [i for i, name in enumerate(headings) if name not in LEFT_OUT.get(headings, ())]
        if rows:
            shown.append(_table(heading, [headings[i] for i in keep], [[row[i] for i in keep] for row in rows]))
    if parts := part_cells(document):
        shown.append(_table("latencies by kind", PART_HEADINGS, parts))
    if document["speedup_table"]:
        shown.append(_table("times faster than serial", *speedups(document)))
    if document["peers"]:
        shown.append(
            _table("peers: same machine, weights and tokens", PEER_HEADINGS, map(peer_cells, document["peers"]))
        )
    if lines := drift_cells(document):
        shown.append(_table(DRIFT_TITLE, DRIFT_HEADINGS, lines))
    return shown


def remarks(document: Document) -> list[str]:
    """Void rows and peers, and why; then what else must be known of a row or a peer."""
    return void_reasons(document) + notes(document)


def void_reasons(document: Document) -> list[str]:
    return [f"VOID {called}: {reason}" for called, measured in _measured(document) for reason in measured["void"]]


def notes(document: Document) -> list[str]:
    """What must be known of rows and peers; the same note of several once, with all their names."""
    said: dict[str, list[str]] = {}
    for called, measured in _measured(document):
        for note in measured["notes"]:
            said.setdefault(note, []).append(called)
    return [f"{', '.join(names)}: {note}" for note, names in said.items()] + forms(document)


def _measured(document: Document) -> list[tuple[str, Document]]:
    peers = [(f"peer {peer['peer']} {peer['dtype']}", peer) for peer in document["peers"]]
    return [(_called(row), row) for row in document["rows"]] + peers


def _called(row: Document) -> str:
    beside = [row["workload"]] if row["purpose"] == "alone" else []
    return " ".join([*beside, row["mode"], row["dtype"], *(f"{k}={v}" for k, v in row["sweep"].items())])


def machine(document: Document) -> str:
    """One line: what it ran on, and its measured ceilings."""
    tops = "; ".join(
        f"{c['dtype']} product {number(c['flops_per_second'] / 1e12)} TFLOP/s, "
        f"copy {number(c['bytes_per_second'] / 1e9)} GB/s"
        for c in document["ceilings"]
    )
    return f"{document['hardware']['device']}, {document['hardware']['cores']} cores" + (f" · {tops}" if tops else "")


def markdown(document: Document) -> str:
    lines = [
        f"# {document['model']} · {document['settings']['workload']}",
        "",
        finding(document),
        "",
        f"`{document['command']}`",
        "",
    ]
    lines += [f"{document['date']}, commit {document['commit'] or 'unknown'}; {machine(document)}", ""]
    if document["peers"]:
        lines += ["## Peers", "", *_markdown(PEER_HEADINGS, map(peer_cells, document["peers"])), ""]
    if beside := drift_cells(document):
        lines += [f"## {DRIFT_TITLE.capitalize()}", "", *_markdown(DRIFT_HEADINGS, beside), ""]
    for purpose, heading in PURPOSES.items():
        headings, rows = cells_of(document, purpose)
        if rows:
            lines += [f"## {heading}", "", *_markdown(headings, rows), ""]
    if parts := part_cells(document):
        lines += ["## Latencies by kind", "", *_markdown(PART_HEADINGS, parts), ""]
    if document["speedup_table"]:
        lines += ["## Times faster than serial", "", *_markdown(*speedups(document)), ""]
    lines += [f"- {remark}" for remark in remarks(document)]
    lines += ["", "## Workloads", ""]
    lines += [
        f"- {w['name']}: {w['items']} items, {w['tokens']} tokens, sha256 {w['checksum']}"
        for w in document["workloads"]
    ]
    lines += ["", "## Settings", "", *(f"- {key}: {value}" for key, value in facts(document).items()), ""]
    return "\n".join(lines)


def facts(document: Document) -> dict[str, str]:
    """How it was run, in words."""
    flat = {key: value for key, value in document["settings"].items() if key != "engine"}
    peers = {
        f"{peer['peer']} {peer['dtype']}": {**peer.get("versions", {}), **peer.get("settings", {})}
        for peer in document["peers"]
    }
    known = {**document["hardware"], **document["versions"], **flat, "label_token_ids": document["label_token_ids"]}
    return {words(name): setting(value) for name, value in known.items()} | {
        name: setting(value) for name, value in peers.items()
    }


def write_report(document: Document, folder: Path) -> list[Path]:
    """Markdown and HTML beside the JSON, under the same name."""
    from onepass.bench.report.html import page

    paths = [folder / f"{stem(document)}.md", folder / f"{stem(document)}.html"]
    for path, text in zip(paths, (markdown(document), page(document)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def _each(shape: Document) -> str:
    """Items of a request."""
    return f"{shape['items'] / max(1, shape['requests']):g}"


def _lengths(shape: Document) -> str:
    least, most = shape["item_tokens"]["min"], shape["item_tokens"]["max"]
    return str(least) if least == most else f"{least}-{most}"


def _table(title: str, headings: Sequence[str], rows: Any) -> "Table":
    from rich import box
    from rich.table import Table

    document = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading in headings:
        left = heading in LEFT_ALIGNED
        document.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        document.add_row(*row)
    return document


def _markdown(headings: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
