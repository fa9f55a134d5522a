"""A benchmark's document as tables for the terminal and as Markdown. The page with plots is `html`.

Ratios come first and times second; void rows stay, and say why.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bench.document import Document, stem
from onepass.bench.mixed import MIXED
from onepass.bench.report.finding import finding
from onepass.html_report.figures import difference, number, percent, setting, words

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "mode", "dtype", "items/s", "x serial", "ms/item", "p50 ms", "p95 ms", "p99 ms", "tokens/s",
    "TFLOP/s", "of roof", "padding", "peak GB", "compiled", "max diff", "verdict",
)  # fmt: skip
HTTP_HEADINGS = (
    "mode", "dtype", "items/s", "req/s", "offered", "p50 ms", "p95 ms", "p99 ms", "queue ms", "encode ms",
    "device ms", "http ms", "answers", "429s", "client CPU", "compiled", "max diff", "verdict",
)  # fmt: skip
MIXED_HEADINGS = (
    "mode", "dtype", "answers/s", "items/s", "tokens/s", "x small", "TFLOP/s", "of roof", "p50 ms", "p99 ms",
    "answers", "errors", "compiled", "max diff", "verdict",
)  # fmt: skip
PART_HEADINGS = ("mode", "dtype", "kind", "answers", "p50 ms", "p95 ms", "p99 ms", "max ms")
PURPOSES = {"modes": "Modes", "alone": "Workload small alone, in the same run", "sweep": "Sweeps"}
TERMINAL_LEAVES_OUT = ("ms/item", "p95 ms", "tokens/s", "peak GB", "compiled")
HTTP_LEAVES_OUT = ("dtype", "offered", "p95 ms", "encode ms", "http ms", "client CPU", "compiled")
MIXED_LEAVES_OUT = ("dtype", "TFLOP/s", "p50 ms", "p99 ms")  # latencies have a table by kind
LEFT_OUT = {HEADINGS: TERMINAL_LEAVES_OUT, HTTP_HEADINGS: HTTP_LEAVES_OUT, MIXED_HEADINGS: MIXED_LEAVES_OUT}
PEER_HEADINGS = ("peer", "dtype", "onepass/peer", "items/s", "p50 ms", "max diff", "verdict")


def row_cells(row: Document) -> list[str]:
    latency, reached = row["latency_ms"], row["reached"]
    swept = "".join(f" {name}={value}" for name, value in row["sweep"].items())
    ran = f" ({row['ran_as']})" if row["mode"] == "auto" and row["ran_as"] else ""
    return [
        row["mode"] + ran + swept,
        row["dtype"],
        number(row["items_per_second"]),
        number(row["speedup_over_serial"]),
        number(row["latency_per_item_ms"]),
        number(latency.get("p50")),
        number(latency.get("p95")),
        number(latency.get("p99")),
        number(row["tokens_per_second"]),
        number(reached.get("tflops")),
        percent(reached.get("fraction")),
        number(row["padding_ratio"]),
        number(row["peak_memory_bytes"] / 1e9),
        f"{row['compilations']}+{row['backend_compilations']}",
        difference(row["max_difference"]),
        "VOID" if row["void"] else "sampled" if row["sampled_items"] else "ok",
    ]


def http_cells(row: Document) -> list[str]:
    latency, split = row["latency_ms"], row["split_ms"]
    return [
        row["mode"],
        row["dtype"],
        number(row["items_per_second"]),
        number(row["achieved_per_second"]),
        number(row["offered_per_second"]),
        *(number(latency.get(name)) for name in ("p50", "p95", "p99")),
        *(number(split.get(name)) for name in ("queue", "encode", "device", "http")),
        f"{row['repeats']:,}",
        f"{row['overloaded']:,}",
        percent(row["client_cpu"]),
        str(row["compilations"]),
        difference(row["max_difference"]),
        "VOID" if row["void"] else "ok",
    ]


def mixed_cells(row: Document) -> list[str]:
    latency, reached = row["latency_ms"], row["reached"]
    return [
        row["mode"],
        row["dtype"],
        number(row["achieved_per_second"]),
        number(row["items_per_second"]),
        number(row["tokens_per_second"]),
        number(row["over_small"]),
        number(reached.get("tflops")),
        percent(reached.get("fraction")),
        number(latency.get("p50")),
        number(latency.get("p99")),
        f"{row['repeats']:,}",
        f"{row['num_errors']:,}",
        f"{row['compilations']}+{row['backend_compilations']}",
        difference(row["max_difference"]),
        "VOID" if row["void"] else "ok",
    ]


def cells_of(made: Document, purpose: str) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and cells of a document's rows, which differ with how the rows were measured."""
    rows = [row for row in made["rows"] if row["purpose"] == purpose]
    if rows and all(_of_mixed_traffic(row) for row in rows):
        return MIXED_HEADINGS, [mixed_cells(row) for row in rows]
    headings, cells = (HTTP_HEADINGS, http_cells) if made.get("driver") == "http" else (HEADINGS, row_cells)
    return headings, [cells(row) for row in rows]


def part_cells(made: Document) -> list[list[str]]:
    """A line for each kind of request, of rows whose traffic had several."""
    lines = []
    for row in made["rows"]:
        parts = row.get("parts") or {}
        for part, times in parts.items() if len(parts) > 1 or _of_mixed_traffic(row) else ():
            shown = [number(times[name]) for name in ("p50", "p95", "p99", "max")]
            lines.append([row["mode"], row["dtype"], part, f"{times['requests']:,}", *shown])
    return lines


def _of_mixed_traffic(row: Document) -> bool:
    return str(row["workload"]).partition(":")[0] == MIXED


def peer_cells(peer: Document) -> list[str]:
    return [
        peer["peer"] + (f" ({peer['variant']})" if peer.get("variant") else ""),
        peer["dtype"],
        number(peer["ratio"]),
        number(peer["items_per_second"]),
        number(peer["latency_ms"].get("p50")),
        difference(peer["max_difference"]),
        "VOID" if peer["void"] else "ok" if peer["agrees"] else "scores differ",
    ]


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
    return found


def speedups(made: Document) -> tuple[list[str], list[list[str]]]:
    modes = list(dict.fromkeys(mode for line in made["speedup_table"] for mode in line["speedup"]))
    lines = [
        [line["dtype"], str(line["items"]), *(number(line["speedup"].get(mode)) for mode in modes)]
        for line in made["speedup_table"]
    ]
    return ["dtype", "items", *modes], lines


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
    return [f"{', '.join(names)}: {note}" for note, names in said.items()]


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
        left = heading in ("mode", "dtype", "kind", "peer", "verdict")
        made.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def _markdown(headings: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
