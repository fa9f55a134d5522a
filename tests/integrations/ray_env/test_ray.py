"""onepass on a real Ray cluster of one node: Ray Data, Ray Serve, and a model over several processes.

All in one file, so that with several pytest workers there is one cluster. Nothing here is scored by a stand-in: the
scripts use `onepass.integrations` as a user would, and answers are compared with the library's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integrations.ray_env.conftest import Script
from integrations.ray_env.rows import OPTIONS, PROGRAMS, SET, TOLERANCE, WRONG_ROW, numbered_rows
from onepass.scorer import Scorer
from server.schema.test_decisions import OPENAI, SGLANG, SYSTEMONE


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


ITEMS = [[7, 8, 9], [4] * 9, [11, 12]]
DOCUMENTS = ["a red boat", "the sea", "a letter"]
DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/score", {"query": [5] * 20, "items": ITEMS, **SET}),
    ("/rerank", {"query": "boats", "documents": DOCUMENTS}),
    ("/v2/rerank", {"query": "boats", "documents": DOCUMENTS, "top_n": 2}),
    ("/rerank", {"query": "boats", "texts": DOCUMENTS}),
    ("/v1/rerank", {"query": "boats", "documents": DOCUMENTS, "top_k": 2}),
    ("/v1/ranking", {"query": {"text": "boats"}, "passages": [{"text": text} for text in DOCUMENTS]}),
    ("/v1/score", {"text_1": "boats", "text_2": DOCUMENTS}),
    ("/generative_scoring", {"query": [5] * 9, "items": ITEMS, "label_token_ids": [3, 40]}),
    ("/v1/completions", {"prompt": "the sea is blue", "echo": True, "logprobs": 1, "max_tokens": 0}),
    ("/tokenize", {"prompt": "the sea"}),
    ("/v1/decisions", OPENAI),
    ("/v1/decisions", SGLANG),
    ("/v1/systemone", SYSTEMONE),
    ("/v1/score", {"query": [], "items": ITEMS, **SET}),
    ("/nowhere", {}),
]
STATUSES = [200] * 13 + [400, 404]


def numbered_body(number: int, length: int = 20) -> dict[str, Any]:
    return {"query": [5 + number % 40] * length, "items": [[7, 8, 9 + number % 30], [11, 12]], **SET}


LOAD = [numbered_body(number) for number in range(48)]
LARGE = {"query": [6] * 300, "items": [[1, 2, number % 400 + 1] for number in range(200)], **SET}
MANY_ITEMS = [[1, 2, number % 400 + 1] for number in range(3000)]
DRAIN = [{"query": [9 + number] * 600, "items": MANY_ITEMS, **SET} for number in range(4)]


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    with Scorer.load(str(checkpoint("qwen3")), **OPTIONS) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def served(ray_script: Script, checkpoint: Callable[[str], Path]) -> dict[str, Any]:
    task = {
        "model": str(checkpoint("qwen3")),
        "programs_dir": str(PROGRAMS),
        "engine": {"max_batch_tokens": 64},
        "pages": ["/health", "/v1/models", "/metrics", "/openapi.json", "/docs", "/info"],
        "dialects": DIALECTS,
        "large": LARGE,
        "repeated": [numbered_body(1, 40) for _ in range(5)],
        "context": [9] * 30,
        "context_body": {"items": ITEMS, **SET},
        "load": LOAD,
        "drain": DRAIN,
    }
    return ray_script("ray_serve_replicas.py", task)


def is_right(scorer: Scorer, body: dict[str, Any], answer: dict[str, Any]) -> bool:
    expected = scorer.score(**body).scores
    return bool(np.abs(np.array(answer["body"]["scores"]) - np.array(expected)).max() <= TOLERANCE)


def test_serve_answers_every_page_and_dialect(served: dict[str, Any], scorer: Scorer) -> None:
    assert set(served["pages"].values()) == {200}
    assert [answer["status"] for answer in served["dialects"]] == STATUSES
    assert all(answer["request_ids"] == 1 for answer in served["dialects"])
    assert is_right(scorer, DIALECTS[0][1], served["dialects"][0])
    order = [item.index for item in scorer.rank("boats", DOCUMENTS)]
    assert [row["index"] for row in served["dialects"][1]["body"]["results"]] == order
    assert served["dialects"][-2]["body"]["error"]["code"] == "empty_query"


def test_queued_tokens_start_a_second_replica(served: dict[str, Any]) -> None:
    assert served["scaled_up"] == {"before": 1, "reached_two": True}


def test_requests_with_one_query_find_the_kept_context(served: dict[str, Any]) -> None:
    answers = served["repeated"]
    assert {answer["status"] for answer in answers} == {200}
    assert len({answer["replica"] for answer in answers}) == 1
    cached = [answer["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert min(cached[1:]) > 0, cached


def test_a_context_handle_finds_its_replica(served: dict[str, Any], scorer: Scorer) -> None:
    contexts = served["contexts"]
    assert contexts["opened"]["status"] == 200
    assert {answer["replica"] for answer in contexts["scored"]} == {contexts["opened"]["replica"]}
    assert all(is_right(scorer, {"query": [9] * 30, "items": ITEMS, **SET}, answer) for answer in contexts["scored"])
    assert (contexts["found"], contexts["closed"], contexts["after"]) == (200, 200, 404)


def test_a_killed_replica_costs_no_answer_and_is_replaced(served: dict[str, Any], scorer: Scorer) -> None:
    answers = served["load"]["answers"]
    assert [answer["status"] for answer in answers] == [200] * len(LOAD)
    assert all(is_right(scorer, body, answer) for body, answer in zip(LOAD, answers, strict=True))
    assert len({answer["replica"] for answer in answers}) >= 2, "both replicas had requests"
    assert served["load"]["replaced"]


def test_a_replica_that_dies_within_its_answer(ray_script: Script) -> None:
    """Each list is what one replica sends; None is its death, a word with a full stop the end of a body."""
    found = ray_script(
        "ray_ingress_failures.py",
        {
            "before": [[None], ["start", "right."]],
            "between": [["start", None], ["start", "right."]],
            "within": [["start", "half", None], ["start", "right."]],
            "after": [["start", "right.", None], ["start", "again."]],
        },
    )
    whole = {"sent": ["start", "right."], "ended": "answer"}
    assert found["before"] == found["between"] == found["after"] == whole
    assert found["within"] == {"sent": ["start", "half"], "ended": "connection"}


def test_deleting_the_application_answers_what_is_under_way(served: dict[str, Any], scorer: Scorer) -> None:
    drain = served["drain"]
    assert drain["engines"] == 2
    for body, answers in zip(DRAIN, drain["answers"], strict=True):
        expected = np.array(scorer.score(**body).scores)
        assert {answer["status"] for answer in answers[:-1]} <= {200}
        assert answers[-1]["status"] in (200, 404)
        for answer in answers:
            assert answer["status"] == 404 or np.abs(np.array(answer["body"]["scores"]) - expected).max() <= TOLERANCE
    assert 200 in {answers[-1]["status"] for answers in drain["answers"]}, "the last answers came after the deletion"
    assert drain["engines_are_gone"]
