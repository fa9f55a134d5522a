"""`onepass compile [MODEL]`: compiles every program of a model ahead of time and keeps them on disk.

What the set of programs is, and compiling, is the engine's (`Scorer.compile`); keeping is `engine.programs.store`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.parser import (
    DEFAULT_MODEL,
    Subcommands,
    add_engine_options,
    add_json,
    add_quiet,
    add_source_options,
    engine_options,
)
from onepass.cli.terminal.output import console, in_bytes, print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import ConfigError

if TYPE_CHECKING:
    from onepass.engine.programs.compiled import CompiledProgram

DESCRIPTION = """\
Compiles every program that a model needs on this machine's device and keeps them on disk, so that the next
start loads them: for an image, or a folder of one's own. `onepass serve` finds them when it is given the same
options, on the same kind of device (and CPU), with the same versions of onepass and JAX.

  onepass compile Qwen/Qwen3-Reranker-0.6B
  onepass compile ./my-model --programs-dir /srv/programs && onepass serve ./my-model --programs-dir /srv/programs

Loading a program runs code: the folder must belong to you or to root, and be writable by nobody else.
Exit status: 0 all programs are kept, 1 some could not be written, 2 the options cannot be served."""
SOURCES = {"compiled": "compiled", "disk": "already there"}


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile a model's programs ahead of time",
        usage="onepass compile [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    add_engine_options(parser.add_argument_group("engine"))
    add_source_options(parser)
    output = parser.add_argument_group("output")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.engine.programs.store import ProgramStore, default_programs_dir

    folder: Path = args.programs_dir or default_programs_dir()
    if (problem := ProgramStore(folder).problem()) is not None:
        raise ConfigError(problem)
    programs = _compile(args, folder)
    if args.json:
        document = {"model": args.model, "folder": str(folder), "programs": [asdict(program) for program in programs]}
        print_json({"object": "programs", **document})
    else:
        _print_table(programs, folder)
    not_kept = [program.name for program in programs if not program.bytes]
    if not_kept:
        print(f"onepass: not kept in {folder}: {', '.join(not_kept)}", file=sys.stderr)
    return 1 if not_kept else 0


def _compile(args: argparse.Namespace, folder: Path) -> "Sequence[CompiledProgram]":
    from onepass.scorer import Scorer

    with progress_bars(args.quiet) as progress:
        loaded = Scorer.load(
            args.model,
            dtype=args.dtype,
            revision=args.revision,
            offline=args.offline,
            cache_dir=args.cache_dir,
            adapter=args.adapter,
            progress=progress,
            programs_dir=folder,
            warm_up=False,
            **engine_options(args),
        )
        with loaded as scorer:
            programs: Sequence[CompiledProgram] = scorer.compile(progress)
            return programs


def _print_table(programs: "Sequence[CompiledProgram]", folder: Path) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("program", "tokens", "size", "seconds", ""):
        table.add_column(heading, justify="right" if heading in ("tokens", "size", "seconds") else "left")
    for program in programs:
        table.add_row(*_row(program))
    out = console()
    out.print(table)
    size, seconds = sum(p.bytes for p in programs), sum(p.seconds for p in programs)
    out.print(f"{len(programs)} programs, {in_bytes(size)}, {seconds:.1f} s; kept in {folder}", soft_wrap=True)


def _row(program: "CompiledProgram") -> tuple[Any, ...]:
    tokens = f"{program.tokens:,}" if program.tokens else ""  # some programs are of no rung
    size = in_bytes(program.bytes) if program.bytes else "not kept"
    return program.name, tokens, size, f"{program.seconds:.2f}", SOURCES[program.source]
