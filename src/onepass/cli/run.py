"""`onepass run IN --out OUT`: a file of requests, of any length, scored in order and resumed where it was stopped.

The work is `bulk`'s; this reads the options and shows how far it is.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.parser import (
    DEFAULT_MODEL,
    Subcommands,
    add_parallel_options,
    add_quantize,
    add_quiet,
    add_source_options,
)
from onepass.cli.scoring import load_scorer, open_model_of
from onepass.cli.types import positive
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.bulk.run import OnProgress, Prepared, Progress

USAGE = "onepass run IN --out OUT [--kind score|rank|decide] [--map F=C] [--text F=T] [--set F=JSON] [OPTION ...]"
DESCRIPTION = """\
Scores every row of a JSONL, CSV, TSV or Parquet file and writes the rows with their results, in order. A row is a
request: its columns are the request's fields, unless --map, --text or --set say otherwise. After Ctrl-C, a kill or a
full disk the same command goes on. A row that is wrong has an error in the column `error`; the others are scored.

  onepass run pairs.csv --out scored.csv --text query="Question: {question}\\n" --map items=answer \\
      --set labels='[" yes", " no"]'
  onepass run queries.jsonl --out ranked.parquet --kind rank --map documents=passages --shard 1/4"""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "run", help="score a file of any length, resumably", usage=USAGE, description=DESCRIPTION
    )
    parser.add_argument("input", metavar="IN", type=Path, help="a .jsonl, .csv, .tsv or .parquet file")
    group = parser.add_argument_group("rows")
    group.add_argument(
        "--kind", choices=("score", "rank", "decide"), default="score", help="what a row asks for (default: score)"
    )
    group.add_argument("--map", metavar="F=C", action="append", default=[], help="the field F is the column C")
    group.add_argument(
        "--text", metavar="F=T", action="append", default=[], help="the field F is the text T; {C} is the column C"
    )
    group.add_argument("--set", metavar="F=JSON", action="append", default=[], help="the field F in every row")
    group.add_argument("--shard", metavar="I/N", default="1/1", help="only part I of N, by windows of rows")
    group.add_argument(
        "--window", metavar="N", type=positive, default=512,
        help="rows in memory, and lost at most by a kill; rows of a window share contexts (default: 512)",
    )  # fmt: skip
    group = parser.add_argument_group("computing")
    group.add_argument("--model", metavar="M", help=f"bundled name, folder, .gguf file or hub name ({DEFAULT_MODEL})")
    group.add_argument("--url", metavar="URL", help="ask a running server instead")
    group.add_argument("--api-key", metavar="KEY", help="of that server")
    group.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", metavar="DTYPE",
        help="of weights and computation: auto, float32, bfloat16",
    )  # fmt: skip
    add_quantize(group)
    add_parallel_options(group)
    group.add_argument("--template", metavar="F", type=Path, help="TOML file with the words to rank by")
    add_source_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="OUT", type=Path, required=True, help="a .jsonl, .csv, .tsv or .parquet file")
    group.add_argument("--keep", metavar="C,C", help="the input's columns to write again (default: all)")
    add_quiet(group)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.bulk.run import execute

    prepared = _prepared(args)
    if prepared is None:
        print(f"onepass: {args.out} was finished already", file=sys.stderr)
        return 0
    done = prepared.files.checkpoint.rows
    if done and not args.quiet:
        print(f"onepass: going on after {done:,} rows", file=sys.stderr)
    try:
        with _worker(args) as worker, _shown(args.quiet) as show:
            checkpoint = execute(prepared, worker, show)
    except KeyboardInterrupt:
        kept = prepared.files.checkpoint.rows
        print(f"onepass: {kept:,} rows are kept; the same command goes on after them", file=sys.stderr, flush=True)
        raise
    if not args.quiet:
        errors = f", {checkpoint.errors:,} with an error" if checkpoint.errors else ""
        print(f"onepass: wrote {checkpoint.rows:,} rows to {args.out}{errors}", file=sys.stderr)
    return 0


def _prepared(args: argparse.Namespace) -> "Prepared | None":
    from onepass.bulk.row_fields import RowFields
    from onepass.bulk.run import Run, Shard, prepare

    constants = {name: _json(text, name) for name, text in _pairs(args.set, "--set").items()}
    texts = {name: text.replace("\\n", "\n") for name, text in _pairs(args.text, "--text").items()}
    fields = RowFields(args.kind, _pairs(args.map, "--map"), texts, constants)
    number, count = _shard(args.shard)
    keep = None if args.keep is None else tuple(name for name in args.keep.split(",") if name)
    run = Run(args.input, args.out, fields, _model(args), keep, Shard(number, count), args.window)
    return prepare(run)


def _model(args: argparse.Namespace) -> dict[str, Any]:
    """What identifies the model of a run."""
    if args.url is not None:
        if args.model is not None:
            raise RequestError("conflicting_model", "give --model or --url, not both")
        from onepass.client.blocking import Client

        with Client(args.url, api_key=args.api_key) as client:
            return {"served": client.info()["model"]}
    template = None if args.template is None else args.template.read_text(encoding="utf-8")
    return {
        "name": args.model or DEFAULT_MODEL,
        "revision": args.revision,
        "dtype": args.dtype,
        "quantize": args.quantize,
        **({} if args.quantize_activations is None else {"quantize_activations": args.quantize_activations}),
        "template": template,
        **({} if args.adapter is None else {"adapter": args.adapter}),
    }


@contextmanager
def _worker(args: argparse.Namespace) -> Iterator[Any]:
    from onepass.bulk.workers import LocalWorker, RemoteWorker

    if args.url is not None:
        from onepass.client.blocking import Client

        with Client(args.url, api_key=args.api_key) as client:
            yield RemoteWorker(client, args.kind)
        return
    with load_scorer(args, open_model_of(args)) as scorer:
        yield LocalWorker(scorer, args.kind)


@contextmanager
def _shown(quiet: bool) -> Iterator["OnProgress"]:
    """A bar on a terminal; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("rows"), BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as bars:
        bar = bars.add_task("", total=1.0)

        def show(progress: "Progress") -> None:
            bars.update(bar, completed=progress.share, description=described(progress))

        yield show


def described(progress: "Progress") -> str:
    minutes, seconds = divmod(round(progress.seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}"
    rates = f"{progress.rows_per_second:,.0f} rows/s, {progress.tokens_per_second:,.0f} tokens/s"
    errors = f", {progress.checkpoint.errors:,} errors" if progress.checkpoint.errors else ""
    return f"{progress.checkpoint.rows:,}{errors}  {rates}, {left} left"


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RequestError("invalid_option", f"{option} must be FIELD=VALUE; got {text!r}")
        pairs[name] = value
    return pairs


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError("invalid_option", f"--set {name} must be JSON (texts in quotes); {error}") from error


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise RequestError("invalid_option", f"--shard must be I/N with I from 1 to N; got {text!r}")
    return int(number), int(count)
