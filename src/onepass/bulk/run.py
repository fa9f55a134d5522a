"""A run over a file: windows of rows read, scored and kept, one after another, until the output is whole.

A window is what is brought together (rows with one query share its context), what is in memory, and what a killed run
loses at most. Rows come out in the order in which they came in. Files are `job_files`; who scores is `workers`.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import batched
from pathlib import Path
from typing import Any

from onepass.bulk.job_files import Checkpoint, JobFiles, fingerprint, was_finished
from onepass.bulk.row_fields import RowFields
from onepass.bulk.row_output import ERROR, check_output, converted
from onepass.bulk.row_request import COLUMNS, error_text
from onepass.bulk.row_source import BadRow, Read, RowSource, open_rows
from onepass.bulk.workers import Answer, Fields, Worker
from onepass.errors import OnepassError, RequestError
from onepass.version import VERSION

WINDOW_ROWS = 512


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `count`: every so many windows of the input, whole."""

    number: int = 1
    count: int = 1


@dataclass(frozen=True)
class Run:
    """`keep` are the input's columns that come out again; None: all. `model` identifies what scores, for going on."""

    input: Path
    out: Path
    fields: RowFields
    model: dict[str, Any]
    keep: tuple[str, ...] | None = None
    shard: Shard = Shard()
    window_rows: int = WINDOW_ROWS


@dataclass(frozen=True)
class Progress:
    """`share` of the input is read; rates are of this process."""

    checkpoint: Checkpoint
    share: float
    rows_per_second: float
    tokens_per_second: float
    seconds_left: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Prepared:
    """A run whose input, options and output have been checked; `files` are open."""

    run: Run
    source: RowSource
    columns: list[str]  # of the input, that are kept
    files: JobFiles


def prepare(run: Run) -> Prepared | None:
    """None where the run is finished already. Raises a RequestError for anything that is wrong before a model is
    loaded. Nothing is overwritten."""
    check_output(run.out)
    source = open_rows(run.input)
    run.fields.check(source.columns)
    columns = _kept_columns(run, source.columns)
    job = {
        "onepass": VERSION,
        "input": fingerprint(run.input),
        "fields": run.fields.to_dict(),
        "model": run.model,
        "keep": columns if run.keep is not None or run.out.suffix != ".jsonl" else None,
        "shard": asdict(run.shard),
        "window_rows": run.window_rows,
    }
    if was_finished(run.out, job):
        return None
    return Prepared(run, source, columns, JobFiles.begin(run.out, job))


def _kept_columns(run: Run, columns: Sequence[str]) -> list[str]:
    kept = list(columns if run.keep is None else run.keep)
    for name in kept:
        if name not in columns:
            raise RequestError("unknown_column", f"--keep: no column {name!r}; the input has {', '.join(columns)}")
    taken = {*COLUMNS[run.fields.kind], ERROR} & set(kept)
    if taken:
        names = ", ".join(sorted(taken))
        raise RequestError("conflicting_column", f"the output has columns {names} of its own: leave them out by --keep")
    return kept


def execute(prepared: Prepared, worker: Worker, on_progress: OnProgress = lambda _: None) -> Checkpoint:
    """Goes on where the run was stopped; the output is there when this returns."""
    files, run = prepared.files, prepared.run
    began, first = time.monotonic(), files.checkpoint
    try:
        for reads in _windows(prepared, first):
            if reads:
                answers = worker.run([_fields(run, prepared.source, read) for read in reads])
                _append(prepared, reads, answers)
                on_progress(_progress(files.checkpoint, first, prepared.source.size, time.monotonic() - began))
        checkpoint = files.checkpoint
        results = COLUMNS[run.fields.kind]
        try:
            files.finish(run.out, converted(files.rows_path, run.out, prepared.columns, results))
        except OSError as error:
            raise OnepassError(
                f"cannot write {run.out}: {error.strerror}; all rows are kept, and the same command goes on"
            ) from error
        return checkpoint
    finally:
        files.close()


def _windows(prepared: Prepared, first: Checkpoint) -> Iterator[list[Read]]:
    """This shard's windows from the checkpoint on. Their numbers count from the input's beginning."""
    run, shard = prepared.run, prepared.run.shard
    for number, reads in enumerate(batched(prepared.source.read(first.position), run.window_rows)):
        if (first.rows_read // run.window_rows + number) % shard.count == shard.number - 1:
            yield list(reads)
        else:
            last = prepared.files.checkpoint
            prepared.files.checkpoint = replace(
                last, rows_read=last.rows_read + len(reads), position=reads[-1].position
            )


def _fields(run: Run, source: RowSource, read: Read) -> Fields:
    if isinstance(read.row, BadRow):
        return RequestError("invalid_row", read.row.error)
    try:
        return run.fields.of(read.row, source.is_text)
    except RequestError as error:
        return error


def _append(prepared: Prepared, reads: Sequence[Read], answers: Sequence[Answer]) -> None:
    files = prepared.files
    lines = b"".join(_line(prepared, read, answer) for read, answer in zip(reads, answers, strict=True))
    last = files.checkpoint
    files.append(
        lines,
        Checkpoint(
            rows_read=last.rows_read + len(reads),
            position=reads[-1].position,
            rows=last.rows + len(reads),
            errors=last.errors + sum(isinstance(answer.cells, RequestError) for answer in answers),
            tokens=last.tokens + sum(answer.tokens for answer in answers),
            bytes=last.bytes + len(lines),
        ),
    )


def _line(prepared: Prepared, read: Read, answer: Answer) -> bytes:
    row = {} if isinstance(read.row, BadRow) else read.row
    everything = prepared.run.keep is None and prepared.run.out.suffix == ".jsonl"
    kept = row if everything else {name: row.get(name) for name in prepared.columns}
    results = dict.fromkeys(COLUMNS[prepared.run.fields.kind])
    if isinstance(answer.cells, RequestError):
        out = {**kept, **results, ERROR: error_text(answer.cells)}
    else:
        out = {**kept, **results, **answer.cells, ERROR: None}
    return json.dumps(out, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"


def _progress(now: Checkpoint, first: Checkpoint, size: int, seconds: float) -> Progress:
    share = now.position / max(1, size)
    left = seconds * (size - now.position) / max(1, now.position - first.position)
    return Progress(now, share, (now.rows - first.rows) / seconds, (now.tokens - first.tokens) / seconds, left)
