"""Rerank in every dialect: the same order, each in the shape that its clients read."""

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.errors import DeadlineExceeded, EngineUnavailable, Overloaded
from onepass.scorer import Scorer
from server.asking import DOCUMENTS, RERANK, check_error, check_tei_error
from server.in_process import InProcess

TEI: dict[str, Any] = {"query": RERANK["query"], "texts": DOCUMENTS}
NIM: dict[str, Any] = {"query": {"text": RERANK["query"]}, "passages": [{"text": text} for text in DOCUMENTS]}
SGLANG = {"X-Compat": "sglang"}


def ask(client: TestClient, body: dict[str, Any], path: str = "/rerank", **headers: str) -> Any:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


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
    assert ask(client, {**RERANK, "method": "label"})["results"] == ask(label_client, RERANK)["results"]


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


MESSAGES = [{"role": "user", "content": "Is it about a city? {item}"}]
CONVERSATION: dict[str, Any] = {"messages": MESSAGES, "labels": [" yes", " no"]}


def test_messages_take_the_place_of_a_query(client: TestClient, tiny_scorer: Scorer) -> None:
    """In every dialect, with the library's scores; raw ones are log-odds of the first label."""
    right = tiny_scorer.rank(documents=DOCUMENTS, **CONVERSATION)
    ranked, scores = [one.index for one in right], pytest.approx([one.score for one in right], abs=1e-5)
    jina = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "return_prompt": True}, "/v1/rerank")
    assert [one["index"] for one in jina["results"]] == ranked
    assert [one["relevance_score"] for one in jina["results"]] == scores
    prompt = jina["prompt"]["shared"]["text"] + jina["prompt"]["items"][0]["text"]
    assert prompt == f"<|im_start|>user\nIs it about a city? {DOCUMENTS[0]}<|im_end|>\n<|im_start|>assistant\n"
    assert [one["score"] for one in ask(client, {**CONVERSATION, "texts": DOCUMENTS})] == scores
    voyage = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "top_k": 3})
    assert [one["relevance_score"] for one in voyage["data"]] == scores
    raw = ask(client, {**CONVERSATION, "documents": DOCUMENTS, "raw_scores": True})["results"]
    assert [1 / (1 + math.exp(-one["relevance_score"])) for one in raw] == scores


def test_documents_of_a_conversation_are_cut_when_asked(client: TestClient) -> None:
    long = {**CONVERSATION, "documents": ["Rome is a city. " * 300, "Rome"]}
    check_error(client.post("/rerank", json=long), 400, "too_long", "items")
    told = {one["index"]: one for one in ask(client, {**long, "truncate_prompt_tokens": -1})["results"]}
    assert told[0]["truncated"] is True
    assert "truncated" not in told[1]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": [{"role": "critic", "content": "x"}]}, "invalid_messages", "messages[0].role"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({"messages": "x"}, "invalid_messages", "messages"),
        ({"messages": [{"role": "user", "content": "{item}{item}"}]}, "invalid_messages", "messages"),
        ({"query": "q"}, "conflicting_query", "query"),
        ({"messages": None}, "conflicting_labels", "labels"),
        ({"instruction": "i"}, "conflicting_instruction", "instruction"),
        ({"method": "likelihood"}, "invalid_method", "method"),
        ({"labels": "yes"}, "invalid_labels", "labels"),
        ({"labels": None}, "label_not_single_token", "labels"),
        ({"chat_template": "rerank"}, "unknown_chat_template", "chat_template"),
        ({"chat_template_kwargs": [1]}, "invalid_chat_template_kwargs", "chat_template_kwargs"),
        ({"max_tokens_per_query": 3}, "conflicting_fields", "max_tokens_per_query"),
    ],
)
def test_mistakes_in_a_conversation_have_their_codes(
    client: TestClient, change: dict[str, Any], code: str, param: str
) -> None:
    body = {**CONVERSATION, "documents": DOCUMENTS, **change}
    check_error(client.post("/rerank", json=body), 400, code, param)


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"query": None}, "missing_query", "query"),
        ({"query": ""}, "empty_query", "query"),
        ({"query": ["x"]}, "invalid_query_type", "query"),
        ({"documents": None}, "missing_documents", "documents"),
        ({"documents": []}, "empty_documents", "documents"),
        ({"documents": 5}, "invalid_documents_type", "documents"),
        ({"documents": ["a", 5]}, "invalid_documents_type", "documents[1]"),
        ({"documents": [{"image": "x"}]}, "invalid_documents_type", "documents[0]"),
        ({"documents": [{"text": 5}]}, "invalid_documents_type", "documents[0]"),
        ({"documents": [{"a": "x"}], "rank_fields": ["b"]}, "invalid_documents_type", "documents[0]"),
        ({"rank_fields": "text"}, "invalid_rank_fields", "rank_fields"),
        ({"top_n": -1}, "invalid_top_n", "top_n"),
        ({"top_n": 1.5}, "invalid_top_n", "top_n"),
        ({"top_k": 0}, "invalid_top_k", "top_k"),
        ({"return_documents": "yes"}, "invalid_return_documents", "return_documents"),
        ({"instruction": 5}, "invalid_instruction", "instruction"),
        ({"instruction": "a", "instruct": "b"}, "conflicting_fields", "instruct"),
        ({"max_tokens_per_doc": -1}, "invalid_max_tokens_per_doc", "max_tokens_per_doc"),
        ({"max_tokens_per_query": -1}, "invalid_max_tokens_per_query", "max_tokens_per_query"),
        ({"chat_template_kwargs": {"instruction": 5}}, "invalid_chat_template_kwargs", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "unknown_field", "chat_template_kwargs"),
        ({"instruction": "a", "chat_template_kwargs": {"instruction": "a"}}, "conflicting_fields", None),
        ({"truncate_prompt_tokens": 0}, "invalid_truncate_prompt_tokens", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5}, "too_long", "query"),
        ({"truncation_side": "middle"}, "invalid_truncation_side", "truncation_side"),
        ({"method": "magic"}, "invalid_method", "method"),
    ],
)
def test_mistakes_have_their_codes(client: TestClient, change: dict[str, Any], code: str, param: str | None) -> None:
    check_error(client.post("/rerank", json={**RERANK, **change}), 400, code, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {**RERANK, "documents": [], "top_k": 3}, "documents"),
        ("/v1/ranking", {**NIM, "passages": []}, "passages"),
    ],
)
def test_no_dialect_takes_no_documents(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    check_error(client.post(path, json=body), 400, "empty_documents", param)


def test_empty_documents_among_others_are_ranked(client: TestClient) -> None:
    """Haystack sends "" for documents without text."""
    assert len(ask(client, {**RERANK, "documents": ["", DOCUMENTS[0], DOCUMENTS[1]]})["results"]) == 3


def test_overload_is_told_in_every_dialect(client: TestClient, service: InProcess) -> None:
    service.failure = Overloaded("too much is waiting", 2)
    for path, body in (("/rerank", RERANK), ("/v1/ranking", NIM), ("/v2/rerank", RERANK)):
        answer = client.post(path, json=body)
        check_error(answer, 429, "overloaded")
        assert answer.headers["retry-after"] == "2"
    answer = client.post("/rerank", json=TEI)
    check_tei_error(answer, 429, "Overloaded", "overloaded")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("failure", "status", "error_type", "code"),
    [
        (EngineUnavailable("restarting", 1.0), 503, "Unhealthy", "engine_unavailable"),
        (DeadlineExceeded("late"), 504, "Backend", "deadline_exceeded"),
        (ZeroDivisionError("ours"), 500, "Backend", "internal_error"),
    ],
)
def test_failures_have_the_types_of_text_embeddings_inference(
    client: TestClient, service: InProcess, failure: Exception, status: int, error_type: str, code: str
) -> None:
    service.failure = failure
    check_tei_error(client.post("/rerank", json=TEI), status, error_type, code)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"texts": []}, "empty_documents"), ({"query": ""}, "empty_query"), ({"x": 1}, "unknown_field")],
)
def test_mistakes_have_the_error_of_text_embeddings_inference(
    client: TestClient, change: dict[str, Any], code: str
) -> None:
    check_tei_error(client.post("/rerank", json={**TEI, **change}), 400, "Validation", code)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"documents": [None]}, "got null"),
        ({"top_n": True}, "got true"),
        ({"documents": {"a": False}}, "got {'a': false}"),
    ],
)
def test_messages_show_what_came_in_the_words_of_json(client: TestClient, change: dict[str, Any], words: str) -> None:
    error = check_error(client.post("/rerank", json={**RERANK, **change}), 400)
    assert error["message"].endswith(words)


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
