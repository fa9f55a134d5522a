"""Which request ranks documents, and how its result is read: by a query, or by messages in its place."""

from typing import Any

import pytest

from onepass.api import ChatOptions
from onepass.engine.ranking import RankReading, RankRequest, score_request
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.method import ranker_of_model
from onepass.loading.rerankers.readouts import ClassHead, ExpectedValue, LabelProbability, LinearHead, SingleLogit
from onepass.loading.rerankers.registry import LB_RERANKER, ZERANK, ranker_for
from onepass.loading.rerankers.templates import Ranker

MESSAGES = [{"role": "user", "content": "Is {item} a city? Answer yes or no."}]
PLAIN = Ranker("likelihood")
NO_TOKENIZER: Any = None  # of no use without files and a template for pairs
UNKNOWN = Ranker("likelihood", problem="nothing tells how it is read")


def conversation(**fields: Any) -> RankRequest:
    return RankRequest(messages=MESSAGES, items=["Paris", "a fox"], **fields)


def test_a_chat_model_answers_messages_with_yes_or_no() -> None:
    chat = ChatOptions(template_kwargs={"enable_thinking": False})
    request, reading = score_request(PLAIN, conversation(chat=chat, return_prompt=True))
    assert (request.messages, request.chat, request.query, request.return_prompt) == (MESSAGES, chat, None, True)
    assert (request.labels, request.apply_softmax) == (("yes", "no"), True)
    assert reading == RankReading("label", LabelProbability())


@pytest.mark.parametrize(
    ("template", "labels", "readout"),
    [
        (ZERANK, ("Yes",), SingleLogit(5.0, "sigmoid")),
        (LB_RERANKER, tuple("1234567"), ExpectedValue((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))),
    ],
)
def test_a_reranker_keeps_its_own_read_out(template: Any, labels: tuple[str, ...], readout: Any) -> None:
    request, reading = score_request(Ranker("label", label=template), conversation())
    assert (request.labels, reading.readout) == (labels, readout)


def test_labels_of_the_caller_come_first() -> None:
    request, reading = score_request(Ranker("label", label=ZERANK), conversation(labels=[" good", " bad"]))
    assert (request.labels, request.apply_softmax, reading.readout) == ([" good", " bad"], True, LabelProbability())
    one, by = score_request(UNKNOWN, conversation(label_token_ids=[[3], [4]]))
    assert (one.label_token_ids, one.apply_softmax, by.readout) == ([[3], [4]], False, None)
    whole, by = score_request(UNKNOWN, conversation(label_token_ids=[3, 4], apply_softmax=False))
    assert (whole.apply_softmax, by.readout) == (False, None)


def test_a_reward_model_ranks_messages_though_nothing_tells_how_it_takes_a_query() -> None:
    ranker = ranker_of_model("my-reward", None, ChatTemplates(), NO_TOKENIZER, ClassHead.of(["reward"], None))
    request, reading = score_request(ranker, conversation())
    assert (request.labels, request.label_token_ids) == (None, None)
    assert reading.readout == LinearHead(0, "identity")
    with pytest.raises(RequestError, match="has a classification head, but no file"):
        score_request(ranker, RankRequest(query="q", items=["d"]))


@pytest.mark.parametrize("name", ["my-classifier", "Qwen3-Reranker-0.6B-seq-cls"])
def test_classes_of_which_none_means_yes_are_a_problem_of_ranking_only(name: str) -> None:
    """Such a model still opens: /classify serves it."""
    ranker = ranker_of_model(name, None, ChatTemplates(), NO_TOKENIZER, ClassHead.of(["LABEL_0", "LABEL_1"], None))
    assert ranker.problem != ""
    with pytest.raises(RequestError, match="--template"):
        score_request(ranker, RankRequest(query="q", items=["d"]))


def test_a_head_of_a_known_reranker_is_read_after_its_words() -> None:
    name, head = "Qwen3-Reranker-0.6B-seq-cls", ClassHead.of(["no", "yes"], None)
    ranker = ranker_of_model(name, None, ChatTemplates(), NO_TOKENIZER, head)
    assert ranker.problem == ""
    assert ranker.label.context == ranker_for(name).label.context
    assert ranker.label.readout == LinearHead(1, "softmax")


@pytest.mark.parametrize(
    ("ranker", "fields", "code", "param"),
    [
        (PLAIN, {"query": "q"}, "conflicting_query", "query"),
        (PLAIN, {"instruction": "i"}, "conflicting_instruction", "instruction"),
        (PLAIN, {"method": "likelihood"}, "invalid_method", "method"),
        (PLAIN, {"method": "magic"}, "invalid_method", "method"),
        (PLAIN, {"top": -1}, "invalid_top", "top"),
        (UNKNOWN, {}, "unknown_reranker", "labels"),
    ],
)
def test_what_does_not_go_with_messages_is_said(ranker: Ranker, fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as error:
        score_request(ranker, conversation(**fields))
    assert (error.value.code, error.value.param) == (code, param)


def test_who_insists_on_labels_gets_them() -> None:
    request, _ = score_request(UNKNOWN, conversation(method="label"))
    assert request.labels == ("yes", "no")
