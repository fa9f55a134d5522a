"""Whether what came back will do: in time, one answer a request, a status that the rule allows, the one error body."""

import json
from typing import Any

from server.asking import TYPES
from server.fuzz.exchange import LIMIT_SECONDS, Answer, Outcome, Shot

TEI_ERROR = {"error", "error_type", "code", "param"}  # a dialect with a body of its own
ERROR = {"error", "object", "message", "type", "param", "code", "detail"}
INNER = {"message", "type", "param", "code"}


def complaint(shot: Shot, outcome: Outcome) -> str | None:
    """None, or what is wrong, in words."""
    if outcome.fault:
        return outcome.fault
    if shot.leaves:
        return None
    if shot.answers is not None and len(outcome.answers) != shot.answers:
        return f"{shot.answers} answers must come; got {len(outcome.answers)}"
    if shot.ends and not outcome.ended:
        return "the connection must end, and did not"
    computed = any(answer.status in (200, 504) for answer in outcome.answers)
    if not computed and outcome.seconds > LIMIT_SECONDS:
        return f"a refusal must come within {LIMIT_SECONDS:g} s; it took {outcome.seconds:.1f}"
    return next((found for answer in outcome.answers if (found := _wrong(shot, answer))), None)


def _wrong(shot: Shot, answer: Answer) -> str | None:
    if answer.status not in shot.statuses:
        return f"the status must be one of {sorted(shot.statuses)}; got {answer.status}: {_shown(answer)}"
    if not answer.headers.get("x-request-id"):
        return f"every answer must carry x-request-id; {answer.status} does not"
    if answer.status < 400 or shot.bodiless:
        return None
    return _not_the_error(answer)


def _not_the_error(answer: Answer) -> str | None:
    try:
        body: Any = json.loads(answer.body)
        error = body["error"]
        if body.keys() == TEI_ERROR and isinstance(error, str) and error and answer.status < 500:
            return None
        right = (
            body.keys() == ERROR
            and error.keys() == INNER
            and error["type"] == body["type"] == TYPES[answer.status]
            and error["message"] == body["message"] == body["detail"] != ""
            and (body["object"], body["code"]) == ("error", answer.status)
            and isinstance(error["code"], str)
            and error["param"] == body["param"]
            and isinstance(error["param"], str | None)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        right = False
    return None if right else f"an error must have the one body; got {_shown(answer)}"


def _shown(answer: Answer) -> str:
    return answer.body[:300].decode("utf-8", "replace")
