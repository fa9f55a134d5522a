"""The options of `onepass evaluate`, and what can be known to be wrong with them before a file is read."""

import argparse
import re
from pathlib import Path

from onepass.cli.inputs.score_options import add_computing, add_model, wrong
from onepass.cli.parser import Parser, Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.types import positive, whole
from onepass.errors import RequestError

USAGE = """\
onepass evaluate [MODEL] (--dataset DIR | --corpus F --queries F --qrels F) [--run F] [OPTION ...]"""
DESCRIPTION = """\
Reranks the candidates of every judged query and prints nDCG, MRR, MAP and recall with bootstrap intervals, beside the
first stage: a TREC run file, or BM25 over the corpus (pip install 'onepass[evaluate]'). Metrics are trec_eval's; every
judged query counts.

  onepass evaluate Qwen/Qwen3-Reranker-0.6B --dataset scifact --html scifact.html
  onepass evaluate MODEL --corpus docs.trec --queries topics.trec --qrels qrels.txt --run bm25.run --run-out new.run
  onepass evaluate MODEL --dataset scifact --compare other-words.toml --per-query queries.jsonl

The corpus is BEIR's JSONL (_id, title, text), TSV or TREC's SGML, the queries alike (TREC topics in SGML or XML), the
judgments BEIR's TSV or TREC's qrels; each may be gzipped."""
METRICS = "ndcg@10,mrr@10,map,recall@10,recall@100"  # evaluate.metrics.DEFAULT_METRICS; a test compares them
FILES = ("corpus", "queries", "qrels")


def add_to_parser(commands: Subcommands) -> Parser:
    parser: Parser = commands.add_parser(
        "evaluate", help="measure a reranker on a judged collection", usage=USAGE, description=DESCRIPTION
    )
    add_model(parser)
    _add_collection(parser)
    _add_ranking(parser)
    add_source_options(parser)
    _add_statistics(parser)
    _add_output(parser)
    return parser


def _add_collection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("collection")
    group.add_argument(
        "--dataset", metavar="DIR", type=Path, help="BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv"
    )
    group.add_argument("--split", metavar="S", help="of the dataset's judgments (default: test)")
    group.add_argument("--corpus", metavar="F", type=Path, help="the documents")
    group.add_argument("--queries", metavar="F", type=Path, help="the queries, or TREC topics")
    group.add_argument("--topic-field", metavar="N", help="of TREC topics: title, desc, narr (default: query or title)")
    group.add_argument("--qrels", metavar="F", type=Path, help="the relevance judgments")
    group.add_argument("--run", metavar="F", dest="run_file", type=Path, help="a TREC run whose documents are reranked")
    group.add_argument("--depth", metavar="N", type=positive, default=100, help="candidates per query (default: 100)")
    group.add_argument("--max-queries", metavar="N", type=positive, help="only the first N judged queries")
    group.add_argument("--max-document-words", metavar="N", type=positive, help="only the first N words of a document")
    group.add_argument("--bm25-k1", metavar="X", type=float, default=0.9, help="of BM25 (default: 0.9)")
    group.add_argument("--bm25-b", metavar="X", type=float, default=0.4, help="of BM25 (default: 0.4)")


def _add_ranking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranking")
    group.add_argument(
        "--method", choices=("auto", "likelihood", "label"), default="auto", metavar="M",
        help="auto (the model's own), likelihood, label",
    )  # fmt: skip
    group.add_argument("--instruction", metavar="I", help="the task in words, for templates that have one")
    group.add_argument("--template", metavar="F", type=Path, help="a TOML file with the words to rank by")
    group.add_argument("--url", metavar="URL", help="rerank by a running server instead of MODEL")
    group.add_argument("--api-key", metavar="KEY", help="of that server")
    group.add_argument(
        "--compare", metavar="WHAT",
        help="another system: a model, a .toml file (the same model, other words), a server's URL, or a TREC run",
    )  # fmt: skip
    group.add_argument("--first-stage-only", action="store_true", help="no reranking: only the run's or BM25's metrics")
    add_computing(group)


def _add_statistics(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("statistics")
    group.add_argument(
        "--metrics", metavar="M,M", default=METRICS,
        help=f"ndcg, mrr, map, recall, precision, each with or without @k; the first one decides (default: {METRICS})",
    )  # fmt: skip
    group.add_argument("--bootstrap", metavar="N", type=positive, default=1000, help="resamples (default: 1000)")
    group.add_argument("--confidence", metavar="X", type=float, default=0.95, help="of intervals (default: 0.95)")
    group.add_argument("--seed", metavar="N", type=whole, default=0, help="of the resamples (default: 0)")
    group.add_argument(
        "--fail-under", metavar="M=X", action="append", default=[], type=threshold,
        help="exit with status 1 where the model's mean is below, such as ndcg@10=0.4; repeatable",
    )  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--per-query", metavar="F", type=Path, help="a JSON object per query, written as it is finished")
    group.add_argument("--run-out", metavar="F", type=Path, help="the reranked documents as a TREC run")
    group.add_argument("--compare-run-out", metavar="F", type=Path, help="those of --compare")
    group.add_argument("--html", metavar="F", type=Path, help="a page with intervals, comparisons and queries")
    add_json(group)
    add_quiet(group)


def threshold(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    if not metric or not re.fullmatch(r"\d*\.?\d+", value):
        raise argparse.ArgumentTypeError(f"must be METRIC=VALUE, such as ndcg@10=0.4; got {text!r}")
    return metric.strip().lower(), float(value)


def check_options(args: argparse.Namespace) -> None:
    given = [name for name in FILES if getattr(args, name) is not None]
    if args.dataset is not None and (given or args.topic_field):
        raise wrong(f"--dataset has its own files: leave out --{given[0] if given else 'topic-field'}")
    if args.dataset is None and len(given) < len(FILES):
        missing = ", ".join(f"--{name}" for name in FILES if name not in given)
        raise wrong(f"give --dataset DIR, or --corpus, --queries and --qrels (missing: {missing})")
    if args.split is not None and args.dataset is None:
        raise wrong("--split is of a --dataset")
    _check_systems(args)
    if not 0 < args.confidence < 1:
        raise wrong(f"--confidence must lie between 0 and 1; got {args.confidence}")
    if args.bm25_k1 < 0 or not 0 <= args.bm25_b <= 1:
        raise wrong(f"--bm25-k1 must be 0 or more and --bm25-b from 0 to 1; got {args.bm25_k1} and {args.bm25_b}")
    _check_outputs(args)
    for metric, _ in args.fail_under:
        if metric not in args.metrics.lower().replace(" ", "").split(","):
            raise wrong(f"--fail-under {metric}: it is none of --metrics {args.metrics}")


def _check_systems(args: argparse.Namespace) -> None:
    if args.url is not None and args.model is not None:
        raise wrong("give MODEL or --url, not both")
    if args.first_stage_only and (args.model or args.url or args.compare):
        raise wrong("--first-stage-only evaluates no model: leave out MODEL, --url and --compare")
    if args.compare_run_out is not None and args.compare is None:
        raise wrong("--compare-run-out is of a --compare")


def _check_outputs(args: argparse.Namespace) -> None:
    paths = [path for path in (args.per_query, args.run_out, args.compare_run_out, args.html) if path is not None]
    if len(set(paths)) < len(paths):
        raise wrong("every output needs a file of its own")
    for path in paths:
        if not path.parent.is_dir():
            raise RequestError("no_folder", f"there is no folder {path.parent}")
