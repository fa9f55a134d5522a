"""The command `onepass`: picks the subcommand, and turns what went wrong into one line and an exit status.

Results go to stdout, everything else to stderr. A subcommand is a file with `add_to(subcommands)` and `run(args)`;
whatever is slow to import is imported in `run`, so that `--help` answers at once. Ctrl-C ends any of it (`interrupt`).
"""

import argparse
import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence

from onepass.cli.parser import Parser
from onepass.cli.terminal.interrupt import INTERRUPTED, end_interrupted, prompt_interrupt
from onepass.errors import OnepassError
from onepass.limits import limit_threads
from onepass.version import VERSION

DESCRIPTION = """\
Scores many items against one query with a causal language model: for each item, the probability of each
label as the next token after query + item."""
EXAMPLE = """\
examples:
  onepass score --query "Review:" --items " I loved it. Sentiment:" " I hated it. Sentiment:" \\
      --labels " positive" " negative"
  onepass rank --query "why does bread rise" --documents "Yeast gives off gas." "Iron turns into rust."

Exit status: 0 success, 2 wrong input or no such model (the reason is on stderr), 130 interrupted."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Without `argv` this is the process's command, and an interrupt ends the process."""
    if argv is None:
        # By itself JAX takes three quarters of a GPU's memory before the first array: 1.7 s of an H200's start. What
        # the pool and the largest step take, they have from the start all the same.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        limit_threads(os.environ)
        atexit.register(gc.freeze)  # Python would walk all of JAX's objects several times before it ends: 0.3 s
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except OnepassError as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if argv is None:
            end_interrupted()
        print("onepass: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()  # the reader has left (`onepass models | head -1`)
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"onepass: cannot write{_of_file(error)}: {error.strerror}", file=sys.stderr)
        _drop_stdout()
        return 2


def _of_file(error: OSError) -> str:
    return f" {error.filename}" if error.filename else ""


def _drop_stdout() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    with prompt_interrupt():
        parser = build_parser()
        args = parser.parse_args(words or ["--help"])
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to fail
        if not getattr(args, "handles_interrupts", False):
            return _finished(args)
    return _finished(args)


def _finished(args: argparse.Namespace) -> int:
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="onepass", usage="onepass COMMAND [OPTION ...]", description=DESCRIPTION, epilog=EXAMPLE)
    parser.add_argument("--version", action="version", version=f"onepass {VERSION}", help="print the version and exit")
    # `prog` for the commands' own names: by itself argparse would put the whole line of usage before them.
    commands = parser.add_subparsers(
        prog=parser.prog, title="commands", metavar="COMMAND", required=True, parser_class=Parser
    )
    from onepass.cli import (
        calibrate,
        compile,
        decide,
        info,
        models,
        plan,
        profile,
        prompt,
        rank,
        run,
        score,
        serve,
        validate,
    )
    from onepass.cli.bench import offline as bench
    from onepass.cli.bench import visualize
    from onepass.cli.evaluate import command as evaluate

    for command in (
        score,
        rank,
        decide,
        calibrate,
        run,
        serve,
        compile,
        models,
        info,
        prompt,
        validate,
        evaluate,
        bench,
        profile,
        visualize,
        plan,
    ):
        command.add_to(commands)
    # The server finishes what it has begun when it is told to stop, and handles the signal itself.
    commands.choices["serve"].set_defaults(handles_interrupts=True)
    parser.commands = list(commands.choices)
    return parser


if __name__ == "__main__":
    sys.exit(main())
