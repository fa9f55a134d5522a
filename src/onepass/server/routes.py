"""The table of operations: which path and method does what, and with which shapes. The router and the OpenAPI
document are both made from it, so neither can tell of an operation that the other does not know."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from onepass.server import classify as classifying
from onepass.server import decide as deciding
from onepass.server import handlers
from onepass.server import status as standing
from onepass.server.handlers import Ask
from onepass.server.schema import (
    completions,
    contexts,
    generative,
    modes,
    nvidia,
    pair_score,
    rerank,
    score,
    sglang,
    tei,
    tokenize,
    voyage,
)
from onepass.server.schema.classification import classify, predict, rewards
from onepass.server.schema.decisions import native as decisions
from onepass.server.schema.decisions import openai as openai_decisions
from onepass.server.schema.decisions import sglang as sglang_decisions
from onepass.server.schema.decisions import systemone
from onepass.server.schema.fields import Schema


@dataclass(frozen=True)
class Operation:
    """`bodies` and `answers` are the alternatives: the body's members decide which it is."""

    method: str
    paths: tuple[str, ...]
    name: str
    summary: str
    group: str
    run: Callable[[Ask], Coroutine[Any, Any, Any]]
    bodies: tuple[Schema, ...] = ()
    answers: tuple[Schema, ...] = ()
    description: str = ""
    errors: tuple[Schema, ...] = ()  # of dialects whose errors have a form of their own
    statuses: tuple[int, ...] = ()  # of errors, besides those of all operations


RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", handlers.INFINITY_PATH)
DIALECTS = (
    "`documents` is Jina's, Cohere's and vLLM's dialect; with `top_k` or `truncation`, Voyage's; `texts` is that of "
    "Text Embeddings Inference, whose errors have a form of their own (`error` is a string). The header "
    "`X-Compat: sglang` asks for SGLang's answer; `X-Compat: infinity` or the path `/infinity/rerank` for Infinity's. "
    "`/v2/rerank` tells documents only when asked. An empty list of documents is refused, as the vendors do."
)
CLASSES = (
    "Classes are those of the model's classification head, or the labels of its reranking template, or `labels`; a "
    "model with neither is refused without `labels`. Prompts that begin alike share their beginning's computation."
)
REWARDS = (
    "The raw value of a head with a single class, or the log-odds of the first label; a model with several classes, "
    "none of them called yes or positive, is refused."
)
OPERATIONS = (
    Operation(
        "POST",
        ("/v1/score", "/score"),
        "score",
        "Probabilities of labels after query + item",
        "Scoring",
        handlers.answer_score,
        (score.BODY, pair_score.BODY),
        (score.ANSWER, pair_score.ANSWER),
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
    Operation(
        "POST",
        RERANK_PATHS,
        "rerank",
        "Documents by how well they answer a query, best first",
        "Ranking",
        handlers.answer_rerank,
        (rerank.BODY, voyage.BODY, tei.BODY),
        (rerank.ANSWER, voyage.ANSWER, tei.ANSWER, sglang.ANSWER),
        DIALECTS,
        (tei.ERROR,),
    ),
    Operation(
        "POST",
        ("/v1/ranking", "/ranking"),
        "ranking",
        "The same in NVIDIA NIM's dialect",
        "Ranking",
        handlers.answer_nvidia,
        (nvidia.BODY,),
        (nvidia.ANSWER,),
    ),
    Operation(
        "POST",
        ("/classify", "/v1/classify"),
        "classify",
        "Class probabilities of texts or a conversation, as vLLM answers it",
        "Classification",
        classifying.answer_classify,
        (classify.BODY,),
        (classify.ANSWER,),
        CLASSES,
    ),
    Operation(
        "POST",
        ("/predict",),
        "predict",
        "The same in the dialect of Text Embeddings Inference, also for pairs",
        "Classification",
        classifying.answer_predict,
        (predict.BODY,),
        (predict.ANSWER,),
        CLASSES + " A pair is put in the words of the model's reranking template, or joined by its tokenizer.",
        (tei.ERROR,),
    ),
    Operation(
        "POST",
        ("/v1/rewards", "/rewards"),
        "rewards",
        "A reward for each response, conversation or text",
        "Classification",
        classifying.answer_rewards,
        (rewards.BODY,),
        (rewards.ANSWER,),
        REWARDS,
    ),
    Operation(
        "POST",
        ("/get_reward",),
        "get_reward",
        "The same as OpenRLHF's trainer asks its remote reward model",
        "Classification",
        classifying.answer_get_reward,
        (rewards.OPENRLHF_BODY,),
        (rewards.OPENRLHF_ANSWER,),
        REWARDS,
    ),
    Operation(
        "POST",
        ("/pooling",),
        "pooling",
        "Classes and rewards as vLLM's pooling answers them",
        "Classification",
        classifying.answer_pooling,
        (classify.POOLING_BODY,),
        (classify.POOLING_ANSWER,),
        CLASSES + " Embeddings are not served.",
    ),
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
    Operation(
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
    ),
    Operation(
        "POST",
        ("/v1/contexts",),
        "open_context",
        "Compute a query's context now and keep it",
        "Contexts",
        handlers.open_context,
        (contexts.BODY,),
        (contexts.ANSWER,),
    ),
    Operation(
        "GET",
        ("/v1/contexts/{context_id}",),
        "find_context",
        "A kept context",
        "Contexts",
        handlers.find_context,
        (),
        (contexts.ANSWER,),
    ),
    Operation(
        "DELETE",
        ("/v1/contexts/{context_id}",),
        "close_context",
        "Let a kept context go",
        "Contexts",
        handlers.close_context,
        (),
        (contexts.CLOSED,),
    ),
    Operation(
        "POST",
        ("/tokenize", "/v1/tokenize"),
        "tokenize",
        "Text to token ids",
        "Tokens",
        handlers.answer_tokenize,
        (tokenize.BODY,),
        (tokenize.ANSWER,),
    ),
    Operation(
        "POST",
        ("/detokenize", "/v1/detokenize"),
        "detokenize",
        "Token ids to text",
        "Tokens",
        handlers.answer_detokenize,
        (tokenize.DETOKENIZE_BODY,),
        (tokenize.DETOKENIZE_ANSWER,),
    ),
)


@dataclass(frozen=True)
class Page:
    """What is read with GET and asks nothing of the engine. `errors` are the statuses besides those of all paths."""

    path: str
    name: str
    summary: str
    answer: Schema | None = None  # None: not JSON
    aliases: tuple[str, ...] = ()  # other paths to the same, as other servers call it
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()
    html: bool = False  # also as a page for people, to clients that accept text/html


PAGES = (
    Page(
        "/",
        "index",
        "The page for people, to clients that accept HTML; to others, where to look",
        standing.INDEX,
        html=True,
    ),
    Page("/page/{file}", "page_file", "Scripts and styles of the page", media_type="text/javascript", errors=(404,)),
    Page(
        "/health",
        "health",
        "200 only when a request would be served (readiness)",
        standing.HEALTH,
        aliases=("/ready", "/readyz"),
        errors=(503,),
    ),
    Page(
        "/live",
        "live",
        "200 as long as the process answers (liveness)",
        standing.ALIVE,
        aliases=("/healthz", "/livez"),
    ),
    Page("/v1/models", "models", "The served model, under each of its names", standing.MODELS, errors=(503,)),
    Page("/v1/models/{model_id}", "model", "The served model by its name", standing.MODEL, errors=(404, 503)),
    Page("/info", "info", "The whole configuration", standing.INFO),
    Page(
        "/tokenizer_info",
        "tokenizer_info",
        "The tokenizer's special tokens and chat template, as vLLM answers it",
        completions.TOKENIZER_INFO,
        errors=(400, 503),
    ),
    Page("/metrics", "metrics", "Prometheus metrics", None, media_type="text/plain"),
    Page("/docs", "docs", "This API for people", None, media_type="text/html"),
    Page("/openapi.json", "openapi", "This API for programs", {"type": "object"}),
)
