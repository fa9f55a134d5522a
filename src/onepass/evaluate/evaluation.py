"""An evaluation: candidates of each query, the systems that rank them, and every metric of every query.

The first stage (BM25 or a run file) is a system itself, so that a report says what reranking gains over it. Reading
files is `collection`; the model is `reranker`; intervals are `bootstrap`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.evaluate.bm25 import Bm25, Bm25Options
from onepass.evaluate.bootstrap import Bootstrap, Difference, Interval, as_matrix, differences, intervals
from onepass.evaluate.collection import Collection
from onepass.evaluate.metrics import DEFAULT_METRICS, Metric
from onepass.evaluate.reranker import Candidates, Reranker
from onepass.evaluate.trec_files import Run, ScoredDocument


@dataclass(frozen=True)
class EvaluationOptions:
    """`depth` documents of each query are ranked, each cut to `max_document_words` (None: not cut)."""

    metrics: tuple[Metric, ...] = tuple(map(Metric.parse, DEFAULT_METRICS))
    depth: int = 100
    max_document_words: int | None = None
    bm25: Bm25Options = field(default_factory=Bm25Options)
    bootstrap: Bootstrap = field(default_factory=Bootstrap)


@dataclass(frozen=True)
class QueryResult:
    """`values` are the metrics', in the options' order."""

    query_id: str
    documents: list[ScoredDocument]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SystemResult:
    """A system's queries, all of them, in the collection's order."""

    name: str
    metrics: tuple[Metric, ...]
    queries: list[QueryResult]
    seconds: float | None = None  # None: nothing was computed

    @property
    def values(self) -> np.ndarray:
        return as_matrix([query.values for query in self.queries])

    def intervals(self, bootstrap: Bootstrap) -> dict[str, Interval]:
        return dict(zip(map(str, self.metrics), intervals(self.values, bootstrap), strict=True))


@dataclass(frozen=True)
class Comparison:
    """What `system` gains over `baseline`, by metric."""

    system: str
    baseline: str
    metrics: dict[str, Difference]

    def to_dict(self) -> dict[str, Any]:
        differences = {name: difference.to_dict() for name, difference in self.metrics.items()}
        return {"system": self.system, "baseline": self.baseline, "metrics": differences}


OnQuery = Callable[[QueryResult], None]


@dataclass(frozen=True)
class Evaluation:
    """A collection with its candidates; `rerank` evaluates a model on them, `evaluate_run` a run of someone else."""

    collection: Collection
    options: EvaluationOptions
    candidates: Run
    first_stage: SystemResult
    warnings: Sequence[str] = field(default=())

    def rerank(self, reranker: Reranker, on_query: OnQuery = lambda _: None) -> list[QueryResult]:
        """`on_query` gets every query as it is finished, in order."""
        results = []
        for query_id, documents in reranker.rerank(self._tasks()):
            result = _query_result(query_id, documents, self.collection, self.options)
            on_query(result)
            results.append(result)
        return results

    def evaluate_run(self, run: Run) -> list[QueryResult]:
        depth = self.options.depth
        return [
            _query_result(query, run.get(query, [])[:depth], self.collection, self.options)
            for query in self.collection.queries
        ]

    def _tasks(self) -> Iterator[Candidates]:
        texts, words = self.collection.documents, self.options.max_document_words
        for query_id, query in self.collection.queries.items():
            documents = {d.id: cut_words(texts[d.id], words) for d in self.candidates[query_id]}
            yield Candidates(query_id, query, documents)


def prepare(
    collection: Collection,
    options: EvaluationOptions | None = None,
    first_stage: str = "bm25",
    on_query: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """The candidates of every query: the run's best, or what BM25 finds. `first_stage` is its name in reports."""
    options = options or EvaluationOptions()
    candidates = _candidates(collection, options, on_query)
    results = [_query_result(query, documents, collection, options) for query, documents in candidates.items()]
    without = [query for query, documents in candidates.items() if not documents]
    warnings = list(collection.warnings)
    if without:
        warnings.append(
            f"{len(without):,} of {len(candidates):,} queries have no candidate (the first: {without[0]!r}); "
            "they count 0"
        )
    system = SystemResult(first_stage, options.metrics, results)
    return Evaluation(collection, options, candidates, system, tuple(warnings))


def compare(system: SystemResult, baseline: SystemResult, bootstrap: Bootstrap) -> Comparison:
    by_metric = zip(map(str, system.metrics), differences(system.values, baseline.values, bootstrap), strict=True)
    return Comparison(system.name, baseline.name, dict(by_metric))


def cut_words(text: str, limit: int | None) -> str:
    """The first `limit` words, with single spaces between them; a text that has no more is left as it is."""
    if limit is None:
        return text
    words = text.split(maxsplit=limit)
    return text if len(words) <= limit else " ".join(words[:limit])


def _candidates(collection: Collection, options: EvaluationOptions, on_query: Callable[[int, int], None]) -> Run:
    if collection.run is not None:
        return {query: collection.run[query][: options.depth] for query in collection.queries}
    index, out, total = Bm25(collection.documents, options.bm25), Run(), len(collection.queries)
    for done, (query_id, text) in enumerate(collection.queries.items(), start=1):
        out[query_id] = index.search(text, options.depth)
        on_query(done, total)
    return out


def _query_result(
    query: str, documents: list[ScoredDocument], collection: Collection, options: EvaluationOptions
) -> QueryResult:
    ids, grades = [document.id for document in documents], collection.qrels[query]
    return QueryResult(query, documents, tuple(metric.value(ids, grades) for metric in options.metrics))
