"""`onepass visualize [WORKLOAD]`: one workload in every mode as a page: tiles computed, tokens repeated, steps in time.

Running the modes and drawing them is `onepass.visualize`.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.terminal.output import console, print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.cli.types import positive
from onepass.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onepass.bench.workloads import Workload
    from onepass.engine.encoding.encode import Encoded
    from onepass.loading.model import Model
    from onepass.visualize.mode_run import ModeRun

WORKLOAD = "track_low"
MODES = ("serial", "packed-dense", "packed-segment", "chunked", "extend")  # as `visualize.mode_run` has them
LABELS = (0, 1)
DESCRIPTION = f"""\
Runs one request in every mode on this machine and writes a page that needs nothing else: which tiles of attention
each mode computes (counted from the kernel's own table, beside those that the visibility rule needs), which tokens
it computes twice, and its steps on a time axis. Workloads are those of `onepass bench`; the default is {WORKLOAD},
183 + 16 x 26 tokens.

  onepass visualize --out modes.html
  onepass visualize linkedin --items 6 --modes serial,packed-segment"""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "visualize",
        help="draw what each mode computes of one workload, and when",
        usage="onepass visualize [WORKLOAD] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("workload", nargs="?", default=WORKLOAD, metavar="WORKLOAD", help=f"default: {WORKLOAD}")
    group = parser.add_argument_group("what is run")
    group.add_argument("--model", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    group.add_argument("--query-tokens", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--items", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--item-tokens", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of the token ids (default: 0)")
    group.add_argument("--modes", metavar="M,M", type=_modes, default=MODES, help=f"some of {','.join(MODES)}")
    group.add_argument(
        "--chunk-size", metavar="N", type=positive, help="mode chunked (default: a quarter of the items)"
    )
    group.add_argument(
        "--repeats",
        metavar="N",
        type=positive,
        default=3,
        help="timed runs of each mode, for a minute at most (default: 3)",
    )
    group.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", metavar="D", help="default: auto"
    )
    add_source_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="F", type=Path, default=Path("visualize.html"), help="default: visualize.html")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.bench.workloads import make_workload, resized, shape_named
    from onepass.evidence.model_source import ModelSource
    from onepass.visualize.document import mode_document
    from onepass.visualize.mode_run import Options, run_modes
    from onepass.visualize.page import summary, visualize_page

    shape = resized(shape_named(args.workload), args.query_tokens, args.items, args.item_tokens)
    if not args.out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {args.out.parent}")
    with progress_bars(args.quiet) as progress:
        source = ModelSource(args.model, args.revision, args.offline, args.cache_dir, progress, 1, args.adapter)
        loaded = source.load(args.dtype)
        workload = make_workload(args.workload, shape, loaded[0].config.vocab_size, args.seed)
        encoded = _encoded(loaded[0], workload)
        runs = run_modes(loaded, encoded, Options(args.repeats, args.chunk_size, args.modes), progress)
    facts = _facts(loaded[0].name, workload.describe(), runs)
    args.out.write_text(visualize_page(runs, facts), encoding="utf-8")
    if args.json:
        print_json({**facts, "page": str(args.out), "modes": [mode_document(run) for run in runs]})
    else:
        console().print(f"{summary(runs)}\n{args.out}", soft_wrap=True)
    return 0


def _encoded(model: "Model", workload: "Workload") -> "Encoded":
    """The workload's one request, which asks for two labels; which tokens they are changes nothing that is drawn."""
    from onepass.engine.encoding.encode import Encoder

    if len(workload.requests) != 1:
        raise ConfigError(f"visualize draws one request; workload {workload.name} has {len(workload.requests)}")
    config = model.config
    encoder = Encoder(model.tokenizer, config.vocab_size, config.max_position, model.chat, model.class_head)
    return encoder.encode(workload.with_labels(LABELS).requests[0].request)


def _facts(model: str, workload: dict[str, Any], runs: "Sequence[ModeRun]") -> dict[str, Any]:
    from onepass.evidence.provenance import commit, hardware, versions

    words = ["onepass", *sys.argv[1:]]
    query, item = workload["query_tokens"], workload["item_tokens"]["mean"]
    return {
        "model": model,
        "workload": f"{workload['name']}: {query:g} + {workload['items']} x {item:g} tokens",
        "checksum": workload["checksum"],
        "command": shlex.join(words),
        "commit": commit() or "unknown",
        **{name: str(value) for name, value in {**hardware(), **versions()}.items()},
        "repeats": max(len(run.times_ms) for run in runs),
    }


def _modes(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in MODES]:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(MODES)}; got {unknown[0]!r}")
    return tuple(dict.fromkeys(names))
