"""vLLM's `POST /classify` and `POST /pooling`: `input` or `messages` in, class probabilities out."""

from typing import Any

from onepass.errors import RequestError
from onepass.server.http.request_context import RequestContext
from onepass.server.schema.chat import CHAT_PROPERTIES
from onepass.server.schema.classification.call import (
    CHAT,
    CUT,
    INPUTS,
    LABELS,
    USE_ACTIVATION,
    ClassCall,
    Classified,
    ClassRow,
    Conversation,
    Prompt,
    PromptLimit,
    chat_options,
    label_list,
    prompts_of,
)
from onepass.server.schema.fields import (
    COUNT,
    MODEL,
    NUMBERS,
    PRIORITY,
    TEXT,
    USER,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
    optional_text,
)
from onepass.server.schema.text_limits import TRUNCATED, prompt_tokens, side_of, truncated_member
from onepass.server.schema.usage import usage_of
from onepass.server.schema.vllm import (
    MULTIMODAL,
    activation_members,
    list_answer,
    list_schema,
    refuse_multimodal,
    wants_raw,
)

MEMBERS: dict[str, Schema] = {
    "input": INPUTS,
    "messages": {
        **CHAT_PROPERTIES["messages"],
        "description": "A conversation in place of input, rendered by the model's chat template.",
    },
    **CHAT,
    "labels": LABELS,
    "add_special_tokens": flag("false: a text gets nothing of what the tokenizer adds (BOS, EOS).", True),
    **activation_members(USE_ACTIVATION),
    **CUT,
    "model": MODEL,
    "priority": PRIORITY,
    "user": USER,
    **dict.fromkeys(("request_id", "rid"), optional_text("Accepted, and without effect.")),
    **MULTIMODAL,
}
BODY = body_schema("ClassifyBody", MEMBERS)
BODY["examples"] = [{"input": ["The food was delicious.", "The room was cold."], "labels": [" yes", " no"]}]
POOLING_BODY = body_schema(
    "PoolingBody",
    {
        **MEMBERS,
        "task": {"enum": ["classify", None], "description": "Only classes and rewards are read."},
        "encoding_format": {"enum": ["float", None], "default": "float"},
        "dimensions": {"type": "null", "description": "For embeddings, which are not served."},
    },
)
POOLING_BODY["examples"] = [{"input": "The food was delicious.", "labels": [" yes", " no"]}]
ANSWER: Schema = list_schema(
    "Classification",
    answer_schema(
        "ClassificationData",
        {"index": COUNT, "label": TEXT, "probs": NUMBERS, "num_classes": COUNT, "truncated": TRUNCATED},
        optional=("truncated",),
    ),
)
POOLING_ANSWER: Schema = list_schema(
    "Pooling",
    answer_schema(
        "PoolingData",
        {"index": COUNT, "object": {"const": "pooling"}, "data": NUMBERS, "truncated": TRUNCATED},
        optional=("truncated",),
    ),
)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ClassCall:
    return _call(Fields.of(body, BODY), served_names, priority)


def parse_pooling(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ClassCall:
    fields = Fields.of(body, POOLING_BODY)
    for name, only in (("task", "classify"), ("encoding_format", "float")):
        fields.choice(name, (only,), only)
    if fields.get("dimensions") is not None:
        raise RequestError("unsupported_field", "dimensions is for embeddings, which are not served", "dimensions")
    return _call(fields, served_names, priority)


def _call(fields: Fields, served_names: tuple[str, ...], priority: int) -> ClassCall:
    model = fields.model(served_names)
    for name in ("user", "request_id", "rid"):
        fields.text(name)
    refuse_multimodal(fields)
    prompts, names = _prompts(fields)
    return ClassCall(
        prompts,
        names,
        model,
        fields.priority(priority),
        labels=label_list(fields),
        raw=wants_raw(fields),
        add_special_tokens=fields.flag("add_special_tokens", True),
        limit=prompt_limit(fields),
        chat=chat_options(fields),
    )


def _prompts(fields: Fields) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    given = fields.first("input", "messages")
    if given is None:
        raise RequestError("missing_input", "input or messages are required", "input")
    if fields.get("messages") is not None:
        return (Conversation(given),), ("messages",)
    prompts, names, _ = prompts_of(given, "input")
    return prompts, names


def prompt_limit(fields: Fields) -> PromptLimit | None:
    side, tokens = side_of(fields, "truncation_side"), prompt_tokens(fields)
    return None if tokens is None else PromptLimit(None if tokens == -1 else tokens, side)


def answer(call: ClassCall, classified: Classified, exchange: RequestContext, created: int) -> dict[str, Any]:
    data = [_data(number, row, classified.classes) for number, row in enumerate(classified.rows)]
    usage = usage_of(classified.results)
    return list_answer(f"classify-{exchange.request_id}", created, call.model, data, usage)


def pooling_answer(call: ClassCall, classified: Classified, exchange: RequestContext, created: int) -> dict[str, Any]:
    data = [
        {"index": number, "object": "pooling", "data": list(row.probabilities)} | truncated_member(row.truncated)
        for number, row in enumerate(classified.rows)
    ]
    usage = usage_of(classified.results)
    return list_answer(f"pool-{exchange.request_id}", created, call.model, data, usage)


def _data(number: int, row: ClassRow, classes: tuple[str, ...]) -> dict[str, Any]:
    best = max(range(len(classes)), key=row.logits.__getitem__)
    probabilities = list(row.probabilities)
    out = {"index": number, "label": classes[best], "probs": probabilities, "num_classes": len(classes)}
    return out | truncated_member(row.truncated)
