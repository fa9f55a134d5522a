"""`onepass evaluate [MODEL]`: how well a model reranks a judged collection, beside the first stage and another system.

The work is `onepass.evaluate`; this opens the systems one after another, writes the files and prints the table.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.cli.evaluate.options import add_to_parser, check_options
from onepass.cli.evaluate.systems import System, names_of, opened, systems_of
from onepass.cli.parser import Subcommands
from onepass.cli.tables.evaluate import print_report
from onepass.cli.terminal.output import print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import OnepassError

if TYPE_CHECKING:
    from onepass.evaluate.evaluation import Evaluation, QueryResult, SystemResult
    from onepass.evaluate.output_files import OutputFiles
    from onepass.evaluate.report import Report

BELOW_THRESHOLD = 1  # exit status
SETTINGS = (
    "dataset",
    "split",
    "corpus",
    "queries",
    "qrels",
    "topic_field",
    "run_file",
    "max_queries",
    "method",
    "instruction",
    "template",
    "dtype",
    "mode",
    "quantize",
    "quantize_activations",
)  # of the document, where they are given


def add_to(commands: Subcommands) -> None:
    add_to_parser(commands).set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.evaluate.output_files import OutputFiles
    from onepass.evaluate.report import Report

    check_options(args)
    systems = systems_of(args)
    evaluation = _prepared(args)
    for warning in evaluation.warnings:
        print(f"onepass: {warning}", file=sys.stderr)
    results = [evaluation.first_stage]
    outputs = [(args.per_query, args.run_out, False), (args.per_query, args.compare_run_out, True)]
    for system, name, (per_query, run_out, append) in zip(systems, names_of(systems), outputs, strict=False):
        with OutputFiles(per_query, run_out, append) as files:
            results.append(_evaluated(args, evaluation, system, name, files))
    report = Report(evaluation, results, _settings(args))
    if args.html is not None:
        from onepass.evaluate.report_page import evaluation_page

        args.html.write_text(evaluation_page(report), encoding="utf-8")
    if args.json:
        print_json(report.to_dict())
    else:
        print_report(report)
    return _status(args, report)


def _prepared(args: argparse.Namespace) -> "Evaluation":
    """The collection with its candidates; everything that is wrong with the files is raised here."""
    from onepass.evaluate.bm25 import Bm25Options, bm25_library
    from onepass.evaluate.bootstrap import Bootstrap
    from onepass.evaluate.collection import CollectionFiles, open_collection
    from onepass.evaluate.evaluation import EvaluationOptions, prepare
    from onepass.evaluate.metrics import Metric
    from onepass.evaluate.trec_files import check_ids

    options = EvaluationOptions(
        metrics=tuple(dict.fromkeys(map(Metric.parse, args.metrics.split(",")))),
        depth=args.depth,
        max_document_words=args.max_document_words,
        bm25=Bm25Options(args.bm25_k1, args.bm25_b),
        bootstrap=Bootstrap(args.bootstrap, args.seed, args.confidence),
    )
    if args.run_file is None:
        bm25_library()
    if args.dataset is not None:
        files = CollectionFiles.of_beir(args.dataset, args.split or "test", args.run_file)
    else:
        files = CollectionFiles(args.corpus, args.queries, args.qrels, args.run_file, args.topic_field)
    collection = open_collection(files, args.max_queries)
    if args.run_out is not None or args.compare_run_out is not None:
        check_ids(iter((*collection.queries, *collection.documents)))
    name = "bm25" if args.run_file is None else args.run_file.name
    with progress_bars(args.quiet) as progress:
        return prepare(collection, options, name, lambda done, total: progress("bm25", done, total))


def _evaluated(
    args: argparse.Namespace, evaluation: "Evaluation", system: System, name: str, files: "OutputFiles"
) -> "SystemResult":
    from onepass.evaluate.evaluation import SystemResult
    from onepass.evaluate.trec_files import read_run

    total, metrics = len(evaluation.collection.queries), evaluation.options.metrics
    if system.kind == "run":
        queries = evaluation.evaluate_run(read_run(Path(system.target)))
        for query in queries:
            files.add(evaluation, name, query)
        return SystemResult(name, metrics, queries)
    with opened(args, system, name) as reranker, progress_bars(args.quiet) as progress:
        progress("queries", 0, total)

        def on_query(result: "QueryResult") -> None:
            files.add(evaluation, name, result)
            progress("queries", files.written, total)

        began = time.monotonic()
        try:
            queries = evaluation.rerank(reranker, on_query)
        except (KeyboardInterrupt, OnepassError):  # said at once: closing the model may take the rest of the grace
            _say_finished(evaluation, files)
            raise
        return SystemResult(name, metrics, queries, time.monotonic() - began)


def _say_finished(evaluation: "Evaluation", files: "OutputFiles") -> None:
    where = f"are in {' and '.join(map(str, files.paths))}" if files.paths else "were finished; --per-query keeps them"
    total = len(evaluation.collection.queries)
    print(f"onepass: {files.written:,} of {total:,} queries {where}", file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace) -> dict[str, object]:
    values = {name: getattr(args, name) for name in SETTINGS}
    if args.run_file is None:
        values |= {"bm25_k1": args.bm25_k1, "bm25_b": args.bm25_b}
    given = {name: value for name, value in values.items() if value is not None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def _status(args: argparse.Namespace, report: "Report") -> int:
    measured = report.intervals()[min(1, len(report.systems) - 1)]
    status = 0
    for metric, wanted in args.fail_under:
        if measured[metric].mean < wanted:
            print(f"onepass: {metric} is {measured[metric].mean:.4f}, below {wanted:g}", file=sys.stderr)
            status = BELOW_THRESHOLD
    return status
