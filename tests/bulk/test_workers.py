"""A window of rows leaves nothing behind: neither its rows nor its answers wait for the garbage collector."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onepass.bulk.workers import LocalWorker
from onepass.errors import RequestError
from onepass.scorer import Scorer


class Row(dict[str, Any]):
    """Plain dictionaries cannot be watched."""


@pytest.fixture
def worker(checkpoint: Callable[[str], Path]) -> Iterator[LocalWorker]:
    options: dict[str, Any] = {"dtype": "float32", "max_batch_tokens": 64, "keep_programs": False, "warm_up": False}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:
        yield LocalWorker(scorer, "score")


def test_a_window_with_a_wrong_row_is_freed_without_the_collector(worker: LocalWorker) -> None:
    rows = [Row(query=[5] * 9, items=[[7, number]], label_token_ids=[3, 40]) for number in range(6)]
    rows[2]["query"] = []  # refused when it is encoded
    rows[4]["items"] = [[-1]]
    refused: Any = RequestError("bad", "refused before it came here")
    watched = [weakref.ref(row) for row in rows]
    gc.collect()
    gc.disable()
    try:
        answers = worker.run([*rows, refused])
        assert [isinstance(answer.cells, RequestError) for answer in answers] == [
            False,
            False,
            True,
            False,
            True,
            False,
            True,
        ]
        del rows, answers
        assert [row() for row in watched] == [None] * 6
    finally:
        gc.enable()
