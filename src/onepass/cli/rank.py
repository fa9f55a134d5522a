"""`onepass rank [MODEL]`: documents by how well they answer a query, best first, as a table or one JSON document.

The words the model is asked in, and the method, are its `loading.rerankers.templates.Ranker`; the numbers are the
engine's.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.api import Ranking, shorten
from onepass.cli.inputs.requests import read_query, read_texts
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
from onepass.cli.terminal.label_mass import count
from onepass.cli.terminal.output import console, print_json
from onepass.cli.types import positive

if TYPE_CHECKING:
    from onepass.engine.ranking import RankRequest

USAGE = "onepass rank [MODEL] (--query Q | --query-file F) (--documents D ... | --documents-file F) [OPTION ...]"
DESCRIPTION = """\
Documents by how well they answer a query, best first: by the probability that the model gives the query after each
document, or, for rerankers, by yes against no in the model's own words. MODEL comes first, before options that take
several values.

  onepass rank --query "why does bread rise" --documents "Yeast gives off gas." "Iron turns into rust."
  onepass rank Qwen/Qwen3-Reranker-0.6B --query-file question.txt --documents-file passages.csv --top 10"""
DOCUMENT_WIDTH = 90
SCORES = {"likelihood": "log P(query | document)", "label": "P(yes) against P(no)"}


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser("rank", help="rank documents by a query", usage=USAGE, description=DESCRIPTION)
    add_model(parser)
    group = parser.add_argument_group("input")
    add_query(group)
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
    check_one_of(args, ("query", "query_file"), "")
    check_one_of(args, ("documents", "documents_file"), "")
    if STDIN in (args.query, args.query_file) and args.documents_file == STDIN:
        raise wrong("query and documents cannot both come from stdin")
    rows = read_texts(args.documents, args.documents_file, Columns(args.text_column, args.id_column), "documents")
    call = _call(args, rows)
    ranking = _rank(args, call)
    if args.json:
        print_json(_document(ranking, rows))
    else:
        _print(call.query, ranking, rows)
    return 0


def _call(args: argparse.Namespace, rows: Rows) -> "RankRequest":
    from onepass.engine.ranking import RankRequest

    return RankRequest(
        query=read_query(args),
        items=rows.texts,
        method=args.method,
        top=args.top,
        instruction=args.instruction,
        mode=args.mode or "auto",
    )


def _rank(args: argparse.Namespace, call: "RankRequest") -> Ranking:
    from onepass.engine.ranking import ranking_of, score_request
    from onepass.loading.rerankers.templates import ranker_from_file

    model = open_model_of(args)
    ranker = model.ranker if args.template is None else ranker_from_file(args.template)
    request, method = score_request(ranker, call)
    check_request(model, request)
    with load_scorer(args, model) as scorer:
        return ranking_of(method, call, score_one(args, scorer, request))


def _document(ranking: Ranking, rows: Rows) -> dict[str, Any]:
    document = ranking.to_dict()
    for entry in document["results"]:
        entry["document"] = entry.pop("item")
        if rows.ids is not None:
            entry["id"] = rows.ids[entry["index"]]
    return document


def _print(query: str, ranking: Ranking, rows: Rows) -> None:
    from rich import box
    from rich.table import Table

    out, result = console(), ranking.result
    out.print(f"\nquery  {shorten(query, 100)}", soft_wrap=True)
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
        f"{more}by {SCORES.get(ranking.method, ranking.method)} · {result.model} · {result.timings.total_ms:,.0f} ms "
        f"(device {result.timings.device_ms:,.0f} ms)",
        soft_wrap=True,
    )
