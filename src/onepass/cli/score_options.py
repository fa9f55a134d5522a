"""The options of `onepass score`, and what can be known to be wrong with them before a model is loaded.

Running the command is `score`; the texts that options point to are read by `inputs`.
"""

import argparse
from pathlib import Path

from onepass.api import MODES
from onepass.cli.inputs import STDIN
from onepass.cli.parser import DEFAULT_MODEL, add_json, add_parallel_options, add_quantize, add_quiet
from onepass.errors import RequestError

# The options that make up one request.
REQUEST_OPTIONS = (
    "query",
    "query_file",
    "items",
    "items_file",
    "labels",
    "label_token_ids",
    "apply_softmax",
    "temperature",
    "item_first",
    "delimiter_token_id",
    "mode",
)


def add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument("--query", metavar="Q", help="the shared context; - reads stdin")
    group.add_argument("--query-file", metavar="F", help="the query from a file; - is stdin")
    group.add_argument("--items", metavar="I", nargs="+", help="the candidates")
    group.add_argument(
        "--items-file",
        metavar="F",
        help="one item a line (an empty line is an empty item), or, in a .jsonl file, a JSON string or an object with "
        '"text" or "item" a line; - is stdin',
    )
    group.add_argument("--labels", metavar="L", nargs="+", help='the answers, one token each, such as " yes" " no"')
    group.add_argument("--label-token-ids", metavar="N", nargs="+", type=_token_id, help="the answers as token ids")
    group.add_argument(
        "--requests",
        metavar="F",
        help="whole requests instead: a JSON object a line, with query, items, labels, apply_softmax, ...; - is stdin",
    )


def add_scoring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scoring")
    group.add_argument("--apply-softmax", action="store_true", help="probabilities among the labels only")
    group.add_argument("--temperature", metavar="T", type=float, help="divide the logits by T (default: 1)")
    group.add_argument("--item-first", action="store_true", help="score item + query instead of query + item")
    group.add_argument("--delimiter-token-id", metavar="N", type=int, help="a token between query and item")
    group.add_argument("--mode", choices=MODES, metavar="MODE", help=f"{', '.join(MODES)} (default: auto)")
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        metavar="DTYPE",
        help="of weights and computation: auto, float32, bfloat16",
    )
    add_quantize(group)
    add_parallel_options(group)


def add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--top", metavar="N", type=_positive, help="show only the N best items")
    group.add_argument(
        "--rank", action="store_true", help='with --json: add "ranking", the items best first by their first label'
    )
    add_json(group)
    add_quiet(group)


def check_options(args: argparse.Namespace) -> None:
    """What can be known to be wrong before a model is loaded."""
    given = {name for name in REQUEST_OPTIONS if getattr(args, name) is not None and getattr(args, name) is not False}
    _refuse_swallowed_model(args)
    if args.requests:
        if given:
            raise _wrong(f"--requests holds whole requests; {_listed(given)} cannot be added to them")
        return
    for one, other in (("query", "query_file"), ("items", "items_file"), ("labels", "label_token_ids")):
        wanted = f"{_option(one)} or {_option(other)}"
        if one in given and other in given:
            raise _wrong(f"give {wanted}, not both")
        if one not in given and other not in given:
            raise _wrong(f"{wanted} is required" + ("" if one == "labels" else ", or whole --requests"))
    if STDIN in (args.query, args.query_file) and args.items_file == STDIN:
        raise _wrong("query and items cannot both come from stdin")


def _refuse_swallowed_model(args: argparse.Namespace) -> None:
    """An option with several values takes a MODEL that follows it for one more value."""
    if args.model is not None:
        return
    for name in ("items", "labels"):
        last = (getattr(args, name) or [""])[-1]
        if looks_like_model(last):
            raise _wrong(
                f"{last!r} was read as the last of {_option(name)}; MODEL comes first: onepass score {last} "
                f"{_option('query')} ... (or name the model explicitly to keep it as a value)"
            )


def looks_like_model(text: str) -> bool:
    return (
        text == DEFAULT_MODEL
        or text.startswith("random:")
        or (text.endswith(".gguf") and Path(text).is_file())
        or (bool(text) and len(text) < 4096 and "\0" not in text and (Path(text) / "config.json").is_file())
    )


def _token_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = f"; MODEL comes first: onepass score {text} ..." if looks_like_model(text) else ""
        raise argparse.ArgumentTypeError(f"a token id must be a whole number; got {text!r}{hint}") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return int(text)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _listed(names: set[str]) -> str:
    return ", ".join(_option(name) for name in REQUEST_OPTIONS if name in names)


def _wrong(message: str) -> RequestError:
    return RequestError("invalid_arguments", message)
