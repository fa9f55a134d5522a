"""A judged collection: queries to evaluate, their judgments, the documents' texts, and what was odd about the files.

Files that contradict each other as a whole (no judged query is known, no judged document is in the corpus) are a
RequestError. Single ids that do not fit are counted: `warnings` says how many, with the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onepass.errors import RequestError
from onepass.evaluate.text_records import read_documents, read_queries
from onepass.evaluate.trec_files import Qrels, Run, read_qrels, read_run


@dataclass(frozen=True)
class CollectionFiles:
    """`run` holds the candidates; None: they are searched for in the corpus."""

    corpus: Path
    queries: Path
    qrels: Path
    run: Path | None = None
    topic_field: str | None = None

    @classmethod
    def of_beir(cls, folder: Path, split: str, run: Path | None = None) -> "CollectionFiles":
        """BEIR's layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""
        qrels = folder / "qrels" / f"{split}.tsv"
        if not qrels.is_file():
            splits = ", ".join(sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))) or "none"
            raise RequestError("missing_file", f"{folder} has no qrels/{split}.tsv; its splits: {splits}")
        return cls(_either(folder / "corpus.jsonl"), _either(folder / "queries.jsonl"), qrels, run)


@dataclass(frozen=True)
class Collection:
    """`documents` are those that can be candidates; `queries` those that are evaluated, in the file's order."""

    documents: dict[str, str]
    queries: dict[str, str]
    qrels: Qrels
    run: Run | None
    num_documents: int
    warnings: Sequence[str]


def open_collection(files: CollectionFiles, max_queries: int | None = None) -> Collection:
    warnings: list[str] = []
    qrels = read_qrels(files.qrels)
    run = None if files.run is None else read_run(files.run)
    queries = _evaluated(read_queries(files.queries, files.topic_field), qrels, files, warnings)
    queries = dict(list(queries.items())[:max_queries])
    candidates = None if run is None else {d.id for query in queries for d in run.get(query, ())}
    documents, count, known = _documents(files.corpus, candidates, {d for query in queries for d in qrels[query]})
    judged = _distinct(document for query in queries for document in qrels[query])
    _check_known(judged, known, f"judged documents of {files.qrels}", files.corpus, "count as not retrieved", warnings)
    if candidates is not None:
        _check_known(
            _distinct(sorted(candidates)),
            set(documents),
            f"candidates of {files.run}",
            files.corpus,
            "are left out",
            warnings,
        )
    if run is not None:
        run = {query: [d for d in run.get(query, ()) if d.id in documents] for query in queries}
    unanswerable = [query for query in queries if not any(grade > 0 for grade in qrels[query].values())]
    _count(unanswerable, len(queries), "queries have no relevant document", "count 0, as in trec_eval", warnings)
    return Collection(documents, queries, qrels, run, count, tuple(warnings))


def _evaluated(queries: dict[str, str], qrels: Qrels, files: CollectionFiles, warnings: list[str]) -> dict[str, str]:
    judged = {query: text for query, text in queries.items() if query in qrels}
    if not judged:
        raise RequestError(
            "no_judged_query",
            f"no query of {files.queries} (the first: {next(iter(queries), None)!r}) is judged in {files.qrels} "
            f"(the first: {next(iter(qrels))!r})",
        )
    unknown = [query for query in qrels if query not in queries]
    _count(unknown, len(qrels), f"judged queries are not in {files.queries}", "are not evaluated", warnings)
    empty = [query for query, text in judged.items() if not text.strip()]
    _count(empty, len(judged), f"queries of {files.queries} are empty", "are not evaluated", warnings)
    evaluated = {query: text for query, text in judged.items() if text.strip()}
    if not evaluated:
        raise RequestError("empty_query", f"every judged query of {files.queries} is empty")
    return evaluated


def _documents(path: Path, candidates: set[str] | None, judged: set[str]) -> tuple[dict[str, str], int, set[str]]:
    """Texts of the candidates (None: of all), how many documents there are, and which of the judged."""
    documents, count, known = dict[str, str](), 0, set[str]()
    for record in read_documents(path):
        count += 1
        if record.id in judged:
            known.add(record.id)
        if candidates is None or record.id in candidates:
            documents[record.id] = record.text
    return documents, count, known


def _check_known(wanted: list[str], known: set[str], noun: str, corpus: Path, fate: str, warnings: list[str]) -> None:
    unknown = [ident for ident in wanted if ident not in known]
    if unknown and len(unknown) == len(wanted):
        raise RequestError("unknown_documents", f"none of the {noun} is in {corpus} (the first: {unknown[0]!r})")
    _count(unknown, len(wanted), f"{noun} are not in {corpus}", fate, warnings)


def _count(odd: list[str], total: int, what: str, fate: str, warnings: list[str]) -> None:
    if odd:
        warnings.append(f"{len(odd):,} of {total:,} {what} (the first: {odd[0]!r}); they {fate}")


def _distinct(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def _either(path: Path) -> Path:
    """The file, or the same gzipped."""
    gzipped = path.with_name(path.name + ".gz")
    return gzipped if gzipped.is_file() and not path.is_file() else path
