"""`onepass score [MODEL]`: scores items against a query and prints them best first, or as one JSON document.

Its options are `score_options`, reading texts is `inputs`, the table is `score_table`; the numbers come from `scorer`.
"""

import argparse
from typing import TYPE_CHECKING, Any

from onepass.api import ScoreRequest, text_of
from onepass.cli.inputs import read_items, read_query, read_requests
from onepass.cli.output import print_json
from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_source_options
from onepass.cli.progress import progress_bars
from onepass.cli.score_options import add_input, add_output, add_scoring, check_options
from onepass.cli.score_table import best_first, print_result

if TYPE_CHECKING:
    from onepass.api import ScoreResult

USAGE = """\
onepass score [MODEL] (--query Q | --query-file F) (--items I ... | --items-file F)
                     (--labels L ... | --label-token-ids N ...) [OPTION ...]
       onepass score [MODEL] --requests F.jsonl [OPTION ...]"""
DESCRIPTION = """\
For each item, the probability of each label as the next token after query + item. Query and items are
joined as they are: mind the spaces. MODEL comes first, before options that take several values.

  onepass score --query "Review:" --items " I loved it. Sentiment:" " I hated it. Sentiment:" \\
      --labels " positive" " negative"
  onepass score Qwen/Qwen3-0.6B --query-file user.txt --items-file products.txt --labels " yes" " no"
  onepass score ./my-model --requests requests.jsonl --json"""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "score",
        help="score items against a query",
        usage=USAGE,
        description=DESCRIPTION,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"bundled name, folder, .gguf file or org/name on the hub (default: {DEFAULT_MODEL})",
    )
    add_input(parser)
    add_scoring(parser)
    add_source_options(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_options(args)
    requests = read_requests(args.requests) if args.requests else [_request(args)]
    results = _score(args, requests)
    if args.json:
        documents = [_document(args, result) for result in results]
        print_json({"object": "list", "results": documents} if args.requests else documents[0])
        return 0
    for request, result in zip(requests, results, strict=True):
        print_result(request, result, args.top)
    return 0


def _score(args: argparse.Namespace, requests: list[ScoreRequest]) -> "list[ScoreResult]":
    from onepass.scorer import Scorer

    with progress_bars(args.quiet) as progress:
        loaded = Scorer.load(
            args.model or DEFAULT_MODEL,
            dtype=args.dtype,
            revision=args.revision,
            offline=args.offline,
            cache_dir=args.cache_dir,
            progress=progress,
            tp=args.tp,
            dp=args.dp,
            quantize=args.quantize,
        )
    with loaded as scorer:
        return scorer.score_many(requests)


def _request(args: argparse.Namespace) -> ScoreRequest:
    return ScoreRequest(
        query=read_query(args),
        items=read_items(args),
        labels=args.labels,
        label_token_ids=args.label_token_ids,
        apply_softmax=args.apply_softmax,
        temperature=1.0 if args.temperature is None else args.temperature,
        item_first=args.item_first,
        delimiter_token_id=args.delimiter_token_id,
        mode=args.mode or "auto",
    )


def _document(args: argparse.Namespace, result: "ScoreResult") -> dict[str, Any]:
    document = result.to_dict()
    if args.rank or args.top:
        best = best_first(result)[: args.top]
        document["ranking"] = [{"index": i, "item": text_of(result.items, i), "score": score} for i, score in best]
    return document
