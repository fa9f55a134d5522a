"""docs/cli.md from the commands' own help: `python -m onepass.cli.reference > docs/cli.md` (or `make docs`).

A test compares the two, so that the page cannot fall behind.
"""

import argparse
import os

from onepass.cli.main import build_parser

WIDTH = "100"  # columns; argparse wraps to the terminal otherwise


def markdown() -> str:
    parser = build_parser()
    parts = ["# The command line\n\nGenerated from `--help` by `make docs`.\n", _section("onepass", parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                parts.append(_section(f"onepass {name}", command))
                parts += [_section(f"onepass {name} {word}", inner) for word, inner in command.inner.items()]
    return "\n".join(parts)


def _section(title: str, parser: argparse.ArgumentParser) -> str:
    return f"## {title}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1")
    print(markdown(), end="")
