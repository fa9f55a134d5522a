"""What a benchmark found, in one sentence: for the top of its page and its Markdown. Tables are `tables`'s."""

from onepass.bench.document import Document
from onepass.bench.mixed import MIXED
from onepass.html_report.figures import number


def finding(document: Document) -> str:
    """Of mode `auto`, which is what a caller gets, where it ran; else of the fastest mode."""
    rows = [row for row in document["rows"] if row["purpose"] == "modes" and not row["void"]]
    measured = [row for row in rows if row["items_per_second"] and row["mode"] != "serial"]
    if not measured:
        return "No mode was measured." if rows else "Every row is void: there is no figure to go by."
    row = max(measured, key=lambda row: (row["mode"] == "auto", row["items_per_second"]))
    if str(row["workload"]).partition(":")[0] == MIXED or document.get("driver") == "http":
        return _of_traffic(row, document.get("driver") == "http")
    rate = f"{number(row['items_per_second'])} items/s in {row['dtype']}"
    peer = _against_peers(row, document)
    if row["speedup_over_serial"] is not None:
        return f"{row['mode']} is {number(row['speedup_over_serial'])} x one at a time: {rate}{peer}."
    return f"{row['mode']} scores {rate}{peer}."


def _of_traffic(row: Document, over_http: bool) -> str:
    where = "over HTTP" if over_http else "of mixed traffic"
    latency = number(row["latency_ms"].get("p99"))
    return (
        f"{row['mode']} answers {number(row['achieved_per_second'])} requests/s {where}: "
        f"{number(row['items_per_second'])} items/s in {row['dtype']}, p99 {latency} ms."
    )


def _against_peers(row: Document, document: Document) -> str:
    """The fastest peer of the same dtype whose scores agree."""
    peers = [
        peer
        for peer in document["peers"]
        if peer["dtype"] == row["dtype"] and peer["items_per_second"] and peer["agrees"] and not peer["void"]
    ]
    if not peers:
        return ""
    fastest = max(peers, key=lambda peer: peer["items_per_second"])
    times = number(row["items_per_second"] / fastest["items_per_second"])
    return f", {times} x {fastest['peer']}, the fastest peer{_drifts(row, fastest)}"


def _drifts(row: Document, peer: Document) -> str:
    """Of quantized scores: a speed means nothing without it."""
    if not (row.get("drift") and peer.get("drift")):
        return ""
    ours, theirs = (number(measured["drift"]["mean"]) for measured in (row, peer))
    return f", with a mean drift of {ours} against {theirs}"
