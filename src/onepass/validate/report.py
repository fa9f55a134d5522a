"""What a validation leaves behind: a table for the terminal, and JSON, Markdown and HTML files.

Settings, versions, hardware, commit and the exact command go into every file. Running checks is `suite`.
"""

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.evidence.provenance import commit, hardware, versions
from onepass.validate.check import Outcome
from onepass.validate.html import validation_page
from onepass.validate.suite import Run

if TYPE_CHECKING:
    from rich.table import Table


def document(run: Run, command: Sequence[str]) -> dict[str, Any]:
    """Everything about a run, ready for JSON."""
    return {
        "object": "validation",
        "model": run.model,
        "dtype": run.dtype,
        "passed": run.passed,
        "verdict": verdict(run),
        "seconds": round(run.seconds, 1),
        "command": " ".join(command),
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(run.settings).items()},
        "label_token_ids": run.labels,
        "versions": {**versions(), **run.versions},
        "hardware": hardware(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "outcomes": [outcome.to_dict() for outcome in run.outcomes],
    }


def verdict(run: Run) -> str:
    """One line: `PASSED smollm2-135m float32: 92 checks in 61 s`."""
    ran = [outcome for outcome in run.outcomes if outcome.status != "skipped"]
    not_run = len(run.outcomes) - len(ran)
    also = f", {not_run} not run" if not_run else ""
    if run.passed:
        return f"PASSED {run.model} {run.dtype}: {len(ran)} checks in {run.seconds:.0f} s{also}"
    return f"FAILED {run.model} {run.dtype}: {len(run.failures)} of {len(ran)} checks in {run.seconds:.0f} s{also}"


def table(run: Run) -> "Table":
    """A line for each check and way of computing, with the worst of its cases; the files have every case."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=f"{run.model} · {run.dtype}", title_justify="left")
    for heading in ("check", "mode", "cases", "max", "mean", "allowed", "control", "verdict"):
        made.add_column(
            heading, justify="right" if heading in ("cases", "max", "mean", "allowed", "control") else "left"
        )
    ordered = sorted(run.outcomes, key=_group)
    for (name, way), group in groupby(ordered, _group):
        cases = list(group)
        worst = max(cases, key=lambda outcome: (outcome.status == "failed", outcome.max_difference or 0.0))
        statuses = {outcome.status for outcome in cases}
        word = next(status for status in ("failed", "passed", "skipped") if status in statuses)
        controls = [o.control_difference for o in cases if o.control_difference is not None]
        made.add_row(
            name,
            way,
            str(len(cases)),
            _number(worst.max_difference),
            _number(worst.mean_difference),
            _number(worst.tolerance_max),
            _number(min(controls)) if controls else "",
            word,
        )
    return made


def problems(run: Run) -> list[str]:
    """What failed or was not run, and why."""
    return [f"{o.status}: {o.name} ({o.case}): {o.note}" for o in run.outcomes if o.status != "passed"]


def markdown(run: Run, command: Sequence[str]) -> str:
    facts = document(run, command)
    lines = [
        f"# {facts['verdict']}",
        "",
        f"`{facts['command']}`, {facts['date']}, commit {facts['commit'] or 'unknown'}",
        "",
    ]
    for part in ("hardware", "versions", "settings"):  # a name may be in two of them, as torch is
        lines += [f"- {key}: {value}" for key, value in facts[part].items()]
    lines += [
        "",
        "A control is the same check without isolation; it must differ by more than is allowed.",
        "",
        "| check | case | max | mean | allowed max | allowed mean | control | verdict | note |",
        "|---|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for o in run.outcomes:
        numbers = (o.max_difference, o.mean_difference, o.tolerance_max, o.tolerance_mean, o.control_difference)
        note = o.note.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {o.name} | {o.case} | {' | '.join(map(_number, numbers))} | {o.status} | {note} |")
    return "\n".join(lines) + "\n"


def write_files(run: Run, command: Sequence[str], folder: Path) -> list[Path]:
    """`validate-<model>-<dtype>-<date>.json`, `.md` and `.html` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = re.sub(r"[^\w.-]+", "-", run.model).strip("-")
    stem = f"validate-{model}-{run.dtype}-{datetime.date.today().isoformat()}"
    paths = [folder / f"{stem}{suffix}" for suffix in (".json", ".md", ".html")]
    paths[0].write_text(json.dumps(document(run, command), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    paths[1].write_text(markdown(run, command), encoding="utf-8")
    paths[2].write_text(validation_page(document(run, command)), encoding="utf-8")
    return paths


def _group(outcome: Outcome) -> tuple[str, str]:
    return outcome.name, outcome.case.partition(",")[0]


def _number(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"
