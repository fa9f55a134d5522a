"""A benchmark as one JSON document: rows, peers, and everything needed to repeat it or to doubt it.

Reading and writing files is here too; tables and pages made of a document are `tables` and `html`.
"""

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onepass.bench.offline.cases import TABLE_ITEMS
from onepass.bench.offline.run import BenchRun, Plan, fastest
from onepass.errors import ConfigError, RequestError
from onepass.evidence.provenance import commit, hardware, versions

Document = dict[str, Any]


def document(runs: Sequence[BenchRun], plan: Plan, command: Sequence[str], peers: Sequence[Document] = ()) -> Document:
    rows = [row for ran in runs for row in ran.rows]
    state = commit()
    return {
        "object": "benchmark",
        "model": runs[0].model.name,
        "command": " ".join(command),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": state,
        "dirty": state is not None and state.endswith("-dirty"),
        "hardware": hardware(),
        "versions": versions(),
        "settings": {**_settings(plan), "engine": {ran.dtype: ran.engine for ran in runs}},
        "label_token_ids": runs[0].labels,
        "ceilings": [ran.ceilings.to_dict() for ran in runs],
        "workloads": list({c: w.describe() for ran in runs for c, w in ran.workloads.items()}.values()),
        "rows": [row.to_dict() for row in rows],
        "void": sum(not row.sound for row in rows),
        "fastest": {ran.dtype: best.mode for ran in runs if (best := fastest(rows, ran.dtype))},
        "speedup_table": speedup_table(runs),
        "peers": list(peers),
    }


def _settings(plan: Plan) -> Document:
    facts = {name: value for name, value in asdict(plan).items() if name != "requests"}
    return {**facts, "requests": len(plan.requests)}


def speedup_table(runs: Sequence[BenchRun]) -> list[Document]:
    """A line an item count: how many times faster than serial each mode is."""
    rows = [row for ran in runs for row in ran.rows if row.purpose == "speed-up"]
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        for count in TABLE_ITEMS:
            here = [row for row in rows if (row.dtype, row.sweep["items"]) == (dtype, count)]
            modes = {row.mode: row.speedup_over_serial if row.sound else None for row in here}
            lines.append({"dtype": dtype, "items": count, "speedup": modes})
    return lines


def stem(document: Document) -> str:
    """`bench-<workload>-<model>-<machine>-<date>-<commit>`"""
    machine = f"{document['hardware']['device']} {document['hardware']['cores']} cores"
    when = re.sub(r"[^0-9T]", "", document["date"].partition("+")[0])
    state = document["commit"].removesuffix("-dirty")[:10] + ("-dirty" if document["dirty"] else "")
    parts = ("bench", document["settings"]["workload"], document["model"], machine, when, state)
    return "-".join(re.sub(r"[^\w.]+", "-", str(part)).strip("-").lower() for part in parts)


def require_commit(state: str | None) -> None:
    """A figure whose code nobody can find again is not kept."""
    if not state:
        raise ConfigError(
            "--out needs the commit that is measured, and this copy of onepass is no git checkout; "
            "write the commit into a file .commit at its root, or leave out --out"
        )


def write_json(document: Document, folder: Path) -> Path:
    require_commit(document["commit"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(document)}.json"
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def read_json(path: Path) -> Document:
    """A document that `--out` wrote or `--json` printed."""
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text if text.lstrip().startswith("{") else text.rstrip().rpartition("\n")[2])
    except OSError as error:
        raise RequestError("missing_file", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RequestError("invalid_json", f"{path} must hold the JSON of a benchmark; {error}") from error
    if not isinstance(document, dict) or document.get("object") != "benchmark":
        raise RequestError("invalid_json", f"{path} must hold the JSON of a benchmark; it holds something else")
    return document
