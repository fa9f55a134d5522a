"""What vLLM's `/classify`, `/pooling` and `/score` have alike: members of the body, the list around an answer's rows.

Each dialect's file has its own members, rows and meaning.
"""

from typing import Any

from onepass.errors import RequestError
from onepass.server.schema.fields import COUNT, TEXT, Fields, Schema, answer_schema
from onepass.server.schema.usage import USAGE

ACTIVATIONS = ("use_activation", "activation", "softmax")
MM_PROCESSOR = "mm_processor_kwargs"
MULTIMODAL: dict[str, Schema] = {MM_PROCESSOR: {"type": "null", "description": "There is no multimodal processor."}}


def activation_members(schema: Schema) -> dict[str, Schema]:
    """Three names of one flag."""
    return dict.fromkeys(ACTIVATIONS, schema)


def wants_raw(fields: Fields) -> bool:
    """Whether any of the three names of the activation is false; each must be a flag."""
    activations = [fields.flag(name, True) for name in ACTIVATIONS]
    return not all(activations)


def refuse_multimodal(fields: Fields) -> None:
    if fields.get(MM_PROCESSOR) is not None:
        raise RequestError("unsupported_field", f"{MM_PROCESSOR} is not supported here; leave it out", MM_PROCESSOR)


def list_schema(title: str, row: Schema) -> Schema:
    return answer_schema(
        title,
        {
            "id": TEXT,
            "object": {"const": "list"},
            "created": COUNT,
            "model": TEXT,
            "data": {"type": "array", "items": row},
            "usage": USAGE,
        },
    )


def list_answer(
    answer_id: str, created: int, model: str, data: list[dict[str, Any]], usage: dict[str, Any]
) -> dict[str, Any]:
    return {"id": answer_id, "object": "list", "created": created, "model": model, "data": data, "usage": usage}
