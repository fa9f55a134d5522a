"""vLLM's members that cut texts to a number of tokens, and its way to give an instruction. `/rerank` and `/score` share
them. Cutting itself is `truncation`'s work."""

from dataclasses import dataclass
from typing import Any, cast

from onepass.errors import RequestError, shown
from onepass.server.schema.fields import Fields, Schema, optional_text
from onepass.server.truncation import Cut, Side

INSTRUCTION = optional_text("What relevance means here; models trained with an instruction follow it.")
SIDE: Schema = {
    "type": ["string", "null"],
    "default": "right",
    "description": "`left` or `right`: the end that is cut off.",
}
TRUNCATED: Schema = {"const": True}  # a member of rows whose text was cut, and of no others
MEMBERS: dict[str, Schema] = {
    "max_tokens_per_doc": {
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "Cut documents to this many tokens; results whose document was cut say `truncated`. "
        "0 (vLLM's default) and null: no cut.",
    },
    "max_tokens_per_query": {
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "vLLM's: cut the query to this many tokens; 0 and null: no cut.",
    },
    "truncate_prompt_tokens": {
        "type": ["integer", "null"],
        "minimum": -1,
        "description": "vLLM's: cut documents so that a prompt has this many tokens; -1: as many as the model takes.",
    },
    "truncation_side": SIDE,
    "chat_template_kwargs": {
        "anyOf": [
            {"type": "object", "properties": {"instruction": INSTRUCTION}, "additionalProperties": False},
            {"type": "null"},
        ],
        "description": 'vLLM\'s way to give the instruction: `{"instruction": "…"}`.',
    },
}


@dataclass(frozen=True)
class TextLimits:
    """To how many tokens documents and the query are cut; None: not at all."""

    cut: Cut | None = None
    query_tokens: int | None = None
    side: Side = "right"


NO_LIMITS = TextLimits()


def text_limits(fields: Fields) -> TextLimits:
    side = side_of(fields, "truncation_side")
    document = fields.whole("max_tokens_per_doc", 0) or None
    prompt = prompt_tokens(fields)
    cut = None
    if document is not None or prompt is not None:
        cut = Cut(document, None if prompt == -1 else prompt, prompt is not None, side)
    return TextLimits(cut, fields.whole("max_tokens_per_query", 0) or None, side)


def side_of(fields: Fields, name: str) -> Side:
    return cast(Side, fields.choice(name, ("right", "left"), "right"))


def prompt_tokens(fields: Fields) -> int | None:
    """`truncate_prompt_tokens`: -1 means as many as the model takes."""
    name = "truncate_prompt_tokens"
    tokens = fields.whole(name, -1)
    if tokens == 0:
        raise RequestError(f"invalid_{name}", f"{name} must be -1 or at least 1; got 0", name)
    return tokens


def truncated_member(truncated: bool) -> dict[str, Any]:
    return {"truncated": True} if truncated else {}


def instruction_of(fields: Fields, *names: str) -> str | None:
    """The instruction, from the one of `names` or of `chat_template_kwargs` that gives it."""
    given = fields.first(*names)
    if given is not None and not isinstance(given, str):
        raise RequestError("invalid_instruction", f"instruction must be a string; got {shown(given)}", "instruction")
    in_template = _template_instruction(fields.get("chat_template_kwargs"))
    if given is not None and in_template is not None:
        message = "give instruction or chat_template_kwargs.instruction, not both"
        raise RequestError("conflicting_fields", message, "chat_template_kwargs")
    return given if in_template is None else in_template


def _template_instruction(value: Any) -> str | None:
    name = "chat_template_kwargs"
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("instruction"), str | None):
        message = f'{name} must be an object with a string "instruction"; got {shown(value)}'
        raise RequestError(f"invalid_{name}", message, name)
    unknown = [member for member in value if member != "instruction"]
    if unknown:
        message = f"unknown members of {name}: {', '.join(unknown)[:200]}; known: instruction"
        raise RequestError("unknown_field", message, name)
    instruction: str | None = value.get("instruction")
    return instruction
