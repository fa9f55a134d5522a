"""OpenAI's `POST /v1/completions` for scoring: prompts with their log-probabilities (`echo`, `logprobs`), at most one
new token. vLLM's `prompt_logprobs` and `GET /tokenizer_info`, which evaluation harnesses ask for, are here too.

Which requests read the prompts is `completions`; tokens are checked there, once they are ids.
"""

from dataclasses import dataclass
from typing import Any

from onepass.errors import RequestError, shown
from onepass.server.engines.service import Served
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBER,
    PRIORITY,
    SOME_TEXT,
    SOME_TOKEN_IDS,
    TEXT,
    USER,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
)
from onepass.server.schema.usage import USAGE

MAX_NEW_TOKENS = 1
MAX_PROMPTS = 2048
DEFAULT_NEW_TOKENS = 16  # of OpenAI's API
REFUSAL = "this server scores, it does not write"
# Members of OpenAI's API that change what is written, with the values that ask for nothing of the kind.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "suffix": ("",),
    "temperature": (0, 1),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
}


def _neutral(name: str) -> Schema:
    values = NEUTRAL[name]
    return {"enum": [*values, None], "description": "Accepted with these values alone: nothing is sampled."}


TOP: Schema = {"type": ["integer", "null"], "minimum": 0, "maximum": 1}
BODY = body_schema(
    "CompletionBody",
    {
        "prompt": {
            "anyOf": [
                SOME_TEXT,
                SOME_TOKEN_IDS,
                {"type": "array", "items": SOME_TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                {"type": "array", "items": SOME_TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
            "description": "A text or its token ids, or several of one kind. Those that begin alike share a context.",
        },
        "max_tokens": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_NEW_TOKENS,
            "description": "0, or 1 for the most likely token after each prompt. OpenAI's default of 16 is refused.",
        },
        "echo": flag("The answer's text and log-probabilities begin with the prompt's.", False),
        "logprobs": {**TOP, "description": "0: log-probabilities of the tokens; 1: of the most likely ones, too."},
        "prompt_logprobs": {**TOP, "description": "vLLM's: the prompt's log-probabilities by token id."},
        "add_special_tokens": flag("The tokenizer's beginning (BOS) goes before a text prompt.", True),
        **{name: _neutral(name) for name in NEUTRAL},
        "seed": {"type": ["integer", "null"], "description": "Accepted, and without effect."},
        "stop": {
            "anyOf": [TEXT, {"type": "array", "items": TEXT}, {"type": "null"}],
            "description": "Accepted, and without effect.",
        },
        "stream_options": {"type": ["object", "null"], "description": "Accepted, and without effect."},
        "model": MODEL,
        "priority": PRIORITY,
        "user": USER,
    },
    ("prompt", "max_tokens"),
)
BODY["examples"] = [{"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1}]
OPTIONAL_NUMBERS: Schema = {"type": "array", "items": {"type": ["number", "null"]}}
LOGPROBS = answer_schema(
    "CompletionLogprobs",
    {
        "tokens": {"type": "array", "items": TEXT},
        "token_logprobs": OPTIONAL_NUMBERS,
        "top_logprobs": {
            "type": ["array", "null"],
            "items": {"type": ["object", "null"], "additionalProperties": NUMBER},
            "description": "With logprobs 1: the most likely token, and the token itself where it is another.",
        },
        "text_offset": {"type": "array", "items": COUNT},
    },
)
CHOICE = answer_schema(
    "CompletionChoice",
    {
        "index": COUNT,
        "text": TEXT,
        "logprobs": {"anyOf": [LOGPROBS, {"type": "null"}]},
        "finish_reason": {"const": "length"},
        "prompt_logprobs": {
            "type": ["array", "null"],
            "items": {"type": ["object", "null"], "additionalProperties": {"type": "object"}},
        },
    },
    optional=("prompt_logprobs",),
)
ANSWER = answer_schema(
    "Completion",
    {
        "id": TEXT,
        "object": {"const": "text_completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": {"type": "array", "items": CHOICE},
        "usage": USAGE,
    },
)
TOKENIZER_INFO: Schema = answer_schema(
    "TokenizerInfo",
    {
        "tokenizer_class": TEXT,
        "vocab_size": COUNT,
        "max_model_len": COUNT,
        **{name: {"type": ["string", "null"]} for name in ("bos_token", "eos_token", "pad_token", "chat_template")},
    },
)


@dataclass(frozen=True)
class CompletionCall:
    """What the body asks for. `top` of the most likely tokens (0 or 1) are named; None: no log-probabilities."""

    prompt: Any  # as it came
    max_tokens: int
    echo: bool
    top: int | None
    prompt_top: int | None
    add_special_tokens: bool
    model: str
    priority: int

    @property
    def reads_prompt(self) -> bool:
        return (self.echo and self.top is not None) or self.prompt_top is not None


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> CompletionCall:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    if fields.get("prompt") is None:
        raise RequestError("missing_prompt", "prompt is required: texts or lists of token ids", "prompt")
    for name, values in NEUTRAL.items():
        value = fields.get(name, values[0])
        if isinstance(value, bool) != isinstance(values[0], bool) or value not in values:
            wanted = " or ".join(map(str, values))
            raise RequestError(f"invalid_{name}", f"{name} must be {wanted}: {REFUSAL}; got {shown(value)}", name)
    _check_ignored(fields)
    return CompletionCall(
        prompt=fields.get("prompt"),
        max_tokens=_max_tokens(fields),
        echo=fields.flag("echo"),
        top=fields.whole("logprobs", 0, 1),
        prompt_top=fields.whole("prompt_logprobs", 0, 1),
        add_special_tokens=fields.flag("add_special_tokens", True),
        model=model,
        priority=fields.priority(priority),
    )


def _max_tokens(fields: Fields) -> int:
    if fields.get("max_tokens") is None:
        message = f"{REFUSAL}: give max_tokens 0 or 1; left out, it is {DEFAULT_NEW_TOKENS}"
        raise RequestError("invalid_max_tokens", message, "max_tokens")
    wanted = fields.whole("max_tokens", 0)
    assert wanted is not None
    if wanted > MAX_NEW_TOKENS:
        message = f"{REFUSAL}: max_tokens must be 0 or 1; got {wanted}"
        raise RequestError("invalid_max_tokens", message, "max_tokens")
    return wanted


def _check_ignored(fields: Fields) -> None:
    fields.text("user")
    fields.whole("seed", -(1 << 63), 1 << 63)
    stop, options = fields.get("stop", ""), fields.get("stream_options", {})
    if not isinstance(stop, str) and not (isinstance(stop, list) and all(isinstance(text, str) for text in stop)):
        raise RequestError("invalid_stop", f"stop must be a string or a list of strings; got {shown(stop)}", "stop")
    if not isinstance(options, dict):
        message = f"stream_options must be an object; got {shown(options)}"
        raise RequestError("invalid_stream_options", message, "stream_options")


def answer(
    call: CompletionCall, choices: list[dict[str, Any]], usage: dict[str, Any], exchange: RequestContext, created: int
) -> dict[str, Any]:
    return {
        "id": f"cmpl-{exchange.request_id}",
        "object": "text_completion",
        "created": created,
        "model": call.model,
        "choices": choices,
        "usage": usage,
    }


def tokenizer_info(served: Served) -> dict[str, Any]:
    """As vLLM answers it: lm-evaluation-harness tokenises over HTTP where this is there."""
    tokenizer = served.tokenizer
    if tokenizer is None:
        raise RequestError("no_tokenizer", f"{served.model} has no tokenizer: it takes token ids only", "prompt")
    special = served.chat.special_tokens
    return {
        "tokenizer_class": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "max_model_len": served.max_position,
        **{name: special.get(name) for name in ("bos_token", "eos_token", "pad_token")},
        "chat_template": served.chat.default,
    }
