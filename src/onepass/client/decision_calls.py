"""What the clients send to ask typed questions, and the `DecisionResult` they make of the answer."""

from collections.abc import Mapping
from typing import Any

from onepass.api import Timings, Usage
from onepass.client.calls import Call
from onepass.decisions.questions import DecisionRequest, Question
from onepass.decisions.result import DecisionAnswer, DecisionResult


def decide_call(request: DecisionRequest, model: str | None) -> Call[DecisionResult]:
    """The request is checked before it is sent, for every mistake that needs no model to be found."""
    request.check()
    body: dict[str, Any] = {
        "state": request.state,
        "questions": [_question(question) for question in request.questions],
        "permutations": request.permutations,
        "calibrated": request.calibrated,
        "mode": request.mode,
    }
    if request.candidates is not None:
        body["candidates"] = list(request.candidates)
    if model is not None:
        body["model"] = model
    return Call("POST", "/v1/decisions", lambda answer: _result(request, answer), body)


def _question(question: Question) -> dict[str, Any]:
    out: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    if question.name is not None:
        out["name"] = question.name
    if question.type == "predicate":
        said = {"true": question.options[0].description, "false": question.options[1].description}
        return {**out, "criteria": {key: text for key, text in said.items() if text is not None}}
    options = [
        {"value": option.value} | ({} if option.description is None else {"description": option.description})
        for option in question.options
    ]
    return {**out, "choices" if question.type == "choice" else "levels": options}


def _result(request: DecisionRequest, answer: Mapping[str, Any]) -> DecisionResult:
    rows = answer["answers"] if request.candidates is not None else [answer["answers"]]
    usage = answer["usage"]
    return DecisionResult(
        answers=tuple(tuple(_answer(one) for one in row) for row in rows),
        model=answer["model"],
        usage=Usage(usage["prompt_tokens"], usage["cached_tokens"], usage["computed_tokens"]),
        timings=Timings(**answer["timings"]),
        mode=answer["mode"],
        reason=answer["reason"],
        calibration=answer["calibration"],
        candidates=request.candidates,
        num_reads=answer["num_reads"],
    )


def _answer(one: Mapping[str, Any]) -> DecisionAnswer:
    return DecisionAnswer(
        name=one["name"],
        type=one["type"],
        values=tuple(option["value"] for option in one["probabilities"]),
        probabilities=tuple(option["probability"] for option in one["probabilities"]),
        label_mass=one["label_mass"],
        spread=one.get("spread"),
    )
