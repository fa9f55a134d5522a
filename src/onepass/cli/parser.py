"""The argument parser all commands share: layout of help, wording of errors, and the options that choose a model.

argparse and not click, because an option may take several values (`--items I1 I2 ...`).
"""

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from onepass.cli.types import positive, whole

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
        self.commands: list[str] = []  # of the program itself

    def add_inner(self, name: str, **options: Any) -> "Parser":
        """A command within this one, chosen by its first word: `onepass bench compare`."""
        self.inner[name] = Parser(prog=f"{self.prog} {name}", **options)
        return self.inner[name]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Nothing is left over: the command that met a word it does not know says so, with its own help."""
        first = args[0] if args else ""
        if first in self.inner:
            return self.inner[first].parse_known_args(args[1:], namespace)
        if self.commands and first and not first.startswith("-") and first not in self.commands:
            close = closest(first, self.commands)
            self.error(f"no such command: {first!r}; {close or 'the commands are ' + ', '.join(self.commands)}")
        if self.commands and first[:2] == "--" and first.partition("=")[0] not in self._option_string_actions:
            self._refuse([first])  # before the command is missed
        known, left = super().parse_known_args(args, namespace)
        if left:
            self._refuse(left)
        return known, left

    def _refuse(self, words: list[str]) -> NoReturn:
        options = (closest(word.partition("=")[0], self._option_string_actions) for word in words if word[:2] == "--")
        hint = next(filter(None, options), "")
        self.error(f"unrecognized arguments: {' '.join(words)}" + (f"; {hint}" if hint else ""))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"onepass: {message} (see `{self.prog} --help`)\n")


def closest(word: str, known: Iterable[str]) -> str:
    """`did you mean --query?`, or nothing."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Where the model comes from; these become `loading.source.SourceOptions`."""
    group = parser.add_argument_group("where the model comes from")
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit of a model on the hub")
    group.add_argument("--offline", action="store_true", help="use only what is already on this machine")
    group.add_argument("--adapter", metavar="A", help="merge this LoRA adapter (PEFT): a folder or a hub name")
    add_cache_dir(group)


def add_cache_dir(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--cache-dir", metavar="DIR", type=Path, help="keep models here instead of the user's caches")


def add_parallel_options(parser: "argparse._ActionsContainer") -> None:
    """These become fields of `engine.config.EngineConfig`."""
    parser.add_argument("--tp", metavar="N", type=positive, help="devices that share the model (default: as fits)")
    parser.add_argument("--dp", metavar="N", type=positive, help="replicas of the model (default: as many as fit)")


def add_quantize(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--quantize",
        choices=("none", "fp8", "int8", "gguf"),
        metavar="Q",
        help="weights in 8 bits: fp8 (on Hopper GPUs their products, too), int8 on CPUs; gguf: a quantised file's own "
        "blocks (default on CPUs); none: as --dtype says",
    )
    parser.add_argument(
        "--quantize-activations",
        action=argparse.BooleanOptionalAction,
        help="multiply 8-bit weights on CPUs as integers, with activations quantized in blocks: faster, less exact "
        "(default: with int8, on CPUs with AMX, AVX-512, AVX2 or NEON dot products)",
    )


def add_engine_options(parser: "argparse._ActionsContainer") -> None:
    """What decides which programs a model needs; `engine_options` reads them."""
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", metavar="D",
        help="of weights and computation: auto, float32, bfloat16",
    )  # fmt: skip
    add_quantize(parser)
    add_parallel_options(parser)
    parser.add_argument("--max-batch-tokens", type=positive, metavar="N", help="max tokens in one step of the device")
    parser.add_argument("--cache-bytes", type=whole, metavar="N", help="budget for contexts (default: a quarter)")
    parser.add_argument(
        "--memory-bytes", type=positive, metavar="N", help="what the engine may use (default: what is there)"
    )
    add_programs_dir(parser)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `engine.config.EngineConfig` that were given. `dtype` and `programs_dir` travel apart from them."""
    names = ("quantize", "quantize_activations", "tp", "dp", "max_batch_tokens", "cache_bytes", "memory_bytes")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def add_programs_dir(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--programs-dir", metavar="DIR", type=Path, help="keep compiled programs here instead of the user's cache"
    )


def add_json(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def add_quiet(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
