"""`ScoreRows` without Ray: batches of every format are scored as by the library, and wrong input is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from integrations.ray_env.rows import OPTIONS, SET, TOLERANCE, WRONG_ROW, numbered_rows
from onepass.errors import RequestError
from onepass.integrations.ray_data import ERROR_COLUMN, ScoreRows, rows_of
from onepass.scorer import Scorer


@pytest.fixture(scope="module")
def score_rows(checkpoint: Callable[[str], Path]) -> ScoreRows:
    return ScoreRows(str(checkpoint("qwen3")), set=SET, options=OPTIONS)


@pytest.fixture(scope="module")
def expected(checkpoint: Callable[[str], Path]) -> list[Any]:
    with Scorer.load(str(checkpoint("qwen3")), **OPTIONS) as scorer:
        return [scorer.score(row["query"], row["items"], **SET).scores for row in numbered_rows()]


def arrow(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def arrays(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: pandas.Series([row[name] for row in rows]).to_numpy() for name in rows[0]}


@pytest.mark.parametrize("batch_of", [arrow, pandas.DataFrame, arrays])
@pytest.mark.parametrize("with_error", [False, True])
def test_a_batch_of_any_format_is_scored_as_by_the_library(
    score_rows: ScoreRows, expected: list[Any], batch_of: Callable[[Any], Any], with_error: bool
) -> None:
    batch = batch_of(numbered_rows(with_error))
    out = score_rows(batch)
    assert type(out) is type(batch)
    for row, scores in zip(rows_of(out), expected, strict=True):
        if with_error and row["id"] == WRONG_ROW:
            assert row["scores"] is None
            assert row[ERROR_COLUMN].startswith("empty_query: ")
        else:
            assert row[ERROR_COLUMN] == ""
            assert np.abs(np.array(row["scores"]) - np.array(scores)).max() <= TOLERANCE


def test_a_batch_that_has_a_result_column_already_is_refused(score_rows: ScoreRows) -> None:
    rows = [{**numbered_rows()[0], "scores": 1.0}]
    with pytest.raises(RequestError, match="already has the result columns scores"):
        score_rows(pandas.DataFrame(rows))


def test_a_batch_without_the_columns_is_refused(score_rows: ScoreRows) -> None:
    with pytest.raises(RequestError, match="score needs query or messages"):
        score_rows(pandas.DataFrame([{"question": "?"}]))


def test_an_empty_batch_gets_the_result_columns(score_rows: ScoreRows) -> None:
    out = score_rows(pandas.DataFrame(numbered_rows()[:0]))
    assert len(out) == 0
    assert {"scores", ERROR_COLUMN} <= set(out.columns)
