"""The command `onepass`: picks the subcommand, and turns what went wrong into one line and an exit status.

Results go to stdout, everything else to stderr. A subcommand is a file with `add_to(subcommands)` and `run(args)`;
whatever is slow to import is imported in `run`, so that `--help` answers at once.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from onepass.cli import bench, compile, info, models, plan, profile, score, serve, validate
from onepass.cli.parser import Parser
from onepass.errors import OnepassError
from onepass.version import VERSION

DESCRIPTION = """\
Scores many items against one query with a causal language model: for each item, the probability of each
label as the next token after query + item."""
EXAMPLE = """\
example:
  onepass score --query "Review:" --items " I loved it. Sentiment:" " I hated it. Sentiment:" \\
      --labels " positive" " negative"

Exit status: 0 success, 2 wrong input or no such model (the reason is on stderr), 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to fail
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except OnepassError as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("onepass: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has left (`onepass models | head -1`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="onepass", usage="onepass COMMAND [OPTION ...]", description=DESCRIPTION, epilog=EXAMPLE)
    parser.add_argument("--version", action="version", version=f"onepass {VERSION}", help="print the version and exit")
    # `prog` for the commands' own names: by itself argparse would put the whole line of usage before them.
    commands = parser.add_subparsers(
        prog=parser.prog, title="commands", metavar="COMMAND", required=True, parser_class=Parser
    )
    for command in (score, serve, compile, models, info, validate, bench, profile, plan):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
