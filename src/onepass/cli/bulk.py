"""`onepass score --requests F`: many requests through one model, results as they are done and in their order.

A window of requests is in flight, so that neither the requests nor the results are ever all in memory. With `--out`
every result is on disk when the next one is waited for: what an interrupt leaves behind is whole and in order.
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.api import ScoreResult
from onepass.cli.inputs.documents import ranking_entries, result_document
from onepass.cli.inputs.requests import RequestRow, request_rows
from onepass.cli.inputs.rows import STDIN
from onepass.cli.scoring import at_line, check_rows, load_scorer, open_model_of, wait_for
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
CHECKED_ROWS = 256  # by the tokenizer, before weights are loaded

Done = tuple[RequestRow, ScoreResult]


def run(args: argparse.Namespace) -> int:
    total = _count_rows(args.requests)
    rows = request_rows(args.requests)
    first = list(islice(rows, CHECKED_ROWS))
    model = open_model_of(args)
    check_rows(model, first)
    with load_scorer(args, model) as scorer, progress_bars(args.quiet) as progress:
        warnings = MassWarnings(model.tokenizer)
        results = warnings.watched(scored(scorer, chain(first, rows), progress, total))
        if args.out is not None:
            _write(args, results, total)
        elif args.json:
            print_json({"object": "list", "results": [_document(args, *done) for done in results]})
        else:
            for row, result in results:
                if row.id is not None:
                    print(f"\nid  {row.id}")
                print_result(row.request, result, TableOptions(args.top, verbose=args.verbose))
    warnings.print()
    return 0


class MassWarnings:
    """Of rows whose labels hold next to no probability: how many there are, and the first in full."""

    def __init__(self, tokenizer: "TextTokenizer | None") -> None:
        self._tokenizer, self._rows, self._low, self._first = tokenizer, 0, 0, ""

    def watched(self, results: Iterator[Done]) -> Iterator[Done]:
        for row, result in results:
            warning = low_mass_warning(row.request, result, self._tokenizer)
            self._rows += 1
            self._low += warning is not None
            self._first = self._first or (f"{row.where}: {warning}" if warning else "")
            yield row, result

    def print(self) -> None:
        if self._low:
            more = f" (the first of {self._low:,} such rows among {self._rows:,})" if self._low > 1 else ""
            print(f"onepass: {self._first}{more}", file=sys.stderr)


def scored(scorer: "Scorer", rows: Iterator[RequestRow], progress: "Progress", total: int) -> Iterator[Done]:
    """Results in the order of the rows. What was not asked for any more is cancelled."""
    waiting: deque[tuple[RequestRow, Future[ScoreResult]]] = deque()
    done = 0

    def first() -> Done:
        nonlocal done
        row, future = waiting[0]
        with _named(row):
            result = wait_for(scorer, future, progress)
        waiting.popleft()
        done += 1
        progress("rows", done, total)
        return row, result

    try:
        for row in rows:
            with _named(row):
                waiting.append((row, scorer.submit(row.request)))
            if len(waiting) >= IN_FLIGHT:
                yield first()
        while waiting:
            yield first()
    finally:
        for _, future in waiting:
            future.cancel()


@contextmanager
def _named(row: RequestRow) -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise at_line(error, row.where) from error


def _write(args: argparse.Namespace, results: Iterator[Done], total: int) -> None:
    """A line a result, each on disk before the next is waited for."""
    written = 0
    with args.out.open("w", encoding="utf-8") as file:
        try:
            for row, result in results:
                file.write(json.dumps(_document(args, row, result), allow_nan=False) + "\n")
                file.flush()
                written += 1
        except (KeyboardInterrupt, OnepassError):
            print(f"onepass: {_rows(written, total)} are in {args.out}", file=sys.stderr, flush=True)
            raise
    if not args.quiet:
        print(f"onepass: wrote {count(written, 'row')} to {args.out}", file=sys.stderr)


def _rows(number: int, total: int) -> str:
    return f"{number:,} of {total:,} rows" if total else count(number, "row")


def _document(args: argparse.Namespace, row: RequestRow, result: ScoreResult) -> dict[str, Any]:
    document = result_document(row.request, result)
    if args.rank or args.top:
        document["ranking"] = ranking_entries(result, 0, args.top, None)
    return document if row.id is None else {"id": row.id, **document}


def _count_rows(name: str) -> int:
    """How many there are, when all of them have been looked at; 0 where a file can be read only once."""
    return 0 if name == STDIN or not Path(name).is_file() else sum(1 for _ in request_rows(name))
