"""`onepass models`: what can be named as MODEL, what is on this machine, how large it is and under which licence.

The list itself is `loading.catalogue`.
"""

import argparse
from typing import TYPE_CHECKING

from onepass.cli.parser import Subcommands, add_cache_dir, add_json
from onepass.cli.terminal.output import console, in_bytes, in_millions, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from onepass.loading.catalogue import CatalogueEntry, Suggestion

DESCRIPTION = """\
Lists the models known by name: bundled ones, those of the Hugging Face hub that are already in the cache, and
shapes that can be made with random weights (--all: each of them); then a public model to begin with for each task.
Any folder, .gguf file or hub name (org/name) works as well."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "models",
        help="list the models that are known and cached",
        usage="onepass models [--all] [--cache-dir DIR] [--json]",
        description=DESCRIPTION,
    )
    parser.add_argument("--all", action="store_true", help="list every shape that random weights can have")
    add_cache_dir(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from onepass.loading.catalogue import SUGGESTIONS, catalogue

    entries = catalogue(args.cache_dir)
    if args.json:
        suggestions = [asdict(suggestion) for suggestion in SUGGESTIONS]
        print_json({"object": "list", "models": [entry.to_dict() for entry in entries], "suggestions": suggestions})
        return 0
    _print_models(entries, args.all)
    _print_suggestions(SUGGESTIONS)
    return 0


def _print_models(entries: "Sequence[CatalogueEntry]", every_shape: bool) -> None:
    """A row per model, and one for all random shapes."""
    table = _table("model", "kind", "parameters", "on disk", "licence")
    shapes = [entry for entry in entries if entry.kind == "random"]
    for entry in entries if every_shape else [entry for entry in entries if entry.kind != "random"]:
        table.add_row(
            entry.name,
            entry.kind,
            "" if entry.parameters is None else in_millions(entry.parameters),
            _on_disk(entry),
            _licence(entry),
        )
    if shapes and not every_shape:
        sizes = sorted(entry.parameters or 0 for entry in shapes)
        span = f"{in_millions(sizes[0])} to {in_millions(sizes[-1])}"
        table.add_row(f"random:SHAPE, {len(shapes)} shapes (--all)", "random", span, "-", "none")
    out = console()
    out.print(table)
    out.print("Also: a folder with config.json and safetensors, a .gguf file, or org/name[@revision] on the hub.")


def _print_suggestions(suggestions: "Sequence[Suggestion]") -> None:
    table = _table("task", "a model to begin with", "size", "licence", "give it")
    for suggestion in suggestions:
        size = in_millions(suggestion.parameters)
        table.add_row(suggestion.task, suggestion.name, size, suggestion.licence, suggestion.how)
    out = console()
    out.print(table)
    out.print("Name one as MODEL: `onepass score MODEL ...` fetches it from the hub once.")


def _table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("parameters", "size", "on disk") else "left")
    return table


def _licence(entry: "CatalogueEntry") -> str:
    if entry.note:
        return f"not supported: {entry.note}"
    return entry.licence or ("none" if entry.kind == "random" else "see the hub")


def _on_disk(entry: "CatalogueEntry") -> str:
    if entry.kind == "random":
        return "-"
    return in_bytes(entry.size_bytes) if entry.cached and entry.size_bytes is not None else "not yet"
