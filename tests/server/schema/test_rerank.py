"""Rerank in every dialect: the same order, each in the shape that its clients read.

Mistakes are `test_rerank_errors`; messages in the query's place are `test_rerank_messages`.
"""

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from server.asking import DOCUMENTS, NIM, RERANK, TEI, ask, check_tei_error

SGLANG = {"X-Compat": "sglang"}


@pytest.fixture
def order(tiny_scorer: Scorer, client: TestClient) -> list[int]:
    """What the library says."""
    return [one.index for one in tiny_scorer.rank(RERANK["query"], DOCUMENTS)]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_jina_cohere_and_vllm(client: TestClient, order: list[int], path: str) -> None:
    body = {**RERANK, "model": "default", "return_documents": True}
    told = ask(client, body, path, **{"X-Request-Id": "abc"})
    assert told.keys() == {"id", "model", "usage", "results", "meta"}
    assert (told["id"], told["model"]) == ("rerank-abc", "default")
    assert [one["index"] for one in told["results"]] == order
    scores = [one["relevance_score"] for one in told["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert told["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}
    assert told["usage"]["total_tokens"] == told["usage"]["prompt_tokens"] > 0
    assert told["meta"]["billed_units"] == {"search_units": 1}
    assert told["meta"]["tokens"]["input_tokens"] == told["usage"]["prompt_tokens"]


def test_top_n_and_no_documents(client: TestClient, order: list[int]) -> None:
    told = ask(client, {**RERANK, "top_n": 2, "return_documents": False})
    assert [one["index"] for one in told["results"]] == order[:2]
    assert not any("document" in one for one in told["results"])
    assert len(ask(client, {**RERANK, "top_n": 99})["results"]) == 3


def test_documents_may_be_objects(client: TestClient, order: list[int]) -> None:
    objects = [{"text": text, "id": i} for i, text in enumerate(DOCUMENTS)]
    told = ask(client, {**RERANK, "documents": objects})
    assert [one["index"] for one in told["results"]] == order
    assert told["results"][0]["document"] == objects[order[0]]
    titled = [{"title": text, "text": "something else"} for text in DOCUMENTS]
    ranked = ask(client, {**RERANK, "documents": titled, "rank_fields": ["title"]})
    assert [one["index"] for one in ranked["results"]] == order


def test_rank_fields_are_joined_in_their_order(label_client: TestClient) -> None:
    objects = [{"title": "Paris", "year": 1999, "text": "ignored"}]
    joined = ask(label_client, {**RERANK, "documents": objects, "rank_fields": ["year", "title"]})
    plain = ask(label_client, {**RERANK, "documents": ["year: 1999\ntitle: Paris"]})
    assert joined["results"][0]["relevance_score"] == plain["results"][0]["relevance_score"]


def test_labels_rank_by_yes_against_no(label_client: TestClient, tiny_scorer: Scorer) -> None:
    told = ask(label_client, RERANK)
    ranking = tiny_scorer.rank(RERANK["query"], DOCUMENTS, method="label")
    assert [one["index"] for one in told["results"]] == [one.index for one in ranking]
    assert [one["relevance_score"] for one in told["results"]] == pytest.approx([one.score for one in ranking])


def test_the_method_can_be_chosen(client: TestClient, label_client: TestClient) -> None:
    """The first of the two computes the query and the second finds it kept: the last bits may differ."""
    chosen, own = ask(client, {**RERANK, "method": "label"})["results"], ask(label_client, RERANK)["results"]
    assert [one["index"] for one in chosen] == [one["index"] for one in own]
    assert [one["relevance_score"] for one in chosen] == pytest.approx([one["relevance_score"] for one in own])


def test_an_instruction_changes_the_question(label_client: TestClient) -> None:
    plain = ask(label_client, RERANK)["results"]
    asked = ask(label_client, {**RERANK, "instruction": "Only prices matter."})["results"]
    assert [one["relevance_score"] for one in plain] != [one["relevance_score"] for one in asked]
    again = ask(label_client, {**RERANK, "instruct": "Only prices matter."})["results"]
    assert [one["relevance_score"] for one in again] == pytest.approx(
        [one["relevance_score"] for one in asked], abs=1e-5
    )


def test_voyage(client: TestClient, order: list[int]) -> None:
    told = ask(client, {**RERANK, "model": "default", "top_k": None, "truncation": True}, "/v1/rerank")
    assert told.keys() == {"object", "data", "model", "usage"}
    assert told["object"] == "list"
    assert [one.keys() for one in told["data"]] == [{"index", "relevance_score"}] * 3
    assert [one["index"] for one in told["data"]] == order
    assert told["usage"]["total_tokens"] > 0
    best = ask(client, {**RERANK, "top_k": 1, "return_documents": True})["data"]
    assert best == [{**told["data"][0], "document": DOCUMENTS[order[0]]}]


def test_text_embeddings_inference(client: TestClient, order: list[int]) -> None:
    told = ask(client, TEI)
    assert [one.keys() for one in told] == [{"index", "score"}] * 3
    assert [one["index"] for one in told] == order
    assert all(0 <= one["score"] <= 1 for one in told)
    with_text = ask(client, {**TEI, "return_text": True, "truncate": False, "truncation_direction": "Right"})
    assert [one["text"] for one in with_text] == [DOCUMENTS[i] for i in order]
    assert len(ask(client, {**TEI, "top_n": 1})) == 1


def test_raw_scores_are_log_odds_or_log_probabilities(
    client: TestClient, label_client: TestClient, tiny_scorer: Scorer
) -> None:
    plain, raw = ask(label_client, TEI), ask(label_client, {**TEI, "raw_scores": True})
    for one, other in zip(plain, raw, strict=True):
        assert other["score"] == pytest.approx(math.log(one["score"] / (1 - one["score"])), rel=1e-3)
    by_likelihood = ask(client, {**TEI, "raw_scores": True})
    library = tiny_scorer.rank(RERANK["query"], DOCUMENTS, method="likelihood")
    assert [one["score"] for one in by_likelihood] == pytest.approx([one.score for one in library])
    assert [one["relevance_score"] for one in ask(label_client, {**RERANK, "use_activation": False})["results"]] == [
        one["score"] for one in raw
    ]


def test_text_embeddings_inference_cuts_when_asked(client: TestClient) -> None:
    long = ["Rome is a city. " * 300, "Rome"]
    check_tei_error(client.post("/rerank", json={**TEI, "texts": long}), 400, "Validation", "too_long")
    told = {one["index"]: one for one in ask(client, {**TEI, "texts": long, "truncate": True})}
    assert told[0]["truncated"] is True
    assert "truncated" not in told[1]


def test_sglang(client: TestClient, order: list[int]) -> None:
    told = ask(client, RERANK, "/v1/rerank", **SGLANG)
    assert [one.keys() for one in told] == [{"score", "document", "index", "meta_info"}] * 3
    assert [one["index"] for one in told] == order
    assert told[0]["document"] == DOCUMENTS[order[0]]
    assert told[0]["meta_info"]["prompt_tokens"] > 0
    silent = ask(client, {**RERANK, "return_documents": False, "top_n": 1}, "/v1/rerank", **SGLANG)
    assert (len(silent), silent[0]["document"]) == (1, None)


def test_infinity_has_the_document_as_text(client: TestClient, order: list[int]) -> None:
    told = ask(client, RERANK, **{"X-Compat": "infinity"})
    assert told["results"][0]["document"] == DOCUMENTS[order[0]]


@pytest.mark.parametrize("path", ["/v1/ranking", "/ranking"])
def test_nvidia(client: TestClient, order: list[int], path: str) -> None:
    told = ask(client, NIM, path)
    assert [one["index"] for one in told["rankings"]] == order
    logits = [one["logit"] for one in told["rankings"]]
    assert logits == sorted(logits, reverse=True)
    assert len(ask(client, {**NIM, "top_k": 1, "truncate": "END"}, path)["rankings"]) == 1


def test_empty_documents_among_others_are_ranked(client: TestClient) -> None:
    """Haystack sends "" for documents without text."""
    assert len(ask(client, {**RERANK, "documents": ["", DOCUMENTS[0], DOCUMENTS[1]]})["results"]) == 3


def test_vllm_defaults_ask_for_everything(client: TestClient, order: list[int]) -> None:
    defaults = {"top_n": 0, "max_tokens_per_doc": 0, "max_tokens_per_query": 0, "truncate_prompt_tokens": None}
    told = ask(client, {**RERANK, **defaults, "truncation_side": None, "use_activation": None})
    assert [one["index"] for one in told["results"]] == order
    assert not any("truncated" in one for one in told["results"])
    assert "query_truncated" not in told


def test_one_string_is_one_document(client: TestClient) -> None:
    [alone] = ask(client, {**RERANK, "documents": DOCUMENTS[0]})["results"]
    [listed] = ask(client, {**RERANK, "documents": DOCUMENTS[:1]})["results"]
    assert alone["relevance_score"] == pytest.approx(listed["relevance_score"], rel=1e-4)
    assert alone["document"] == listed["document"] == {"text": DOCUMENTS[0]}


def test_a_query_is_cut_when_asked(label_client: TestClient) -> None:
    long = {**RERANK, "query": "the capital of Italy and of many other countries besides"}
    cut, whole = ask(label_client, {**long, "max_tokens_per_query": 2}), ask(label_client, long)
    assert cut["query_truncated"] is True
    assert cut["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]
    assert "query_truncated" not in ask(label_client, {**long, "max_tokens_per_query": 500})


def test_vllm_gives_the_instruction_in_the_templates_arguments(label_client: TestClient) -> None:
    plain = ask(label_client, {**RERANK, "chat_template_kwargs": {}})["results"]
    direct = ask(label_client, {**RERANK, "instruction": "Only prices matter."})["results"]
    given = ask(label_client, {**RERANK, "chat_template_kwargs": {"instruction": "Only prices matter."}})["results"]
    scores = [one["relevance_score"] for one in given]
    assert scores == pytest.approx([one["relevance_score"] for one in direct], rel=1e-4)
    assert scores != pytest.approx([one["relevance_score"] for one in plain], rel=1e-4)


@pytest.mark.parametrize(
    ("path", "headers", "change", "echoes"),
    [
        ("/rerank", {}, {}, True),
        ("/v1/rerank", {}, {}, True),
        ("/v2/rerank", {}, {}, False),
        ("/v2/rerank", {}, {"return_documents": True}, True),
        ("/v1/rerank", {"X-Fern-SDK-Name": "cohere"}, {}, False),
        ("/v1/rerank", {"User-Agent": "cohere/5.21.1"}, {}, False),
        ("/v1/rerank", {"X-Fern-SDK-Name": "cohere"}, {"return_documents": True}, True),
        ("/v1/rerank", {}, {"max_chunks_per_doc": 10}, False),
        ("/v1/rerank", {}, {"max_chunks_per_doc": 10, "return_documents": True}, True),
    ],
)
def test_whether_documents_are_told_is_the_dialects_default(
    client: TestClient, path: str, headers: dict[str, str], change: dict[str, Any], echoes: bool
) -> None:
    results = ask(client, {**RERANK, **change}, path, **headers)["results"]
    assert ["document" in one for one in results] == [echoes] * 3


def test_the_path_of_infinity_tells_its_answer(client: TestClient, order: list[int]) -> None:
    told = ask(client, RERANK, "/infinity/rerank")
    assert [one["document"] for one in told["results"]] == [DOCUMENTS[index] for index in order]


@pytest.mark.parametrize("change", [{}, {"top_k": 3}], ids=["jina", "voyage"])
def test_raw_scores_in_every_dialect(label_client: TestClient, change: dict[str, Any]) -> None:
    def scores(**fields: Any) -> dict[int, float]:
        answer = label_client.post("/rerank", json={**RERANK, **change, **fields}).json()
        return {one["index"]: one["relevance_score"] for one in answer.get("results", answer.get("data"))}

    raw, activated = scores(raw_scores=True), scores()
    assert {index: 1 / (1 + math.exp(-value)) for index, value in raw.items()} == pytest.approx(activated, abs=1e-6)
    assert raw != pytest.approx(activated, abs=1e-3)


def test_the_prompt_is_what_the_model_was_given(client: TestClient, label_client: TestClient) -> None:
    """By likelihood the query follows each document; by label an answer is read at the end. In the documents' order."""
    prompt = ask(client, {**RERANK, "return_prompt": True, "top_n": 1})["prompt"]
    for item, document in zip(prompt["items"], DOCUMENTS, strict=True):
        assert document in item["text"]
        (continuation,) = item["continuations"]
        assert RERANK["query"] in continuation["text"]
        assert item["readout_position"] == len(prompt["shared"]["token_ids"]) + len(item["token_ids"]) - 1
    prompt = ask(label_client, {**RERANK, "return_prompt": True})["prompt"]
    assert RERANK["query"] in prompt["shared"]["text"] + prompt["items"][0]["text"]
    assert [DOCUMENTS[n] in item["text"] for n, item in enumerate(prompt["items"])] == [True] * len(DOCUMENTS)
    assert not any("continuations" in item for item in prompt["items"])
    assert "prompt" not in ask(client, RERANK)
