"""`onepass models`: what can be named as MODEL, what is on this machine, how large it is and under which licence.

The list itself is `loading.catalogue`.
"""

import argparse
from typing import TYPE_CHECKING

from onepass.cli.output import console, in_bytes, in_millions, print_json
from onepass.cli.parser import Subcommands, add_cache_dir, add_json

if TYPE_CHECKING:
    from onepass.loading.catalogue import CatalogueEntry

DESCRIPTION = """\
Lists the models known by name: bundled ones, those of the Hugging Face hub that are already in the cache, and
shapes that can be made with random weights. Any folder, .gguf file or hub name (org/name) works as well."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "models",
        help="list the models that are known and cached",
        usage="onepass models [--cache-dir DIR] [--json]",
        description=DESCRIPTION,
    )
    add_cache_dir(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.loading.catalogue import catalogue

    entries = catalogue(args.cache_dir)
    if args.json:
        print_json({"object": "list", "models": [entry.to_dict() for entry in entries]})
    else:
        _print_table(entries)
    return 0


def _print_table(entries: "list[CatalogueEntry]") -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("model", "kind", "parameters", "on disk", "licence", "use"):
        table.add_column(heading, justify="right" if heading in ("parameters", "on disk") else "left")
    for entry in entries:
        table.add_row(
            entry.name,
            entry.kind,
            "" if entry.parameters is None else in_millions(entry.parameters),
            _on_disk(entry),
            entry.licence or ("none" if entry.kind == "random" else "see the hub"),
            entry.use or f"not supported: {entry.note}",
        )
    out = console()
    out.print(table)
    out.print("Also: a folder with config.json and safetensors, a .gguf file, or org/name[@revision] on the hub.")


def _on_disk(entry: "CatalogueEntry") -> str:
    if entry.kind == "random":
        return "-"
    return in_bytes(entry.size_bytes) if entry.cached and entry.size_bytes is not None else "not yet"
