"""What `Client.decide` sends is what the server's own dialect reads, and its answer is the scorer's result again."""

from dataclasses import replace
from typing import Any

from onepass.api import Timings, Usage
from onepass.client.decision_calls import decide_call
from onepass.decisions.questions import DecisionRequest, Question
from onepass.decisions.result import DecisionAnswer, DecisionResult
from onepass.server.schema.decisions.native import is_own, parse

REQUEST = DecisionRequest(
    state=[{"role": "user", "content": "hello"}],
    questions=(
        Question.predicate("Is it?", name="a", false="it is not"),
        Question.choice("Which?", {"x": "the first", "y": None}),
        Question("choice", "Typed?", Question.choice("", ["true"]).options + Question.choice("", [True]).options),
        Question.score("How?", ["low", "high"], name="b"),
    ),
    candidates=("one", "two"),
    permutations=2,
    calibrated=False,
    mode="serial",
)
ROW = (
    DecisionAnswer("a", "predicate", (True, False), (0.25, 0.75), 0.5, 0.1),
    DecisionAnswer(None, "choice", ("x", "y"), (0.5, 0.5), 0.9),
    DecisionAnswer(None, "choice", ("true", True), (0.1, 0.9), 0.9),
    DecisionAnswer("b", "score", ("low", "high"), (0.4, 0.6), 0.9),
)


def test_the_server_reads_the_request_that_was_made() -> None:
    body: Any = decide_call(REQUEST, "m").body
    assert is_own(body)
    call = parse(body, ("m",), 0)
    assert call.request == REQUEST


def test_the_answer_is_the_result_again() -> None:
    for request, rows in ((REQUEST, (ROW, ROW)), (replace(REQUEST, candidates=None), (ROW,))):
        result = DecisionResult(
            rows,
            "m",
            Usage(10, 2, 8),
            Timings(1.0, 2.0, 3.0, 4.0),
            "serial",
            "asked for",
            "mine",
            request.candidates,
            8,
        )
        assert decide_call(request, None).read(result.to_dict()) == result
