"""`onepass info MODEL`: what a model is made of, from its configuration and tokenizer; no weights are read.

Opening is `loading.model`; this file only chooses what to say.
"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_json, add_programs_dir, add_quiet, add_source_options
from onepass.cli.terminal.output import console, in_bytes, in_millions, print_json
from onepass.cli.terminal.progress import progress_bars

if TYPE_CHECKING:
    from onepass.loading.model import Model
    from onepass.models.rope import Rope

DESCRIPTION = """\
Describes a model: architecture, size, context length, bytes of KV cache a token takes, tokenizer, chat and
rerank template; the programs and kernels that it has on this machine, and where compiled ones are kept. Reads no
weights, but fetches the model if it is not on this machine yet."""
TEMPLATE_LINES = 4


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "info",
        help="describe a model",
        usage="onepass info [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    add_source_options(parser)
    add_programs_dir(parser)
    output = parser.add_argument_group("output")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.engine.described import describe_programs, describe_weights
    from onepass.engine.programs.store import default_programs_dir, describe_store
    from onepass.loading.model import open_model
    from onepass.loading.source import SourceOptions

    with progress_bars(args.quiet) as progress:
        options = SourceOptions(args.revision, args.offline, args.cache_dir, progress=progress, adapter=args.adapter)
        model = open_model(args.model, options)
    facts = describe(model) | {"weights": describe_weights(model)} | describe_programs(model.config)
    facts |= {"compiled_programs": describe_store(args.programs_dir or default_programs_dir())}
    if args.json:
        print_json(facts)
    else:
        _print_table(facts)
    return 0


def describe(model: "Model") -> dict[str, Any]:
    """The facts, ready for JSON; the table says the same."""
    config, tokenizer = model.config, model.tokenizer
    return {
        "object": "model",
        "model": model.name,
        "source": model.source.kind,
        "path": None if model.source.path is None else str(model.source.path),
        "licence": model.licence,
        "file_bytes": model.file_bytes,
        "quantization": model.stored_quantization,
        "adapter": None if model.adapter is None else asdict(model.adapter),
        "architecture": config.architecture,
        "parameters": config.num_parameters,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "mlp_size": config.mlp_size,
        "vocabulary": config.vocab_size,
        "context_length": config.max_position,
        "rope": _rope(config.rope),
        "tied_embeddings": config.tied,
        "kv_bytes_per_token": {"bfloat16": config.kv_bytes_per_token(2), "float32": config.kv_bytes_per_token(4)},
        "tokenizer": None if tokenizer is None else {"kind": tokenizer.kind, "vocabulary": tokenizer.vocab_size},
        "chat_template": model.chat_template,
        "rerank_method": model.rank_method,
        "rerank_template": model.rank_template,
    }


def _rope(rope: "Rope") -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": rope.kind, "theta": rope.theta}
    if rope.kind != "default":
        facts["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        facts["original_max_position"] = rope.original_max_position
    return facts


def _print_table(facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for key, value in facts.items():
        if key not in ("object", "attention"):  # the backends say the same and more
            heading = "file size" if key == "file_bytes" else key.replace("_", " ")
            table.add_row(Text(heading, style="bold"), Text(_words(key, value)))
    console().print(table)


def _words(key: str, value: Any) -> str:
    """A fact as a person reads it."""
    if value is None:
        return "none (token ids only)" if key == "tokenizer" else "none"
    if key == "chat_template":
        return f"{len(value):,} characters of Jinja (in full with --json)"
    if key == "rerank_template":
        return _first_lines(value)
    if key == "file_bytes":
        return in_bytes(value)
    if key == "compiled_programs":
        return value["problem"] or f"{value['programs']} ({in_bytes(value['bytes'])}) in {value['folder']}"
    if key == "backends":
        return "\n".join(_backend(row) for row in value)
    if key == "parameters":
        return f"{in_millions(value)} ({value:,})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {v:,}" if isinstance(v, int | float) else str(v) for name, v in value.items())
    return str(value)


def _backend(row: dict[str, Any]) -> str:
    reason = f": {row['problem']}" if row["problem"] else ""
    code = f"; {row['code']}" if row["code"] else ""
    code += f"; with --dtype bfloat16 weights {row['bf16_products']}" if row["bf16_products"] else ""
    code += f"; with --quantize int8 {row['int8_products']}" if row["int8_products"] else ""
    lines = [f"{row['name']} ({row['state']}{reason}); {row['provides']}, on {row['runs_on']}{code}"]
    lines += [f"  {operation} is left to XLA: {why}" for operation, why in row["left_to_xla"].items()]
    return "\n".join(lines)


def _first_lines(template: str) -> str:
    lines = template.split("\n")
    rest = len(lines) - TEMPLATE_LINES
    return "\n".join(lines[:TEMPLATE_LINES] + ([f"… {rest} more lines"] if rest > 0 else []))
