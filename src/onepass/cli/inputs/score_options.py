"""The options of `onepass score`, and what can be known to be wrong with them before a model is opened.

Running the command is `score`; the texts that options point to are read by `requests`.
"""

import argparse
from pathlib import Path

from onepass.api import MODES
from onepass.cli.inputs.rows import STDIN
from onepass.cli.parser import DEFAULT_MODEL, add_json, add_parallel_options, add_quantize, add_quiet
from onepass.cli.types import positive
from onepass.errors import RequestError

# The options that make up one request.
REQUEST_OPTIONS = (
    "query",
    "query_file",
    "messages",
    "items",
    "items_file",
    "text_column",
    "id_column",
    "labels",
    "label_token_ids",
    "continuations",
    "apply_softmax",
    "temperature",
    "item_first",
    "delimiter_token_id",
    "mode",
    "sort",
)
LABEL_OPTIONS = ("labels", "label_token_ids")
SEVERAL_VALUES = ("items", "documents", "labels", "continuations")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"bundled name, folder, .gguf file or org/name on the hub (default: {DEFAULT_MODEL})",
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    add_query(group)
    group.add_argument(
        "--messages",
        metavar="F",
        help="instead of a query, a JSON file with chat messages for the model's chat template (a list, or an object "
        "with messages and options such as chat_template_kwargs); an item stands where a message has {item}, else at "
        "the end of the last user message",
    )
    group.add_argument("--items", metavar="I", nargs="+", help="the candidates")
    add_rows_file(group, "items")
    group.add_argument(
        "--labels",
        metavar="L",
        nargs="+",
        help='the answers, one token each, such as " yes" " no", or classes of a classification head (default: all)',
    )
    group.add_argument("--label-token-ids", metavar="N", nargs="+", type=_token_id, help="the answers as token ids")
    group.add_argument(
        "--continuations",
        metavar="T",
        nargs="+",
        help="answers of any length: log P of each text after query + item, and its probability among these texts",
    )
    group.add_argument(
        "--requests",
        metavar="F",
        help="whole requests instead: a JSON object a line, with query, items, labels, continuations (one list, or one "
        "per item), apply_softmax, ..., and an id that comes back; a row that is wrong has an error instead of scores, "
        "and the exit status is 2; - is stdin",
    )


def add_query(group: "argparse._ActionsContainer") -> None:
    group.add_argument("--query", metavar="Q", help="the shared context; - reads stdin")
    group.add_argument("--query-file", metavar="F", help="the query from a file; - is stdin")


def add_rows_file(group: "argparse._ActionsContainer", param: str) -> None:
    group.add_argument(
        f"--{param}-file",
        metavar="F",
        help=f"{param} from a file: one a line (an empty line counts), or .csv and .tsv with a header, or .jsonl; "
        "- is stdin",
    )
    group.add_argument(
        "--text-column", metavar="C", help="of a .csv, .tsv or .jsonl file (default: text, item, or the only one)"
    )
    group.add_argument("--id-column", metavar="C", help="ids that come back with the results (default: id, if present)")


def add_scoring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scoring")
    group.add_argument("--apply-softmax", action="store_true", help="probabilities among the labels only")
    group.add_argument("--temperature", metavar="T", type=float, help="divide the logits by T (default: 1)")
    group.add_argument("--item-first", action="store_true", help="score item + query instead of query + item")
    group.add_argument("--delimiter-token-id", metavar="N", type=int, help="a token between query and item")
    add_computing(group)


def add_computing(group: "argparse._ActionsContainer") -> None:
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
    group.add_argument("--sort", metavar="L", help="items by the probability of this label, highest first")
    group.add_argument("--top", metavar="N", type=positive, help="only the N best items, by --sort or the first label")
    group.add_argument(
        "--rank", action="store_true", help='with --json: add "ranking", the items by --sort or the first label'
    )
    group.add_argument(
        "--out", metavar="F", type=Path, help="write results to a file instead, a JSON object a line, as they are done"
    )
    add_json(group)
    group.add_argument("--verbose", action="store_true", help="also say why this mode was chosen")
    add_quiet(group)


def check_options(args: argparse.Namespace) -> None:
    """What can be known to be wrong before a model is opened."""
    if args.out is not None:
        _check_writable(args.out)
    given = {name for name in REQUEST_OPTIONS if getattr(args, name) is not None and getattr(args, name) is not False}
    refuse_swallowed_model(args, "score")
    if args.requests:
        if given:
            raise wrong(f"--requests holds whole requests; {_listed(given)} cannot be added to them")
        return
    check_one_of(args, ("query", "query_file", "messages"), ", or whole --requests")
    check_one_of(args, ("items", "items_file"), ", or whole --requests")
    if args.labels is not None and args.label_token_ids is not None:
        check_one_of(args, LABEL_OPTIONS, "")
    if args.model is None:
        check_answers(args, has_classes=False)
    if [args.query, args.query_file, args.messages, args.items_file].count(STDIN) > 1:
        raise wrong("query and items cannot both come from stdin")
    if args.sort is not None:
        sort_column(args)


def check_answers(args: argparse.Namespace, has_classes: bool) -> None:
    """Raises RequestError where nothing says which answers are scored; a model with classes scores those."""
    if not has_classes and args.continuations is None:
        check_one_of(args, LABEL_OPTIONS, " (or --continuations, for texts of several tokens)")


def _check_writable(path: Path) -> None:
    """Leaves nothing behind: what is refused next must not look like a result."""
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise RequestError("unwritable_file", f"cannot write {path}: {error.strerror}", "out") from error


def check_one_of(args: argparse.Namespace, names: tuple[str, ...], otherwise: str) -> None:
    given = [name for name in names if getattr(args, name) is not None]
    wanted = " or ".join(map(option, names))
    if len(given) > 1:
        raise wrong(f"give {' or '.join(map(option, given))}, not both")
    if not given:
        raise wrong(f"{wanted} is required{otherwise}")


def sort_column(args: argparse.Namespace) -> int | None:
    """The place of `--sort` among the labels, or among the continuations where there are no labels."""
    if args.sort is None:
        return None
    known = args.labels or [str(token) for token in args.label_token_ids or ()] or args.continuations or []
    if not known:
        raise wrong("--sort takes one of --labels, --label-token-ids or --continuations; none was given")
    if args.sort not in known:
        raise wrong(f"--sort takes one of {', '.join(map(repr, known))}; got {args.sort!r}")
    place: int = known.index(args.sort)
    return place


def refuse_swallowed_model(args: argparse.Namespace, command: str) -> None:
    """An option with several values takes a MODEL that follows it for one more value."""
    if args.model is not None:
        return
    for name in SEVERAL_VALUES:
        last = (getattr(args, name, None) or [""])[-1]
        if looks_like_model(last):
            raise wrong(
                f"{last!r} was read as the last of {option(name)}; MODEL comes first: onepass {command} {last} "
                f"{option('query')} ... (or name the model explicitly to keep it as a value)"
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


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _listed(names: set[str]) -> str:
    return ", ".join(option(name) for name in REQUEST_OPTIONS if name in names)


def wrong(message: str) -> RequestError:
    return RequestError("invalid_arguments", message)
