"""Relevance judgments (qrels) and runs: TREC's columns, BEIR's TSV, and the order in which trec_eval reads a run.

    qrels, TREC   query 0 document grade
    qrels, BEIR   query-id <tab> corpus-id <tab> score, below a header
    run           query Q0 document rank score tag

trec_eval ignores the rank column: it sorts by score in single precision, and equal scores by document id, both
falling. `ranked` does the same, so that a run that is written here has the same metrics there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onepass.errors import RequestError
from onepass.evaluate.text_records import lines_of

Qrels = dict[str, dict[str, int]]  # grades by query and document


@dataclass(frozen=True)
class ScoredDocument:
    id: str
    score: float


Run = dict[str, list[ScoredDocument]]  # by query, best first


def ranked(scores: Mapping[str, float]) -> list[ScoredDocument]:
    single = [ScoredDocument(ident, float(np.float32(score))) for ident, score in scores.items()]
    return sorted(sorted(single, key=lambda d: d.id, reverse=True), key=lambda d: d.score, reverse=True)


def read_qrels(path: Path) -> Qrels:
    qrels: Qrels = {}
    for number, columns, line in _columns(path):
        if len(columns) == 3 and number == 1 and not _is_whole(columns[2]):
            continue  # BEIR's header
        if len(columns) not in (3, 4):
            raise _wrong(path, number, "query 0 document grade, or query, document and grade with tabs", line)
        query, document, grade = columns[0], columns[-2], columns[-1]
        if not _is_whole(grade):
            raise _wrong(path, number, "a whole number as its grade", line)
        grades = qrels.setdefault(query, {})
        if document in grades:
            raise RequestError("duplicate_id", f"{path}, line {number}: {document!r} is judged twice for {query!r}")
        grades[document] = int(grade)
    if not qrels:
        raise RequestError("empty_file", f"{path} holds no judgments")
    return qrels


def read_run(path: Path) -> Run:
    scores: dict[str, dict[str, float]] = {}
    for number, columns, line in _columns(path):
        if len(columns) != 6:
            raise _wrong(path, number, "query Q0 document rank score tag", line)
        query, document, score = columns[0], columns[2], _number(columns[4])
        if score is None:
            raise _wrong(path, number, "a number as its score", line)
        documents = scores.setdefault(query, {})
        if document in documents:
            raise RequestError("duplicate_id", f"{path}, line {number}: {document!r} occurs twice for {query!r}")
        documents[document] = score
    if not scores:
        raise RequestError("empty_file", f"{path} holds no run")
    return {query: ranked(documents) for query, documents in scores.items()}


def run_lines(query: str, documents: list[ScoredDocument], tag: str) -> str:
    """Nine digits give back every single-precision score."""
    return "".join(
        f"{query} Q0 {document.id} {rank} {document.score:.9g} {tag}\n" for rank, document in enumerate(documents, 1)
    )


def check_ids(ids: Iterator[str]) -> None:
    """Raises a RequestError for an id that a run file cannot hold."""
    for ident in ids:
        if ident.split() != [ident]:
            raise RequestError("invalid_id", f"a TREC run file cannot hold ids with white space; got {ident!r}")


def _columns(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """With tabs, ids may hold spaces."""
    for number, line in lines_of(path):
        if line.strip():
            yield number, line.strip().split("\t") if line.strip().count("\t") == 2 else line.split(), line


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _wrong(path: Path, number: int, wanted: str, line: str) -> RequestError:
    return RequestError("invalid_record", f"{path}, line {number}: must have {wanted}; got {line[:80]!r}")
