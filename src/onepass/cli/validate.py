"""`onepass validate MODEL`: the proof users can run. Prints a table and a verdict; status 1 when any check fails.

The checks are `onepass.validate`; this file only turns options into settings and outcomes into text.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.parser import (
    Subcommands,
    add_json,
    add_parallel_options,
    add_programs_dir,
    add_quantize,
    add_quiet,
    add_source_options,
)
from onepass.cli.terminal.output import console
from onepass.cli.terminal.progress import progress_bars
from onepass.cli.types import positive
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.evidence.tolerance import Dtype
    from onepass.validate.check import Outcome
    from onepass.validate.settings import Settings
    from onepass.validate.suite import Run

DEFAULT_MODEL = "smollm2-135m"
WAYS = ("packed-dense", "packed-segment", "chunked", "extend", "auto")
CHECKS = ("modes", "isolation", "continuations", "torch")
DESCRIPTION = """\
Checks that scores are right with this model on this machine: every mode against one sequence at a time,
items and requests isolated from one another, caches, continuations, and PyTorch transformers where it is installed.
Each check of isolation is also run with the isolation switched off, where it must fail.

  onepass validate                                 the default model, float32 and bfloat16
  onepass validate Qwen/Qwen3-0.6B --quick         fewer items, float32
  onepass validate --matrix --out artifacts        all known shapes, with JSON and Markdown files

Exit status: 0 all checks passed, 1 some failed."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "validate",
        help="prove that scores are right with a model on this machine",
        usage="onepass validate [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--matrix", action="store_true", help="a list of random shapes and the default model instead")
    parser.add_argument(
        "--layers",
        type=positive,
        metavar="N",
        help="with --matrix: layers of the random shapes (default: 2 below 64 GiB of memory, else all)",
    )
    _add_settings(parser.add_argument_group("what is checked"))
    add_parallel_options(parser.add_argument_group("devices"))
    add_source_options(parser)
    add_programs_dir(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="also write a JSON and a Markdown file for each run")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def _add_settings(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--quick", action="store_true", help="at most 33 items, float32 only (unless --dtype)")
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), metavar="DTYPE", help="float32 or bfloat16 (default: both)"
    )
    add_quantize(group)
    group.add_argument("--items", metavar="N,N", type=_counts, help="item counts (default: 1,2,8,33,128,500)")
    group.add_argument("--query-tokens", metavar="N", type=positive, default=100, help="default: 100")
    group.add_argument(
        "--item-tokens", metavar="N", type=positive, default=24, help="of the longest item (default: 24)"
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of the token ids (default: 0)")
    group.add_argument("--modes", metavar="M,M", type=_ways, default=WAYS, help=f"default: {','.join(WAYS)}")
    group.add_argument(
        "--checks", metavar="C,C", type=_some_of(CHECKS), default=CHECKS, help=f"default: {','.join(CHECKS)}"
    )
    group.add_argument(
        "--torch",
        choices=("auto", "require", "off"),
        default="auto",
        metavar="WHEN",
        help="compare with PyTorch transformers: auto (where it is found), require, off",
    )
    group.add_argument("--torch-python", metavar="PATH", type=Path, help="a Python that has torch and transformers")


def run(args: argparse.Namespace) -> int:
    if args.matrix and args.model:
        raise RequestError("invalid_arguments", f"give MODEL or --matrix, not both; got {args.model!r}")
    if args.layers and not args.matrix:
        raise RequestError("invalid_arguments", "--layers goes with --matrix; a model is cut by random:NAME?layers=N")
    settings = _settings(args)
    runs = [_validate(args, model, dtype, settings) for model in _models(args) for dtype in _dtypes(args)]
    if len(runs) > 1:
        console().print("\n".join(_verdicts(runs)))
    if args.json:
        _print_last_line(args, runs)
    return 0 if all(one.passed for one in runs) else 1


def _validate(args: argparse.Namespace, model: str, dtype: "Dtype", settings: "Settings") -> "Run":
    from onepass.engine.config import EngineConfig
    from onepass.evidence.model_source import ModelSource
    from onepass.validate import report
    from onepass.validate.suite import validate

    config = EngineConfig(dp=args.dp or 1, programs_dir=args.programs_dir)
    with progress_bars(args.quiet) as progress:
        source = ModelSource(model, args.revision, args.offline, args.cache_dir, progress, args.tp, args.adapter)
        result = validate(source, dtype, settings, config, _silent if args.quiet else _tell)
    out = console()
    out.print(report.table(result))
    for problem in report.problems(result):
        out.print(problem, soft_wrap=True)
    out.print(report.verdict(result), soft_wrap=True)
    if args.out is not None:
        for path in report.write_files(result, _command(), args.out):
            print(f"wrote {path}", file=sys.stderr)
    return result


def _tell(outcome: "Outcome", number: int, total: int) -> None:
    """Narration, a line a case: ` 7 of 92   0.3 s  item_first (extend, 3 items): passed`."""
    word = outcome.status if not outcome.note else f"{outcome.status}: {outcome.note}"
    place = f"{number:{len(str(total))}} of {total}"
    print(f"{place} {outcome.seconds:5.1f} s  {outcome.name} ({outcome.case}): {word}", file=sys.stderr, flush=True)


def _silent(outcome: "Outcome", number: int, total: int) -> None:
    del outcome, number, total


def _settings(args: argparse.Namespace) -> "Settings":
    from onepass.validate.settings import COUNTS, QUICK_COUNTS, Settings

    return Settings(
        counts=args.items or (QUICK_COUNTS if args.quick else COUNTS),
        query_tokens=args.query_tokens,
        item_tokens=args.item_tokens,
        seed=args.seed,
        ways=args.modes,
        checks=args.checks,
        torch=args.torch,
        torch_python=args.torch_python,
        quantize=None if args.quantize == "none" else args.quantize,
        quantize_activations=args.quantize_activations,
    )


def _models(args: argparse.Namespace) -> list[str]:
    from onepass.validate.matrix import default_layers, matrix_models

    if not args.matrix:
        return [args.model or DEFAULT_MODEL]
    return matrix_models(args.layers or default_layers())


def _dtypes(args: argparse.Namespace) -> "list[Dtype]":
    if args.quantize not in (None, "none"):
        if args.quantize in ("int8", "gguf"):
            return [args.dtype or "float32"]
        if args.dtype == "float32":
            raise RequestError("invalid_arguments", f"--quantize {args.quantize} goes with bfloat16; got float32")
        return ["bfloat16"]
    if args.dtype:
        return [args.dtype]
    return ["float32"] if args.quick else ["float32", "bfloat16"]


def _verdicts(runs: "list[Run]") -> list[str]:
    from onepass.validate.report import verdict

    return ["", *(verdict(one) for one in runs)]


def _print_last_line(args: argparse.Namespace, runs: "list[Run]") -> None:
    """The document is one line whoever reads it, for tables come before it."""
    import json

    from onepass.validate.report import document

    documents = [document(one, _command()) for one in runs]
    whole: dict[str, Any] = {"object": "list", "passed": all(one.passed for one in runs), "runs": documents}
    print(json.dumps(whole, allow_nan=False))


def _command() -> list[str]:
    return ["onepass", *sys.argv[1:]]


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


def _ways(text: str) -> tuple[str, ...]:
    """`packed/dense` is `packed-dense`, too."""
    return _some_of(WAYS)(text.replace("/", "-"))


def _some_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"must be some of {','.join(known)}; got {','.join(unknown)!r}")
        return names

    return chosen
