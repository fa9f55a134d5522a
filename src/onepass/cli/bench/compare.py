"""`onepass bench compare A.json B.json` and `onepass bench revisions A B`: what became slower, and what is to blame.

Limits and suspects are `onepass.bench.report.compare`; worktrees are `onepass.bench.offline.revisions`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.cli.bench.options import DEFAULT_MODES, add_bench_options
from onepass.cli.parser import DEFAULT_MODEL, Parser, add_json
from onepass.cli.terminal.output import console, print_json

if TYPE_CHECKING:
    from onepass.bench.report.compare import Comparison

COMPARE = """\
Compares two benchmarks of the same tokens on the same machine. Throughput -10 % or p95 +15 % fails, p99
+20 % warns; suspects are named. Runs of other tokens or on other hardware are refused, unless forced.

Exit status: 0 nothing failed, 1 something did, 2 the runs cannot be compared."""
REVISIONS = """\
Runs the same benchmark at two git revisions, each in its own worktree, and compares the second with the
first. A revision with the dependencies of this checkout runs under this Python, any other in an environment
of its own. Options after the revisions are those of `onepass bench`.

  onepass bench revisions main~5 main --workload small --modes extend,auto

Exit status: as of `onepass bench compare`."""


def add_compare(bench: Parser) -> None:
    parser = bench.add_inner("compare", usage="onepass bench compare A.json B.json [OPTION ...]", description=COMPARE)
    parser.add_argument("old", metavar="A.json", type=Path, help="what `onepass bench` wrote before")
    parser.add_argument("new", metavar="B.json", type=Path, help="and after")
    parser.add_argument("--force", action="store_true", help="compare also what differs in tokens or hardware")
    add_json(parser)
    parser.set_defaults(run=run_compare)


def add_revisions(bench: Parser) -> None:
    parser = bench.add_inner(
        "revisions", usage="onepass bench revisions REV_A REV_B [MODEL] [OPTION ...]", description=REVISIONS
    )
    parser.add_argument("old", metavar="REV_A", help="a branch, tag or commit")
    parser.add_argument("new", metavar="REV_B", help="another")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--python", metavar="PATH", type=Path, help="run both with this one, as it is")
    parser.add_argument("--out", metavar="DIR", type=Path, help="keep both runs' JSON here")
    add_json(parser)
    add_bench_options(parser)
    parser.set_defaults(run=run_revisions)


def run_compare(args: argparse.Namespace) -> int:
    from onepass.bench.document import read_json
    from onepass.bench.report.compare import compare

    return _judge(compare(read_json(args.old), read_json(args.new), args.force), args.json)


def run_revisions(args: argparse.Namespace) -> int:
    from onepass.bench.document import write_json
    from onepass.bench.offline.revisions import Revisions, find_repository
    from onepass.bench.report.compare import compare

    revisions = Revisions(find_repository(), args.python and args.python.absolute(), _tell)
    arguments = [args.model, *_bench_arguments(args)]
    old, new = (revisions.run(revision, arguments) for revision in (args.old, args.new))
    if args.out is not None:
        for document in (old, new):
            print(f"wrote {write_json(document, args.out)}", file=sys.stderr)
    # One machine has run both, whatever an older revision called it.
    return _judge(compare({**old, "hardware": new["hardware"]}, new), args.json)


def _bench_arguments(args: argparse.Namespace) -> list[str]:
    """The options of `onepass bench` again, as they were given or left."""
    requests = str(Path(args.requests).absolute()) if args.requests else None
    values = {
        "--workload": None if requests else args.workload,
        "--requests": requests,
        "--query-tokens": args.query_tokens,
        "--items": args.items,
        "--item-tokens": args.item_tokens,
        "--seed": args.seed,
        "--modes": None if args.workload == "mixed" and args.modes is DEFAULT_MODES else ",".join(args.modes),
        "--dtype": ",".join(args.dtype),
        "--quantize": args.quantize,
        "--in-flight": args.in_flight,
        "--repeats": args.repeats,
        "--warm-up": args.warm_up,
        "--serial-items": args.serial_items,
        "--peers": ",".join(args.peers) or None,
        "--clients": ",".join(map(str, args.clients or ())) or None,
        "--seconds": args.seconds,
        "--num-requests": args.num_requests,
        "--kinds": ",".join(args.kinds or ()) or None,
    }
    given = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    given += [word for sweep in args.sweep for word in ("--sweep", sweep)]
    if args.quantize_activations is not None:
        given.append("--quantize-activations" if args.quantize_activations else "--no-quantize-activations")
    return given + (["--speedup-table"] if args.speedup_table else [])


def _judge(comparison: "Comparison", as_json: bool) -> int:
    if as_json:
        print_json(comparison.to_dict())
    else:
        _print(comparison)
    return 1 if comparison.verdict == "fail" else 0


def _print(comparison: "Comparison") -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("row", "throughput", "p95", "p99", "verdict"):
        table.add_column(heading, justify="left" if heading in ("row", "verdict") else "right")
    for change in comparison.changes:
        ratios = (change.throughput, change.p95, change.p99)
        table.add_row(change.name, *("–" if r is None else f"{r - 1:+.1%}" for r in ratios), change.verdict)
    out = console()
    for reason in comparison.forced:
        out.print(f"forced, although {reason}", soft_wrap=True)
    out.print(table)
    for change in comparison.changes:
        if change.verdict != "ok":
            out.print(f"{change.verdict}: {change.name}: {'; '.join(change.findings)}", soft_wrap=True)
            for suspect in change.suspects:
                out.print(f"  suspect: {suspect}", soft_wrap=True)
    out.print(comparison.verdict.upper())


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
