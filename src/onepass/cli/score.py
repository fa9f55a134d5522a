"""`onepass score [MODEL]`: scores items against a query and prints a table, or one JSON document.

Its options are `score_options`, reading texts is `requests`, the table is `score`, many requests are `bulk`.
"""

import argparse
import json
import sys
from typing import Any

from onepass.api import ScoreRequest, ScoreResult
from onepass.cli import bulk
from onepass.cli.inputs.documents import ranking_entries, result_document
from onepass.cli.inputs.requests import read_messages, read_query, read_texts
from onepass.cli.inputs.rows import Columns, Rows
from onepass.cli.inputs.score_options import (
    add_input,
    add_model,
    add_output,
    add_scoring,
    check_answers,
    check_options,
    sort_column,
)
from onepass.cli.parser import Subcommands, add_source_options
from onepass.cli.scoring import check_request, load_scorer, open_model_of, score_one
from onepass.cli.tables.score import TableOptions, print_result
from onepass.cli.terminal.label_mass import low_mass_warning
from onepass.cli.terminal.output import print_json

USAGE = """\
onepass score [MODEL] (--query Q | --query-file F) (--items I ... | --items-file F)
                     (--labels L ... | --label-token-ids N ... | --continuations T ...) [OPTION ...]
       onepass score [MODEL] --requests F.jsonl [--out OUT.jsonl] [OPTION ...]"""
DESCRIPTION = """\
For each item, the probability of each label as the next token after query + item. Query and items are
joined as they are: mind the spaces. MODEL comes first, before options that take several values.

  onepass score --query "Review:" --items " I loved it. Sentiment:" " I hated it. Sentiment:" \\
      --labels " positive" " negative"
  onepass score --query "The early bird" --items "" --continuations " catches the worm." " sleeps."
  onepass score Qwen/Qwen3-0.6B --query-file user.txt --items-file products.csv --labels " yes" " no"
  onepass score ./my-model --requests requests.jsonl --out results.jsonl"""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "score",
        help="score items against a query",
        usage=USAGE,
        description=DESCRIPTION,
    )
    add_model(parser)
    add_input(parser)
    add_scoring(parser)
    add_source_options(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    check_options(args)
    if args.requests:
        return bulk.run(args)
    rows = read_texts(args.items, args.items_file, Columns(args.text_column, args.id_column), "items")
    request = _request(args, rows)
    model = open_model_of(args)
    check_answers(args, has_classes=model.class_head is not None)
    check_request(model, request)
    with load_scorer(args, model) as scorer:
        result = score_one(args, scorer, request)
    _print(args, request, result, rows)
    warning = low_mass_warning(request, result, model.tokenizer)
    if warning is not None:
        print(f"onepass: {warning}", file=sys.stderr)
    return 0


def _request(args: argparse.Namespace, rows: Rows) -> ScoreRequest:
    return ScoreRequest(
        query=read_query(args) if args.messages is None else None,
        **({} if args.messages is None else read_messages(args.messages)),
        items=rows.texts,
        labels=args.labels,
        label_token_ids=args.label_token_ids,
        continuations=args.continuations,
        apply_softmax=args.apply_softmax,
        temperature=1.0 if args.temperature is None else args.temperature,
        item_first=args.item_first,
        delimiter_token_id=args.delimiter_token_id,
        mode=args.mode or "auto",
    )


def _print(args: argparse.Namespace, request: ScoreRequest, result: ScoreResult, rows: Rows) -> None:
    sort = sort_column(args)
    if args.out is not None:
        line = json.dumps(_document(args, request, result, rows), allow_nan=False)
        args.out.write_text(f"{line}\n", encoding="utf-8")
    elif args.json:
        print_json(_document(args, request, result, rows))
    else:
        print_result(request, result, TableOptions(args.top, sort, args.verbose, rows.ids))


def _document(args: argparse.Namespace, request: ScoreRequest, result: ScoreResult, rows: Rows) -> dict[str, Any]:
    document = result_document(request, result, rows.ids)
    sort = sort_column(args)
    if args.rank or args.top or sort is not None:
        document["ranking"] = ranking_entries(result, sort or 0, args.top, rows.ids)
    return document
