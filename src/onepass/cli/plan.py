"""`onepass plan MODEL --target v6e:2x2`: will it fit hardware that is not here, how fast may it be, what does it cost.

Planning is `onepass.capacity`; this file turns options into its question and its document into tables.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.cli.bench.options import MODES, WORKLOADS
from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.tables.plan import plan_page, print_plan
from onepass.cli.terminal.output import print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.cli.types import positive
from onepass.errors import ConfigError

if TYPE_CHECKING:
    from onepass.capacity.compiler import Compiled
    from onepass.capacity.deployment import Deployment
    from onepass.capacity.estimate import Compile, Question
    from onepass.engine.programs.builder import Program
    from onepass.loading.tensor_reader import Progress

ITEM_WORKLOADS = tuple(name for name in WORKLOADS if name != "grid")  # whose requests have no branches
LIBTPU = Path(".libtpu")  # where `make test` puts it, too
DESCRIPTION = """\
Plans for hardware that is not here. The engine's own planner and scheduler run without a device. For TPUs the
programs that the workload needs are compiled by the real compiler (the package libtpu) for the real topology; for
GPUs there is the roofline only. No weights are read, and shapes of well-known models are not fetched; of an
adapter the shapes are read, which must fit the model.

Targets: v5e, v5p, v6e, v7x with a topology (v6e:2x2, v5p:2x2x1); a100, h100, h200, l4, l40s, rtx-4090,
rtx-5090, rtx-pro-6000 with a count (h100:8). Speeds are predictions: chips as their vendors publish them, and
an efficiency that onepass measured elsewhere. The assumptions are printed with them.

  onepass plan random:qwen3-4b --target v6e:2x2 --workload contract --price 2.70
  onepass plan Qwen/Qwen3-8B --target h100:4 --json

Exit status: 0 it fits, 1 it does not, 2 wrong input or a compiler that failed."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "plan",
        help="will it fit hardware that is not here, how fast, at what cost",
        usage="onepass plan [MODEL] --target TARGET [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    hardware = parser.add_argument_group("hardware")
    hardware.add_argument("--target", metavar="TARGET", required=True, help="chips, as in v6e:2x2 or h100:8")
    hardware.add_argument("--tp", metavar="N", type=positive, help="devices that share one copy (default: the best)")
    hardware.add_argument("--price", metavar="P", type=_price, help="of a chip for an hour, in any currency")
    hardware.add_argument("--no-compile", action="store_true", help="the roofline and the engine's estimates alone")
    hardware.add_argument(
        "--libtpu", metavar="DIR", type=Path, help=f"where the package libtpu lies (default: installed, or {LIBTPU})"
    )
    _add_work(parser)
    add_source_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--html", metavar="F", type=Path, help="also write the plan as a page")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is scored")
    group.add_argument(
        "--workload", metavar="NAME", default="contract", help=f"one of {', '.join(ITEM_WORKLOADS)} (default: contract)"
    )
    for name in ("--query-tokens", "--items", "--item-tokens"):
        group.add_argument(name, metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--mode", choices=MODES, default="auto", metavar="M", help=f"one of {','.join(MODES)}")
    group.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", metavar="D", help="default: bfloat16"
    )


def run(args: argparse.Namespace) -> int:
    from onepass.capacity.document import document
    from onepass.capacity.estimate import answer

    with progress_bars(args.quiet) as progress:
        asked = question(args, progress)
        made = document(answer(asked, _compile(args, asked, progress)))
    if args.html is not None:
        args.html.write_text(plan_page(made), encoding="utf-8")
    if args.json:
        print_json(made)
    else:
        print_plan(made)
    return 0 if made["fits"] else 1


def question(args: argparse.Namespace, progress: "Progress") -> "Question":
    """Every mistake in the options is raised here."""
    from dataclasses import replace

    import numpy as np
    from ml_dtypes import bfloat16

    from onepass.bench.offline.cases import Way
    from onepass.bench.workloads import make_workload, resized, shape_named
    from onepass.capacity.chips import Target
    from onepass.capacity.estimate import Question
    from onepass.loading.configuration import open_config, published_config
    from onepass.loading.source import SourceOptions

    target = Target.parse(args.target)
    way = Way.named(args.mode)
    if shape_named(args.workload).branches:
        raise ConfigError(f"a plan takes requests with items alone; workload {args.workload} has branches")
    shape = resized(shape_named(args.workload), args.query_tokens, args.items, args.item_tokens)
    source = SourceOptions(args.revision, args.offline, args.cache_dir, progress=progress, adapter=args.adapter)
    name, config = open_config(args.model, source)
    workload = make_workload(args.workload, shape, config.vocab_size)
    engine = replace(way.config, mode=way.mode)
    return Question(
        name,
        config,
        np.dtype(bfloat16 if args.dtype == "bfloat16" else np.float32),
        target,
        workload,
        engine,
        args.tp,
        args.price,
        published_config(args.model, source) is not None,
    )


def _compile(args: argparse.Namespace, question: "Question", progress: "Progress") -> "Compile | None":
    if args.no_compile or question.target.topology is None:
        return None
    from onepass.capacity.compiler import compile_programs, find_libtpu

    folder = args.libtpu or (LIBTPU if LIBTPU.is_dir() else None)
    find_libtpu(folder)  # what is missing is told before anything is computed

    def compile_(deployment: "Deployment", programs: "Sequence[Program]") -> "list[Compiled]":
        compiled: list[Compiled] = []
        progress("compiling", 0, len(programs))
        for one in compile_programs(deployment, programs, folder):
            compiled.append(one)
            progress("compiling", len(compiled), len(programs))
        return compiled

    return compile_


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return price
