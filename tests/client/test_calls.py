"""What clients send and make of answers: the body says what was asked, errors are `Scorer`'s, retries are patient."""

from typing import Any

import pytest

from onepass.api import ScoreRequest
from onepass.client.calls import Retries, error_of, score_call, unreachable
from onepass.errors import (
    ContextNotFound,
    DeadlineExceeded,
    DoesNotFit,
    EngineUnavailable,
    ModelNotFound,
    OnepassError,
    Overloaded,
    RequestError,
    TooLong,
)


def told(code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": "why", "type": "t", "param": param, "code": code}}


def test_a_body_holds_what_differs_from_the_defaults_and_the_items() -> None:
    request = ScoreRequest(query=(1, 2), items=[(3,), ()], label_token_ids=(4, 5), context=None, mode="extend")
    assert score_call(request, "m").body == {
        "query": [1, 2],
        "items": [[3], []],
        "label_token_ids": [4, 5],
        "mode": "extend",
        "return_token_logprobs": True,
        "return_logits": True,
        "model": "m",
    }
    spared = ScoreRequest(items=[], labels=[" a"], apply_softmax=True, label_mass=False, context="ctx-1")
    assert score_call(spared, None).body == {
        "items": [],
        "labels": [" a"],
        "apply_softmax": True,
        "label_mass": False,
        "return_logits": True,
        "context_id": "ctx-1",
    }


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "missing_query", RequestError),
        (400, "too_long", TooLong),
        (400, "does_not_fit", DoesNotFit),
        (401, "invalid_api_key", RequestError),
        (404, "context_not_found", ContextNotFound),
        (404, "model_not_found", ModelNotFound),
        (429, "overloaded", Overloaded),
        (503, "draining", EngineUnavailable),
        (504, "deadline_exceeded", DeadlineExceeded),
        (500, "internal_error", OnepassError),
    ],
)
def test_an_error_is_the_one_that_scorer_would_raise(status: int, code: str, kind: type[Exception]) -> None:
    error = error_of(status, {"retry-after": "7"}, told(code, "items"))
    assert type(error) is kind
    assert str(error) == "why"
    if isinstance(error, RequestError):
        assert (error.code, error.param) == (code, "items")
    if isinstance(error, Overloaded | EngineUnavailable):
        assert (error.retry_after, error.code) == (7.0, code)


@pytest.mark.parametrize("body", [None, "a proxy's page", {"error": "text"}, {}])
def test_an_answer_that_is_not_ours_is_still_an_error(body: Any) -> None:
    assert "status 502" in str(error_of(502, {}, body))


def test_the_servers_time_to_come_back_is_respected() -> None:
    retries = Retries(tries=3, first_wait=0.5, longest_wait=30)
    wait = retries.wait(Overloaded("full", 4.0), 1)
    assert wait is not None
    assert 4.0 <= wait <= 4.4
    assert retries.wait(Overloaded("full", 4.0), 3) is None, "three tries in all"
    assert retries.wait(Overloaded("full", 31.0), 1) is None, "longer than the caller would wait"


def test_without_one_the_wait_doubles() -> None:
    gone = unreachable("http://x", OSError("refused"))
    waits = [Retries(first_wait=1.0).wait(gone, tried) or 0.0 for tried in (1, 2, 3)]
    assert all(wanted <= wait <= 1.1 * wanted for wanted, wait in zip((1, 2, 4), waits, strict=True))


@pytest.mark.parametrize("error", [RequestError("c", "m"), ContextNotFound("m"), DeadlineExceeded("m"), OSError()])
def test_what_would_fail_again_is_not_tried_again(error: Exception) -> None:
    assert Retries().wait(error, 1) is None


ANSWER = {
    "scores": [[0.5]],
    "token_logprobs": None,
    "label_mass": [0.5],
    "mode": "packed",
    "reason": "why",
    "model": "m",
    "timings": {"queue_ms": 1.0, "encode_ms": 2.0, "device_ms": 3.0, "total_ms": 6.0},
    "usage": {
        "prompt_tokens": 5,
        "total_tokens": 5,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}


def test_what_the_server_did_not_say_is_none() -> None:
    """Defaults would pose as facts."""
    call = score_call(ScoreRequest(query=(1,), items=[(2,)], label_token_ids=(3,)), None)
    result = call.read(ANSWER)
    assert (result.timings.padding_ratio, result.timings.compilations) == (None, None)
    assert (result.usage.cached_tokens, result.usage.computed_tokens) == (2, None)


def test_what_the_server_said_is_told_on() -> None:
    call = score_call(ScoreRequest(query=(1,), items=[(2,)], label_token_ids=(3,)), None)
    timings = {**ANSWER["timings"], "padding_ratio": 1.25, "compilations": 2}
    usage = {**ANSWER["usage"], "prompt_tokens_details": {"cached_tokens": 2, "computed_tokens": 3}}
    result = call.read({**ANSWER, "timings": timings, "usage": usage})
    assert (result.timings.padding_ratio, result.timings.compilations, result.usage.computed_tokens) == (1.25, 2, 3)
    assert result.timings.total_ms == 6.0
