"""Ray Data with onepass: `ScoreRows` for `Dataset.map_batches`, one model per actor.

    rows.map_batches(ScoreRows, **actor_pool("smollm2-135m", actors=2, set={"labels": [" yes", " no"]}))

A row is a request of kind score, rank or decide, as in `onepass run`: columns become fields by name, `map`, `text` and
`set`; results become new columns. A wrong row has its error in `__inference_error__` ("" otherwise). When the engine
fails, the actor's process ends: Ray starts another and runs the batch again. Ray places and restarts actors.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bulk.row_fields import Kind, RowFields
from onepass.bulk.row_output import result_types
from onepass.bulk.row_request import COLUMNS, Cells, error_text
from onepass.bulk.workers import Fields, LocalWorker
from onepass.errors import RequestError
from onepass.scorer import DEFAULT_MODEL, Scorer

ERROR_COLUMN = "__inference_error__"
EXIT_STATUS = 70
Batch = Any  # a pyarrow.Table, a pandas.DataFrame, or NumPy arrays by column

log = logging.getLogger("onepass.ray_data")


class ScoreRows:
    """A callable for `map_batches`. It takes batches in any of Ray's formats and returns the same format."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        kind: Kind = "score",
        *,
        map: Mapping[str, str] | None = None,
        text: Mapping[str, str] | None = None,
        set: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are keywords of `Scorer.load`: dtype, tp, cache_bytes, …"""
        self._fields = RowFields(kind, map or {}, text or {}, set or {})
        self._scorer = Scorer.load(model, progress=_silent, **(options or {}))
        self._worker = LocalWorker(self._scorer, kind)

    def __call__(self, batch: Batch) -> Batch:
        rows = rows_of(batch)
        if rows:
            self._fields.check(list(rows[0]))
        try:
            answers = self._worker.run([self._request_fields(row) for row in rows])
        except Exception:
            if self._scorer.engine.failure is not None:
                log.exception("the engine failed, so this actor ends")
                os._exit(EXIT_STATUS)  # an exception would end the job; Ray restarts an actor whose process ended
            raise
        return with_columns(batch, self._columns([answer.cells for answer in answers]))

    def _request_fields(self, row: Mapping[str, Any]) -> Fields:
        try:
            return self._fields.of(row, is_text=False)
        except RequestError as error:
            return error

    def _columns(self, answers: Sequence[Cells | RequestError]) -> dict[str, list[Any]]:
        errors = [error_text(cells) if isinstance(cells, RequestError) else "" for cells in answers]
        columns = {
            name: [None if isinstance(cells, RequestError) else cells.get(name) for cells in answers]
            for name in COLUMNS[self._fields.kind]
        }
        return {**columns, ERROR_COLUMN: errors}


def actor_pool(
    model: str = DEFAULT_MODEL,
    kind: Kind = "score",
    *,
    actors: int | tuple[int, int] = 1,
    batch_rows: int = 512,
    cpus: float = 1,
    gpus: float = 0,
    tpus: float = 0,
    map: Mapping[str, str] | None = None,
    text: Mapping[str, str] | None = None,
    set: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Keywords of `map_batches` for `ScoreRows`. `actors` is a number, or (min, max). `cpus`, `gpus` and `tpus` are
    reserved per actor; with several devices per actor, give `tp` in `options`. Rows of one batch share contexts, so
    larger batches compute fewer. Leave CPUs for Ray's own tasks: actors that reserve all of them block reading."""
    import ray.data

    min_actors, max_actors = (actors, actors) if isinstance(actors, int) else actors
    resources: dict[str, Any] = {"num_cpus": cpus}
    if gpus:
        resources["num_gpus"] = gpus
    if tpus:
        resources["resources"] = {"TPU": tpus}
    return {
        "fn_constructor_kwargs": {
            "model": model,
            "kind": kind,
            "map": map,
            "text": text,
            "set": set,
            "options": options,
        },
        "compute": ray.data.ActorPoolStrategy(min_size=min_actors, max_size=max_actors),
        "batch_size": batch_rows,
        "batch_format": "pyarrow",
        **resources,
    }


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """Rows with Python's own lists and numbers, as requests take them."""
    if isinstance(batch, Mapping):
        names = list(batch)
        return [dict(zip(names, row, strict=True)) for row in zip(*map(_plain, batch.values()), strict=True)]
    if hasattr(batch, "to_pylist"):
        return list(batch.to_pylist())
    return [{name: _plain(value) for name, value in row.items()} for row in batch.to_dict("records")]


def with_columns(batch: Batch, columns: Mapping[str, list[Any]]) -> Batch:
    conflicts = [name for name in columns if name in _names(batch)]
    if conflicts:
        raise RequestError("conflicting_column", f"the input already has the result columns {', '.join(conflicts)}")
    if isinstance(batch, Mapping):
        return {**batch, **{name: _objects(values) for name, values in columns.items()}}
    if not hasattr(batch, "to_pylist"):
        return batch.assign(**{name: _objects(values) for name, values in columns.items()})
    import pyarrow

    types = {**result_types(), ERROR_COLUMN: pyarrow.string()}
    for name, values in columns.items():
        cells = [value if value is None else _json(value) for value in values] if name == "answers" else values
        batch = batch.append_column(name, pyarrow.array(cells, types[name]))
    return batch


def _names(batch: Batch) -> Sequence[str]:
    return list(batch) if isinstance(batch, Mapping) else list(getattr(batch, "column_names", None) or batch.columns)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(part) for part in value] if value.dtype == object else value.tolist()
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _objects(values: Sequence[Any]) -> np.ndarray:
    """A column whose cells may differ in length."""
    column = np.empty(len(values), object)
    for number, value in enumerate(values):  # an assignment of all at once would make lists of one length a matrix
        column[number] = value
    return column


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _silent(stage: str, done: int, of: int) -> None:
    """Ray shows the progress."""
