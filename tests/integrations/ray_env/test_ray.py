"""onepass on a real Ray cluster of one node: Ray Data, Ray Serve, and a model over several processes.

All in one file, so that with several pytest workers there is one cluster. Nothing here is scored by a stand-in: the
scripts use `onepass.integrations` as a user would, and answers are compared with the library's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from integrations.ray_env.conftest import Script
from integrations.ray_env.rows import OPTIONS, PROGRAMS, SET, TOLERANCE, WRONG_ROW, numbered_rows
from onepass.scorer import Scorer


def test_ray_data_over_two_actors_equals_the_library(ray_script: Script, checkpoint: Callable[[str], Path]) -> None:
    model = str(checkpoint("qwen3"))
    options = OPTIONS | {"programs_dir": str(PROGRAMS)}
    task = {"model": model, "set": SET, "rows": numbered_rows(with_error=True), "options": options}
    rows = ray_script("ray_data_rows.py", task)["rows"]
    with Scorer.load(model, **OPTIONS) as scorer:
        expected = [scorer.score(row["query"], row["items"], **SET).scores for row in numbered_rows()]
    assert [row["id"] for row in rows] == list(range(len(expected)))
    assert rows[WRONG_ROW]["__inference_error__"].startswith("empty_query: ")
    for row, scores in zip(rows, expected, strict=True):
        if row["id"] != WRONG_ROW:
            assert row["__inference_error__"] == ""
            assert np.abs(np.array(row["scores"]) - np.array(scores)).max() <= TOLERANCE
    assert len({row["process"] for row in rows}) == 2, "both actors scored"


REQUESTS: list[dict[str, Any]] = [
    {"query": [5] * 20, "items": [[7, 8, 9], [4] * 9, [11, 12]], "label_token_ids": [3, 40, 400]},
    {"query": [6] * 30, "items": [[1, 2]], "label_token_ids": [3, 40]},
]


def test_two_processes_in_a_placement_group_share_a_model(
    ray_script: Script, checkpoint: Callable[[str], Path]
) -> None:
    model, engine = str(checkpoint("qwen3")), {"max_batch_tokens": 64, "keep_programs": False}
    report = ray_script("ray_shared_model.py", {"model": model, "engine": engine, "requests": REQUESTS})
    assert report["placement"].startswith("tp=2, dp=1: one model over the devices of 2 processes")
    with Scorer.load(model, dtype="float32", **engine) as scorer:  # type: ignore[arg-type]
        expected = [scorer.score(**fields).scores for fields in REQUESTS]
    for scores in (report["scores"], report["scores_after_kill"]):
        for found, right in zip(scores, expected, strict=True):
            assert np.abs(np.array(found) - np.array(right)).max() <= TOLERANCE
    assert len(report["followers_after_kill"]) == len(report["killed"]) == 1
    assert report["followers_after_kill"] != report["killed"], "Ray started the process again"
    assert report["cpus_are_free_again"], "closing gives the bundles back"
    assert report["slice"] == [{"CPU": 1.0, "TPU": 4.0}], "a bundle for the one host of a v6e:2x2"
