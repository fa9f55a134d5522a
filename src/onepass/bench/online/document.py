"""A benchmark over HTTP as one JSON document, of the shape that the engine's has: reports and `compare` work on both.

Hardware and versions are the server's, as it tells them in /info; what drove it is in the settings.
"""

import datetime
import platform
from collections.abc import Sequence
from dataclasses import asdict

from onepass.bench.document import Document
from onepass.bench.online.run import HttpBenchRun, HttpPlan
from onepass.evidence.provenance import commit


def http_document(ran: HttpBenchRun, plan: HttpPlan, command: Sequence[str]) -> Document:
    info, state = ran.target.info, commit()
    details = info["details"]
    options = {name: value for name, value in asdict(plan).items() if name != "mix"}
    settings = {"workload": f"{ran.requests.name} over http", **options, "driver": platform.platform()}
    return {
        "object": "benchmark",
        "driver": "http",
        "model": ran.target.model,
        "command": " ".join(command),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": state,
        "dirty": state is not None and state.endswith("-dirty"),
        "hardware": details["hardware"],
        "versions": {"onepass": info["version"], **details["versions"]},
        "settings": {
            **settings,
            "softmax": ran.requests.labels.softmax,
            "engine": {ran.target.dtype: details["engine"]},
        },
        "label_token_ids": list(ran.requests.labels.ids),
        "ceilings": [],
        "workloads": [one.describe() for one in (ran.requests, *ran.others)],
        "rows": [row.to_dict() for row in ran.rows],
        "void": sum(not row.sound for row in ran.rows),
        "fastest": {},
        "speedup_table": [],
        "peers": [],
    }
