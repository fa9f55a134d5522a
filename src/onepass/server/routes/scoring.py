"""Probabilities of labels and continuations, in our own dialect and in those of vLLM and OpenAI."""

from onepass.server import handlers
from onepass.server.routes.operation import Operation
from onepass.server.schema import completions, generative, pair_score
from onepass.server.schema.scoring import modes, score, score_answer

SCORING = (
    Operation(
        "POST",
        ("/v1/score", "/score"),
        "score",
        "Probabilities of labels after query + item",
        "Scoring",
        handlers.answer_score,
        (score.BODY, pair_score.BODY),
        (score_answer.ANSWER, pair_score.ANSWER),
        "With `queries`, `text_1` or `data_1` it is vLLM's score of pairs. `Accept: application/x-ndjson` gives the "
        "scores of `/v1/score` as they are ready, one JSON object a line, and a summary as the last line.",
    ),
    Operation(
        "POST",
        ("/generative_scoring", "/v1/generative_scoring"),
        "generative_scoring",
        "P(first label) of each item, as vLLM answers it",
        "Scoring",
        handlers.answer_generative,
        (generative.BODY,),
        (pair_score.ANSWER,),
    ),
    Operation(
        "POST",
        ("/v1/completions", "/completions"),
        "completions",
        "Log-probabilities of prompts, as OpenAI's completions with echo",
        "Scoring",
        handlers.answer_completions,
        (completions.BODY,),
        (completions.ANSWER,),
        "What evaluation harnesses send: `echo`, `logprobs` and `max_tokens` 0 or 1. More tokens are refused.",
    ),
)
MODES = Operation(
    "POST",
    ("/v1/modes",),
    "modes",
    "A request of /v1/score run in every mode: tiles of attention, steps in time",
    "Scoring",
    handlers.answer_modes,
    (modes.BODY,),
    (modes.ANSWER,),
    "What the view Modes of the page draws. 400 `visualizer_off` unless the server was started with "
    "`--visualizer`; one at a time, more get 429.",
)
