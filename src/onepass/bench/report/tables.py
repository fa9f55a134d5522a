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


def tables(made: Document) -> "list[Table]":
    """For the terminal: the modes, the sweeps, the speed-ups and the peers, where there are any."""
    shape = made["workloads"][0]
    title = f"{made['model']} · {shape['name']}: {shape['query_tokens']:g} + {_each(shape)} x {_lengths(shape)} tokens"
    if shape["in_flight"] > 1:
        title += f", {shape['in_flight']} requests kept in flight"
    found = []
    for purpose, heading in {**PURPOSES, "modes": title}.items():
        headings, rows = cells_of(made, purpose)
        keep = [i for i, name in enumerate(headings) if name not in LEFT_OUT.get(headings, ())]
        if rows:
            found.append(_table(heading, [headings[i] for i in keep], [[row[i] for i in keep] for row in rows]))
    if parts := part_cells(made):
        found.append(_table("latencies by kind", PART_HEADINGS, parts))
    if made["speedup_table"]:
        found.append(_table("times faster than serial", *speedups(made)))
    if made["peers"]:
        found.append(_table("peers: same machine, weights and tokens", PEER_HEADINGS, map(peer_cells, made["peers"])))
    if lines := drift_cells(made):
        found.append(_table(DRIFT_TITLE, DRIFT_HEADINGS, lines))
    return found


def remarks(made: Document) -> list[str]:
    """Void rows and peers, and why; then what else must be known of a row or a peer."""
    return void_reasons(made) + notes(made)


def void_reasons(made: Document) -> list[str]:
    return [f"VOID {called}: {reason}" for called, measured in _measured(made) for reason in measured["void"]]


def notes(made: Document) -> list[str]:
    """What must be known of rows and peers; the same note of several once, with all their names."""
    said: dict[str, list[str]] = {}
    for called, measured in _measured(made):
        for note in measured["notes"]:
            said.setdefault(note, []).append(called)
    return [f"{', '.join(names)}: {note}" for note, names in said.items()] + forms(made)


def _measured(made: Document) -> list[tuple[str, Document]]:
    peers = [(f"peer {peer['peer']} {peer['dtype']}", peer) for peer in made["peers"]]
    return [(_called(row), row) for row in made["rows"]] + peers


def _called(row: Document) -> str:
    beside = [row["workload"]] if row["purpose"] == "alone" else []
    return " ".join([*beside, row["mode"], row["dtype"], *(f"{k}={v}" for k, v in row["sweep"].items())])


def machine(made: Document) -> str:
    """One line: what it ran on, and its measured ceilings."""
    tops = "; ".join(
        f"{c['dtype']} product {number(c['flops_per_second'] / 1e12)} TFLOP/s, "
        f"copy {number(c['bytes_per_second'] / 1e9)} GB/s"
        for c in made["ceilings"]
    )
    return f"{made['hardware']['device']}, {made['hardware']['cores']} cores" + (f" · {tops}" if tops else "")


def markdown(made: Document) -> str:
    lines = [f"# {made['model']} · {made['settings']['workload']}", "", finding(made), "", f"`{made['command']}`", ""]
    lines += [f"{made['date']}, commit {made['commit'] or 'unknown'}; {machine(made)}", ""]
    if made["peers"]:
        lines += ["## Peers", "", *_markdown(PEER_HEADINGS, map(peer_cells, made["peers"])), ""]
    if beside := drift_cells(made):
        lines += [f"## {DRIFT_TITLE.capitalize()}", "", *_markdown(DRIFT_HEADINGS, beside), ""]
    for purpose, heading in PURPOSES.items():
        headings, rows = cells_of(made, purpose)
        if rows:
            lines += [f"## {heading}", "", *_markdown(headings, rows), ""]
    if parts := part_cells(made):
        lines += ["## Latencies by kind", "", *_markdown(PART_HEADINGS, parts), ""]
    if made["speedup_table"]:
        lines += ["## Times faster than serial", "", *_markdown(*speedups(made)), ""]
    lines += [f"- {remark}" for remark in remarks(made)]
    lines += ["", "## Workloads", ""]
    lines += [
        f"- {w['name']}: {w['items']} items, {w['tokens']} tokens, sha256 {w['checksum']}" for w in made["workloads"]
    ]
    lines += ["", "## Settings", "", *(f"- {key}: {value}" for key, value in facts(made).items()), ""]
    return "\n".join(lines)


def facts(made: Document) -> dict[str, str]:
    """How it was run, in words."""
    flat = {key: value for key, value in made["settings"].items() if key != "engine"}
    peers = {
        f"{peer['peer']} {peer['dtype']}": {**peer.get("versions", {}), **peer.get("settings", {})}
        for peer in made["peers"]
    }
    known = {**made["hardware"], **made["versions"], **flat, "label_token_ids": made["label_token_ids"]}
    return {words(name): setting(value) for name, value in known.items()} | {
        name: setting(value) for name, value in peers.items()
    }


def write_report(made: Document, folder: Path) -> list[Path]:
    """Markdown and HTML beside the JSON, under the same name."""
    from onepass.bench.report.html import page

    paths = [folder / f"{stem(made)}.md", folder / f"{stem(made)}.html"]
    for path, text in zip(paths, (markdown(made), page(made)), strict=True):
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

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading in headings:
        left = heading in LEFT_ALIGNED
        made.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def _markdown(headings: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
