"""`onepass rank [MODEL]`: documents by how well they answer a query, best first, as a table or one JSON document.

The words the model is asked in, and the method, are its `loading.rerankers.templates.Ranker`; the numbers are the
engine's.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.api import Ranking, shorten
from onepass.cli.inputs.requests import read_messages, read_query, read_texts
from onepass.cli.inputs.rows import STDIN, Columns, Rows
from onepass.cli.inputs.score_options import (
    add_computing,
    add_model,
    add_query,
    add_rows_file,
    check_one_of,
    refuse_swallowed_model,
    wrong,
)
from onepass.cli.parser import Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.scoring import check_request, load_scorer, open_model_of, score_one
from onepass.cli.terminal.label_mass import count, low_mass_warning
from onepass.cli.terminal.output import console, print_json
from onepass.cli.types import positive

if TYPE_CHECKING:
    from onepass.engine.ranking import RankReading, RankRequest

USAGE = """\
onepass rank [MODEL] (--query Q | --query-file F | --messages F)
                    (--documents D ... | --documents-file F) [OPTION ...]"""
DESCRIPTION = """\
Documents by how well they answer a query, best first: by the probability that the model gives the query after each
document, or, for rerankers, by yes against no in the model's own words. With --messages the prompt is yours: chat
messages for the model's chat template, with {item} where the document goes, read by --labels, by the model's own
read-out, or by yes against no. MODEL comes first, before options that take several values.

  onepass rank --query "why does bread rise" --documents "Yeast gives off gas." "Iron turns into rust."
  onepass rank Qwen/Qwen3-Reranker-0.6B --query-file question.txt --documents-file passages.csv --top 10
  onepass rank ./my-chat-model --messages judge.json --labels yes no --documents-file passages.csv"""
DOCUMENT_WIDTH = 90
YES_OR_NO = ("label_probability", "logit_difference")  # read-outs of which the score is P(yes) against P(no)


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser("rank", help="rank documents by a query", usage=USAGE, description=DESCRIPTION)
    add_model(parser)
    group = parser.add_argument_group("input")
    add_query(group)
    group.add_argument(
        "--messages", metavar="F", help="instead of a query, a JSON file with chat messages that hold {item}"
    )
    group.add_argument("--documents", metavar="D", nargs="+", help="the documents")
    add_rows_file(group, "documents")
    group = parser.add_argument_group("ranking")
    group.add_argument(
        "--method",
        choices=("auto", "likelihood", "label"),
        default="auto",
        metavar="M",
        help="auto (the model's own), likelihood, label",
    )
    group.add_argument(
        "--labels", metavar="L", nargs="+", help="with --messages: answers of one token each, the first means relevant"
    )
    group.add_argument("--instruction", metavar="I", help="the task in words, for templates that have one")
    group.add_argument("--template", metavar="F", type=Path, help="a TOML file with the words to rank by")
    add_computing(group)
    add_source_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--top", metavar="N", type=positive, help="only the N best documents")
    add_json(group)
    add_quiet(group)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    refuse_swallowed_model(args, "rank")
    check_one_of(args, ("query", "query_file", "messages"), "")
    check_one_of(args, ("documents", "documents_file"), "")
    if STDIN in (args.query, args.query_file, args.messages) and args.documents_file == STDIN:
        raise wrong("query and documents cannot both come from stdin")
    if args.labels is not None and args.messages is None:
        raise wrong("--labels is for --messages; a query is asked in the model's own words")
    rows = read_texts(args.documents, args.documents_file, Columns(args.text_column, args.id_column), "documents")
    call = _call(args, rows)
    ranking, reading = _rank(args, call)
    if args.json:
        print_json(_document(ranking, rows))
    else:
        _print(call, ranking, _score_name(call, reading), rows)
    return 0


def _call(args: argparse.Namespace, rows: Rows) -> "RankRequest":
    from onepass.engine.ranking import RankRequest

    return RankRequest(
        query=read_query(args) if args.messages is None else None,
        **({} if args.messages is None else read_messages(args.messages)),
        labels=args.labels,
        items=rows.texts,
        method=args.method,
        top=args.top,
        instruction=args.instruction,
        mode=args.mode or "auto",
    )


def _rank(args: argparse.Namespace, call: "RankRequest") -> "tuple[Ranking, RankReading]":
    from onepass.engine.ranking import ranking_of, score_request
    from onepass.loading.rerankers.templates import ranker_from_file

    model = open_model_of(args)
    ranker = model.ranker if args.template is None else ranker_from_file(args.template)
    request, reading = score_request(ranker, call)
    check_request(model, request)
    with load_scorer(args, model) as scorer:
        result = score_one(args, scorer, request)
    warning = low_mass_warning(request, result, model.tokenizer) if call.messages is not None else None
    if warning is not None:
        print(f"onepass: {warning}", file=sys.stderr)
    return ranking_of(reading, call, result), reading


def _document(ranking: Ranking, rows: Rows) -> dict[str, Any]:
    document = ranking.to_dict()
    for entry in document["results"]:
        entry["document"] = entry.pop("item")
        if rows.ids is not None:
            entry["id"] = rows.ids[entry["index"]]
    return document


def _print(call: "RankRequest", ranking: Ranking, score_name: str, rows: Rows) -> None:
    from rich import box
    from rich.table import Table

    out, result = console(), ranking.result
    prompt = f"query  {call.query}" if call.messages is None else f"messages  {call.messages[-1]['content']}"
    out.print(f"\n{shorten(prompt, 110)}", soft_wrap=True, markup=False)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("rank", "score", "index" if rows.ids is None else "id"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("document", overflow="ellipsis", no_wrap=True)
    for place, ranked in enumerate(ranking, start=1):
        ident = str(ranked.index if rows.ids is None else rows.ids[ranked.index])
        table.add_row(str(place), f"{ranked.score:.4f}", ident, shorten(ranked.item or "", DOCUMENT_WIDTH) or "(empty)")
    out.print(table)
    hidden = len(rows.texts) - len(ranking)
    more = f"{count(hidden, 'more document')} · " if hidden else ""
    out.print(
        f"{more}by {score_name} · {result.model} · {result.timings.total_ms:,.0f} ms "
        f"(device {result.timings.device_ms:,.0f} ms)",
        soft_wrap=True,
    )


def _score_name(call: "RankRequest", reading: "RankReading") -> str:
    """What the column of scores holds."""
    if call.labels is not None:
        first, *others = map(repr, call.labels)
        return f"P({first}) among {first}, {', '.join(others)}" if others else f"P({first})"
    if reading.method == "likelihood":
        return "log P(query | document)"
    kind = "" if reading.readout is None else reading.readout.kind
    return "P(yes) against P(no)" if kind in YES_OR_NO else f"the read-out {kind}"
