"""Typed questions about one state."""

from onepass.server import decide as deciding
from onepass.server.routes.operation import Operation
from onepass.server.schema.decisions import native as decisions
from onepass.server.schema.decisions import openai as openai_decisions
from onepass.server.schema.decisions import sglang as sglang_decisions
from onepass.server.schema.decisions import systemone

DECISIONS = (
    Operation(
        "POST",
        ("/v1/decisions", "/decisions"),
        "decisions",
        "Typed questions about one state, answered with probabilities in one pass",
        "Decisions",
        deciding.answer_decisions,
        (openai_decisions.BODY, sglang_decisions.BODY, systemone.BODY, decisions.BODY),
        (openai_decisions.ANSWER, sglang_decisions.ANSWER, systemone.ANSWER, decisions.ANSWER),
        "A list of questions is OpenAI's dialect; with `id`s, SGLang's; an object of questions is System One's; with "
        "`candidates`, or a list beside `state`, it is our own. The header `x-onepass-dialect` names it. "
        "`confidence` is (n·max − 1)/(n − 1). Images are refused.",
        errors=(systemone.INVALID,),
        statuses=(422,),
    ),
    Operation(
        "POST",
        ("/v1/systemone", "/systemone"),
        "systemone",
        "The same in System One's dialect",
        "Decisions",
        deciding.answer_systemone,
        (systemone.BODY,),
        (systemone.ANSWER,),
        "A wrong body is 422 with a list of places, as TypeSafe's clients read it.",
        errors=(systemone.INVALID,),
        statuses=(422,),
    ),
)
