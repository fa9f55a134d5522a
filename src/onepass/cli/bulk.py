"""`onepass score --requests F`: many requests through one model, results as they are done and in their order.

A window of requests is in flight, so that neither the requests nor the results are ever all in memory. With `--out`
every result is on disk when the next one is waited for: what an interrupt leaves behind is whole and in order. A row
that is wrong fails alone: its error stands in its place. Nothing is written before the first row is scored.
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.api import ScoreResult
from onepass.cli.inputs.documents import ranking_entries, result_document
from onepass.cli.inputs.requests import FailedRow, RequestRow, request_rows
from onepass.cli.inputs.rows import STDIN, called
from onepass.cli.scoring import checked_rows, load_scorer, open_model_of, wait_for
from onepass.cli.tables.score import TableOptions, print_result
from onepass.cli.terminal.label_mass import count, low_mass_warning
from onepass.cli.terminal.output import print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import OnepassError, RequestError

if TYPE_CHECKING:
    from onepass.loading.tensor_reader import Progress
    from onepass.loading.tokenizer import TextTokenizer
    from onepass.scorer import Scorer

IN_FLIGHT = 128  # requests: enough to fill steps with small ones
SHOWN_FAILURES = 10
SOME_FAILED = 2  # the exit status

Done = tuple[RequestRow, ScoreResult]


def run(args: argparse.Namespace) -> int:
    failures = Failures(args.requests)
    try:
        _run(args, failures)
    finally:
        failures.print()
    return SOME_FAILED if failures.count else 0


def _run(args: argparse.Namespace, failures: "Failures") -> None:
    _refuse_same_file(args)
    total = _count_rows(args.requests, failures)
    model = open_model_of(args)
    rows = failures.unless_all(checked_rows(model, request_rows(args.requests)))
    with load_scorer(args, model) as scorer, progress_bars(args.quiet) as progress:
        warnings = MassWarnings(model.tokenizer)
        results = failures.watched(failures.unless_all(scored(scorer, rows, progress, total)))
        results = warnings.watched(results)
        if args.out is not None:
            _write(args, results, total, failures)
        elif args.json:
            print_json({"object": "list", "results": [_document(args, done) for done in results]})
        else:
            for done in results:
                _print_table(args, done)
    warnings.print()


class Failures:
    """Rows that have no result: how many there are, and the first of them for stderr."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = called(name)
        self._shown: list[str] = []

    def watched[Entry](self, entries: Iterator[Entry | FailedRow]) -> Iterator[Entry | FailedRow]:
        for entry in entries:
            if isinstance(entry, FailedRow):
                self._add(entry)
            yield entry

    def unless_all[Entry](self, entries: Iterator[Entry | FailedRow]) -> Iterator[Entry | FailedRow]:
        """The same entries, once there is one that has not failed; a RequestError if there is none."""
        failed: list[Entry | FailedRow] = []
        for entry in entries:
            if not isinstance(entry, FailedRow):
                return chain(failed, (entry,), entries)
            failed.append(entry)
        for entry in failed:
            assert isinstance(entry, FailedRow)
            self._add(entry)
        raise RequestError("no_result", f"no row of {self._name} could be scored", "requests")

    def _add(self, row: FailedRow) -> None:
        self.count += 1
        if self.count <= SHOWN_FAILURES:
            self._shown.append(f"{row.where}: {row.message}")

    def print(self) -> None:
        for line in self._shown:
            print(f"onepass: {line}", file=sys.stderr)
        if self.count > SHOWN_FAILURES:
            more = count(self.count - SHOWN_FAILURES, "more row")
            print(f"onepass: {more} of {self._name} could not be scored", file=sys.stderr)


class MassWarnings:
    """Of rows whose labels hold next to no probability: how many there are, and the first in full."""

    def __init__(self, tokenizer: "TextTokenizer | None") -> None:
        self._tokenizer, self._rows, self._low, self._first = tokenizer, 0, 0, ""

    def watched(self, results: Iterator[Done | FailedRow]) -> Iterator[Done | FailedRow]:
        for done in results:
            if not isinstance(done, FailedRow):
                self._see(*done)
            yield done

    def _see(self, row: RequestRow, result: ScoreResult) -> None:
        warning = low_mass_warning(row.request, result, self._tokenizer)
        self._rows += 1
        self._low += warning is not None
        self._first = self._first or (f"{row.where}: {warning}" if warning else "")

    def print(self) -> None:
        if self._low:
            more = f" (the first of {self._low:,} such rows among {self._rows:,})" if self._low > 1 else ""
            print(f"onepass: {self._first}{more}", file=sys.stderr)


def scored(
    scorer: "Scorer", rows: Iterator[RequestRow | FailedRow], progress: "Progress", total: int
) -> Iterator[Done | FailedRow]:
    """Results in the order of the rows. What was not asked for any more is cancelled."""
    waiting: deque[tuple[RequestRow, Future[ScoreResult]] | FailedRow] = deque()
    done = 0

    def first() -> Done | FailedRow:
        nonlocal done
        entry = _result(scorer, waiting[0], progress)
        waiting.popleft()
        done += 1
        progress("rows", done, total)
        return entry

    try:
        for row in rows:
            waiting.append(_submitted(scorer, row))
            if len(waiting) >= IN_FLIGHT:
                yield first()
        while waiting:
            yield first()
    finally:
        for entry in waiting:
            if not isinstance(entry, FailedRow):
                entry[1].cancel()


def _submitted(scorer: "Scorer", row: RequestRow | FailedRow) -> tuple[RequestRow, Future[ScoreResult]] | FailedRow:
    if isinstance(row, FailedRow):
        return row
    try:
        return row, scorer.submit(row.request)
    except RequestError as error:
        return row.failed(error)


def _result(
    scorer: "Scorer", entry: tuple[RequestRow, Future[ScoreResult]] | FailedRow, progress: "Progress"
) -> Done | FailedRow:
    if isinstance(entry, FailedRow):
        return entry
    row, future = entry
    try:
        return row, wait_for(scorer, future, progress)
    except RequestError as error:
        return row.failed(error)


def _write(args: argparse.Namespace, results: Iterator[Done | FailedRow], total: int, failures: Failures) -> None:
    """A line a row, each on disk before the next is waited for."""
    written = 0
    with args.out.open("w", encoding="utf-8") as file:
        try:
            for done in results:
                file.write(json.dumps(_document(args, done), allow_nan=False) + "\n")
                file.flush()
                written += 1
        except (KeyboardInterrupt, OnepassError):
            print(f"onepass: {_rows(written, total)} are in {args.out}", file=sys.stderr, flush=True)
            raise
    if not args.quiet:
        errors = f", {failures.count:,} with an error" if failures.count else ""
        print(f"onepass: wrote {count(written, 'row')} to {args.out}{errors}", file=sys.stderr)


def _print_table(args: argparse.Namespace, done: Done | FailedRow) -> None:
    if isinstance(done, FailedRow):
        return  # on stderr, at the end
    row, result = done
    if row.id is not None:
        print(f"\nid  {row.id}")
    print_result(row.request, result, TableOptions(args.top, verbose=args.verbose))


def _rows(number: int, total: int) -> str:
    return f"{number:,} of {total:,} rows" if total else count(number, "row")


def _document(args: argparse.Namespace, done: Done | FailedRow) -> dict[str, Any]:
    """A row without a result has its line and its error instead, in its place among the others."""
    if isinstance(done, FailedRow):
        return {**_id(done), "line": done.line, "error": f"{done.code}: {done.message}"}
    row, result = done
    document = result_document(row.request, result)
    if args.rank or args.top:
        document["ranking"] = ranking_entries(result, 0, args.top, None)
    return {**_id(row), **document}


def _id(row: RequestRow | FailedRow) -> dict[str, Any]:
    return {} if row.id is None else {"id": row.id}


def _count_rows(name: str, failures: Failures) -> int:
    """How many there are, when all of them have been looked at; 0 where a file can be read only once."""
    if name == STDIN or not Path(name).is_file():
        return 0
    return sum(1 for _ in failures.unless_all(request_rows(name)))


def _refuse_same_file(args: argparse.Namespace) -> None:
    if args.out is None or args.requests == STDIN or not (args.out.exists() and Path(args.requests).is_file()):
        return
    if args.out.samefile(args.requests):
        raise RequestError("unwritable_file", f"--out would overwrite {args.out}, which --requests reads", "out")
