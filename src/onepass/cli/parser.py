"""The argument parser all commands share: layout of help, wording of errors, and the options that choose a model.

argparse and not click, because an option may take several values (`--items I1 I2 ...`).
"""

import argparse
from pathlib import Path
from typing import Any, NoReturn

# The scorer's own default, which cannot be imported here: it would bring JAX into --help.
DEFAULT_MODEL = "smollm2-135m"
# What add_subparsers returns; its name in argparse is private.
Subcommands = Any


class Parser(argparse.ArgumentParser):
    """Help keeps the line breaks of descriptions; an error is one line like every other error of onepass."""

    def __init__(self, **options: Any) -> None:
        # Abbreviated options would change their meaning whenever an option is added.
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        self.inner: dict[str, Parser] = {}

    def add_inner(self, name: str, **options: Any) -> "Parser":
        """A command within this one, chosen by its first word: `onepass bench compare`."""
        self.inner[name] = Parser(prog=f"{self.prog} {name}", **options)
        return self.inner[name]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        inner = self.inner.get(args[0]) if args else None
        return inner.parse_known_args(args[1:], namespace) if inner else super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"onepass: {message} (see `{self.prog} --help`)\n")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Where the model comes from; these become `loading.source.SourceOptions`."""
    group = parser.add_argument_group("where the model comes from")
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit of a model on the hub")
    group.add_argument("--offline", action="store_true", help="use only what is already on this machine")
    add_cache_dir(group)


def add_cache_dir(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--cache-dir", metavar="DIR", type=Path, help="keep models here instead of the user's caches")


def add_parallel_options(parser: "argparse._ActionsContainer") -> None:
    """These become fields of `engine.config.EngineConfig`."""
    parser.add_argument("--tp", metavar="N", type=devices, help="devices that share the model (default: as fits)")
    parser.add_argument("--dp", metavar="N", type=devices, help="replicas of the model (default: as many as fit)")


def add_quantize(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--quantize",
        choices=("fp8",),
        metavar="Q",
        help="fp8: the layers' weights in 8 bits, and on Hopper GPUs their products, too",
    )


def devices(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return int(text)


def add_json(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def add_quiet(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
