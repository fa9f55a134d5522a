"""Speed beside drift: quantized rows and the peers in their own 8 bits, fastest first. Other tables are `tables`.

A system is better only where it is faster and drifts no more, so both stand in one line.
"""

from onepass.bench.document import Document
from onepass.html_report.figures import number

DRIFT_HEADINGS = ("system", "items/s", "x onepass", "max drift", "mean drift", "ranks", "beside onepass")
DRIFT_TITLE = "speed beside drift from the same model unquantized, among the labels"


def drift_cells(document: Document) -> list[list[str]]:
    """Empty where nothing is quantized. Void rows and peers have no figures to compare and are named elsewhere."""
    ours = [row for row in document["rows"] if row["purpose"] == "modes" and row.get("drift") and not row["void"]]
    if not ours:
        return []
    best = max(ours, key=lambda row: row["items_per_second"])
    peers = [
        peer for peer in document["peers"] if peer.get("drift") and peer["dtype"] == best["dtype"] and not peer["void"]
    ]
    lines = [(row, f"onepass {row['mode']}", "–") for row in ours]
    lines += [(peer, peer["peer"], beside(peer, best)) for peer in peers]
    lines.sort(key=lambda line: -line[0]["items_per_second"])
    return [_cells(measured, best, name, verdict) for measured, name, verdict in lines]


def forms(document: Document) -> list[str]:
    """What each quantized system multiplies, in words."""
    ours = {f"onepass: {row['form']}": None for row in document["rows"] if row.get("form")}
    return [*ours, *(f"{peer['peer']}: {peer['form']}" for peer in document["peers"] if peer.get("form"))]


def beside(peer: Document, ours: Document) -> str:
    speed = "faster" if peer["items_per_second"] > ours["items_per_second"] else "slower"
    drifts = "more" if peer["drift"]["mean"] > ours["drift"]["mean"] else "no more"
    return f"{speed}, drifts {drifts}"


def _cells(measured: Document, best: Document, name: str, verdict: str) -> list[str]:
    drift = measured["drift"]
    return [
        name,
        number(measured["items_per_second"]),
        number(measured["items_per_second"] / best["items_per_second"]),
        number(drift["max"]),
        number(drift["mean"]),
        "–" if drift["rank_correlation"] is None else f"{drift['rank_correlation']:.4f}",
        verdict,
    ]
