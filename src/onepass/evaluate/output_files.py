"""What an evaluation leaves on disk while it runs: a JSON object per query, and a TREC run.

Both get a query's lines as soon as it is finished, so that an interrupt leaves every finished query whole.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from onepass.errors import RequestError
from onepass.evaluate.evaluation import Evaluation, QueryResult
from onepass.evaluate.trec_files import run_lines


class OutputFiles:
    """`per_query` and `run` may be None: nothing is written then. `append` adds to a per-query file that is there."""

    def __init__(self, per_query: Path | None, run: Path | None, append: bool = False) -> None:
        self.paths = [path for path in (per_query, run) if path is not None]
        self.written = 0
        self._per_query = None if per_query is None else _opened(per_query, "a" if append else "w")
        self._run = None if run is None else _opened(run, "w")

    def add(self, evaluation: Evaluation, system: str, result: QueryResult) -> None:
        if self._per_query is not None:
            self._per_query.write(query_line(evaluation, system, result))
            self._per_query.flush()
        if self._run is not None:
            self._run.write(run_lines(result.query_id, result.documents, tag(system)))
            self._run.flush()
        self.written += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._per_query, self._run):
            if file is not None:
                file.close()


def query_line(evaluation: Evaluation, system: str, result: QueryResult) -> str:
    grades = evaluation.collection.qrels[result.query_id]
    record = {
        "query_id": result.query_id,
        "system": system,
        "query": evaluation.collection.queries[result.query_id],
        "metrics": dict(zip(map(str, evaluation.options.metrics), result.values, strict=True)),
        "relevant": sum(grade > 0 for grade in grades.values()),
        "ranking": [
            {"id": document.id, "score": document.score, "grade": grades.get(document.id)}
            for document in result.documents
        ],
    }
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def tag(system: str) -> str:
    """A run's last column holds no white space."""
    return "-".join(system.split()) or "onepass"


def _opened(path: Path, mode: str) -> IO[str]:
    try:
        return path.open(mode, encoding="utf-8")
    except OSError as error:
        raise RequestError("unwritable_file", f"cannot write {path}: {error.strerror}") from error
