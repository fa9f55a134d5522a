"""vLLM's `POST /classify` and `POST /pooling`: `input` or `messages` in, class probabilities out."""

from typing import Any, cast

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
from onepass.server.schema.usage import USAGE, usage_of
from onepass.server.truncation import Side

MEMBERS: dict[str, Schema] = {
    "input": INPUTS,
    "messages": {
        **CHAT_PROPERTIES["messages"],
        "description": "A conversation in place of input, rendered by the model's chat template.",
    },
    **CHAT,
    "labels": LABELS,
    "add_special_tokens": flag("false: a text gets nothing of what the tokenizer adds (BOS, EOS).", True),
    **dict.fromkeys(("use_activation", "activation", "softmax"), USE_ACTIVATION),
    **CUT,
    "model": MODEL,
    "priority": PRIORITY,
    "user": USER,
    **dict.fromkeys(("request_id", "rid"), optional_text("Accepted, and without effect.")),
    "mm_processor_kwargs": {"type": "null", "description": "There is no multimodal processor."},
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
ANSWER: Schema = answer_schema(
    "Classification",
    {
        "id": TEXT,
        "object": {"const": "list"},
        "created": COUNT,
        "model": TEXT,
        "data": {
            "type": "array",
            "items": answer_schema(
                "ClassificationData",
                {"index": COUNT, "label": TEXT, "probs": NUMBERS, "num_classes": COUNT, "truncated": {"const": True}},
                optional=("truncated",),
            ),
        },
        "usage": USAGE,
    },
)
POOLING_ANSWER: Schema = answer_schema(
    "Pooling",
    {
        **{name: ANSWER["properties"][name] for name in ("id", "object", "created", "model", "usage")},
        "data": {
            "type": "array",
            "items": answer_schema(
                "PoolingData",
                {"index": COUNT, "object": {"const": "pooling"}, "data": NUMBERS, "truncated": {"const": True}},
                optional=("truncated",),
            ),
        },
    },
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
    if fields.get("mm_processor_kwargs") is not None:
        message = "mm_processor_kwargs is not supported here; leave it out"
        raise RequestError("unsupported_field", message, "mm_processor_kwargs")
    prompts, names = _prompts(fields)
    activations = [fields.flag(name, True) for name in ("use_activation", "activation", "softmax")]
    return ClassCall(
        prompts,
        names,
        model,
        fields.priority(priority),
        labels=label_list(fields),
        raw=not all(activations),
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
    side = cast(Side, fields.choice("truncation_side", ("right", "left"), "right"))
    tokens = fields.whole("truncate_prompt_tokens", -1)
    if tokens == 0:
        message = "truncate_prompt_tokens must be -1 or at least 1; got 0"
        raise RequestError("invalid_truncate_prompt_tokens", message, "truncate_prompt_tokens")
    return None if tokens is None else PromptLimit(None if tokens == -1 else tokens, side)


def answer(call: ClassCall, classified: Classified, exchange: RequestContext, created: int) -> dict[str, Any]:
    data = [_data(number, row, classified.classes) for number, row in enumerate(classified.rows)]
    return {"id": f"classify-{exchange.request_id}", **_around(call, classified, created), "data": data}


def pooling_answer(call: ClassCall, classified: Classified, exchange: RequestContext, created: int) -> dict[str, Any]:
    data = [
        {"index": number, "object": "pooling", "data": list(row.probabilities)} | _cut(row)
        for number, row in enumerate(classified.rows)
    ]
    return {"id": f"pool-{exchange.request_id}", **_around(call, classified, created), "data": data}


def _around(call: ClassCall, classified: Classified, created: int) -> dict[str, Any]:
    return {"object": "list", "created": created, "model": call.model, "usage": usage_of(classified.results)}


def _data(number: int, row: ClassRow, classes: tuple[str, ...]) -> dict[str, Any]:
    best = max(range(len(classes)), key=row.logits.__getitem__)
    probabilities = list(row.probabilities)
    out = {"index": number, "label": classes[best], "probs": probabilities, "num_classes": len(classes)}
    return out | _cut(row)


def _cut(row: ClassRow) -> dict[str, Any]:
    return {"truncated": True} if row.truncated else {}
