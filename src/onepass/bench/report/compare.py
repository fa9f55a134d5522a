"""Two benchmarks of the same work set side by side: what became slower, by how much, and what may be to blame.

Throughput -10 % and p95 +15 % fail, p99 +20 % warns. Runs of other tokens or on other machines are not compared.
"""

from dataclasses import dataclass
from typing import Any, Literal

from onepass.bench.document import Document
from onepass.errors import RequestError

THROUGHPUT_LOSS = 0.10
P95_GROWTH = 0.15
P99_GROWTH = 0.20
PADDING_GROWTH = 0.02

Verdict = Literal["ok", "warn", "fail"]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """One row in both runs. Ratios are new over old."""

    name: str
    verdict: Verdict
    throughput: float | None
    p95: float | None
    p99: float | None
    findings: list[str]
    suspects: list[str]

    def to_dict(self) -> Document:
        return dict(vars(self))


@dataclass(frozen=True)
class Comparison:
    changes: list[Change]
    forced: list[str]  # why it would have been refused

    @property
    def verdict(self) -> Verdict:
        verdicts = [change.verdict for change in self.changes]
        return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"

    def to_dict(self) -> Document:
        changes = [change.to_dict() for change in self.changes]
        return {"object": "comparison", "verdict": self.verdict, "forced": self.forced, "changes": changes}


def compare(old: Document, new: Document, force: bool = False) -> Comparison:
    """Refuses what cannot be compared, unless forced."""
    before, after = _rows(old), _rows(new)
    shared = [key for key in before if key in after]
    if not shared:
        raise RequestError("nothing_to_compare", "the two runs have no row of the same mode, workload and dtype")
    reasons = _unlike(old, new, [(before[key], after[key]) for key in shared])
    if reasons and not force:
        raise RequestError("not_comparable", f"these runs cannot be compared: {'; '.join(reasons)} (--force compares)")
    settings = _differing("settings", old, new) + _differing("versions", old, new)
    changes = [_change(before[key], after[key], settings) for key in shared]
    changes += [_lost(before[key]) for key in before if key not in after]
    return Comparison(changes, reasons)


def _rows(made: Document) -> dict[Key, Document]:
    return {_key(row): row for row in made["rows"]}


def _key(row: Document) -> Key:
    return row["workload"], row["dtype"], row["mode"], row["purpose"], tuple(sorted(row["sweep"].items()))


def _name(row: Document) -> str:
    swept = "".join(f" {name}={value}" for name, value in row["sweep"].items())
    return f"{row['workload']} {row['dtype']} {row['mode']}{swept}"


def _unlike(old: Document, new: Document, pairs: list[tuple[Document, Document]]) -> list[str]:
    reasons = []
    if old["model"] != new["model"]:
        reasons.append(f"models differ: {old['model']} and {new['model']}")
    machines = {
        name: (old["hardware"].get(name), new["hardware"].get(name)) for name in {**old["hardware"], **new["hardware"]}
    }
    reasons += [f"hardware differs: {name} {a} and {b}" for name, (a, b) in machines.items() if a != b]
    if any(a["checksum"] != b["checksum"] for a, b in pairs):
        reasons.append("workload checksums differ: they scored other tokens")
    return reasons


def _differing(part: str, old: Document, new: Document) -> list[str]:
    a, b = _flat(old[part]), _flat(new[part])
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return [f"{part} differ: {name} {a.get(name)} -> {b.get(name)}" for name in names]


def _flat(values: Document, before: str = "") -> Document:
    out: Document = {}
    for name, value in values.items():
        out |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return out


def _lost(row: Document) -> Change:
    return Change(_name(row), "warn", None, None, None, ["only the first run has this row"], [])


def _change(old: Document, new: Document, settings: list[str]) -> Change:
    if new["void"]:
        verdict: Verdict = "warn" if old["void"] else "fail"
        return Change(_name(new), verdict, None, None, None, ["the second run's row is void"], list(new["void"]))
    if old["void"]:
        return Change(_name(new), "warn", None, None, None, ["the first run's row is void"], list(old["void"]))
    throughput = new["items_per_second"] / old["items_per_second"]
    p95, p99 = (new["latency_ms"][q] / old["latency_ms"][q] for q in ("p95", "p99"))
    failures, warnings = [], []
    if throughput < 1 - THROUGHPUT_LOSS:
        failures.append(f"throughput {throughput - 1:+.0%} (limit -{THROUGHPUT_LOSS:.0%})")
    if p95 > 1 + P95_GROWTH:
        failures.append(f"p95 {p95 - 1:+.0%} (limit +{P95_GROWTH:.0%})")
    if p99 > 1 + P99_GROWTH:
        warnings.append(f"p99 {p99 - 1:+.0%} (limit +{P99_GROWTH:.0%})")
    verdict = "fail" if failures else "warn" if warnings else "ok"
    suspects = [] if verdict == "ok" else _suspects(old, new) + settings
    return Change(_name(new), verdict, throughput, p95, p99, failures + warnings, suspects)


def _suspects(old: Document, new: Document) -> list[str]:
    suspects = []
    for name in ("compilations", "backend_compilations"):
        if new[name] > old[name]:
            suspects.append(f"{name}: {old[name]} -> {new[name]}")
    a, b = old["padding_ratio"], new["padding_ratio"]
    if a is not None and b is not None and b > a * (1 + PADDING_GROWTH):
        suspects.append(f"padding ratio: {a:.3f} -> {b:.3f}")
    if old["ran_as"] != new["ran_as"]:
        suspects.append(f"mode changed: {old['ran_as']} -> {new['ran_as']} ({new['reason']})")
    if old["options"] != new["options"]:
        suspects.append(f"options differ: {old['options']} -> {new['options']}")
    if old["repeats"] != new["repeats"]:
        suspects.append(f"repeats differ: {old['repeats']} -> {new['repeats']}")
    slower = {k: v / old["split_ms"][k] for k, v in new["split_ms"].items() if old["split_ms"].get(k)}
    if slower:
        part = max(slower, key=slower.__getitem__)
        suspects.append(f"{part} time grew most: {old['split_ms'][part]:.2f} -> {new['split_ms'][part]:.2f} ms")
    return suspects
