"""Headings and cells of a benchmark's rows, peers and speed-ups, as texts: what tables and Markdown share."""

from onepass.bench.document import Document
from onepass.bench.mixed import MIXED
from onepass.html_report.figures import difference, number, percent

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
PEER_HEADINGS = ("peer", "dtype", "onepass/peer", "items/s", "onepass beside it", "p50 ms", "max diff", "verdict")


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


def cells_of(document: Document, purpose: str) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and cells of a document's rows, which differ with how the rows were measured."""
    rows = [row for row in document["rows"] if row["purpose"] == purpose]
    if rows and all(_of_mixed_traffic(row) for row in rows):
        return MIXED_HEADINGS, [mixed_cells(row) for row in rows]
    headings, cells = (HTTP_HEADINGS, http_cells) if document.get("driver") == "http" else (HEADINGS, row_cells)
    return headings, [cells(row) for row in rows]


def part_cells(document: Document) -> list[list[str]]:
    """A line for each kind of request, of rows whose traffic had several."""
    lines = []
    for row in document["rows"]:
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
        number(peer.get("beside")),
        number(peer["latency_ms"].get("p50")),
        difference(peer["max_difference"]),
        "VOID" if peer["void"] else "ok" if peer["agrees"] else "scores differ",
    ]


def speedups(document: Document) -> tuple[list[str], list[list[str]]]:
    modes = list(dict.fromkeys(mode for line in document["speedup_table"] for mode in line["speedup"]))
    lines = [
        [line["dtype"], str(line["items"]), *(number(line["speedup"].get(mode)) for mode in modes)]
        for line in document["speedup_table"]
    ]
    return ["dtype", "items", *modes], lines
