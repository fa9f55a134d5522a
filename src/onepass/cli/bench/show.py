"""Prints the document of a benchmark as tables, writes its files, and decides the exit status of `onepass bench`."""

import argparse
import sys
from typing import Any

from onepass.cli.terminal.output import console


def show(args: argparse.Namespace, document: dict[str, Any]) -> int:
    """A document as tables, files and a last line; the command's exit status."""
    from onepass.bench.document import write_json
    from onepass.bench.report import tables as report

    out = console()
    for table in report.tables(document):
        out.print(table)
    for line in [*report.remarks(document), report.machine(document)]:
        out.print(line, soft_wrap=True)
    if args.out is not None:
        for path in [write_json(document, args.out), *report.write_report(document, args.out)]:
            print(f"wrote {path}", file=sys.stderr)
    if args.json:
        _print_last_line(document)
    return 1 if document["void"] else 0


def _print_last_line(document: dict[str, Any]) -> None:
    """Always one line: tables come before it."""
    import json

    print(json.dumps(document, allow_nan=False))
