"""`messages` in a body, and the prompt in an answer: fields that every dialect which scores labels may have."""

from typing import Any

from onepass.api import ITEM_ROLES, ChatOptions
from onepass.errors import RequestError, shown
from onepass.server.schema.fields import (
    COUNT,
    TEXT,
    TOKEN_IDS,
    Fields,
    Schema,
    answer_schema,
    flag,
    optional_text,
)

MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "user", "assistant"]},
        "content": {
            "anyOf": [
                TEXT,
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": TEXT},
                        "required": ["text"],
                    },
                },
            ]
        },
    },
    "required": ["role", "content"],
}
RETURN_PROMPT = flag("Also return what the model was given: text, token ids, read-out positions.", False)
CHAT_PROPERTIES: dict[str, Schema] = {
    "messages": {
        "anyOf": [{"type": "array", "items": MESSAGE, "minItems": 1}, {"type": "null"}],
        "description": "A conversation in place of the query, rendered by the model's chat template. The item stands "
        "where a message has {item}, else at the end of the last message of item_role.",
    },
    "item_role": {
        "type": ["string", "null"],
        "enum": [*ITEM_ROLES, None],
        "default": "user",
        "description": "Whose words the item is: the user's, before the generation prompt, or the assistant's answer.",
    },
    "chat_template": optional_text("The name of one of the model's chat templates."),
    "chat_template_kwargs": {
        "type": ["object", "null"],
        "description": "Variables that the chat template reads, such as enable_thinking.",
    },
    "add_generation_prompt": {
        "type": ["boolean", "null"],
        "description": "Whether the assistant's turn is begun after the messages (default: after a user's message).",
    },
    "continue_final_message": {
        "type": ["boolean", "null"],
        "description": "Whether the assistant's last message is left open (default: yes).",
    },
    "add_special_tokens": flag("false: the tokenizer's beginning (BOS) is not put before a text query.", True),
    "return_logits": flag("Also return the labels' logits, before any softmax.", False),
    "return_prompt": RETURN_PROMPT,
}
_PART: dict[str, Schema] = {"text": TEXT, "token_ids": TOKEN_IDS}
PROMPT = answer_schema(
    "Prompt",
    {
        "shared": answer_schema("SharedPrompt", _PART),
        "items": {
            "type": "array",
            "items": answer_schema(
                "ItemPrompt",
                {
                    **_PART,
                    "readout_position": COUNT,
                    "continuations": {
                        "type": "array",
                        "items": answer_schema("ContinuationPrompt", _PART),
                        "description": "Texts whose likelihood is read after the item.",
                    },
                    "question": {**COUNT, "description": "Of decisions: which question it is."},
                    "candidate": {**COUNT, "description": "Of decisions with candidates: which it is about."},
                    "labels": {
                        "type": "array",
                        "items": TEXT,
                        "description": "Of decisions: the labels that are read.",
                    },
                },
                optional=("continuations", "question", "candidate", "labels"),
            ),
        },
    },
)


def chat_fields(fields: Fields) -> dict[str, Any]:
    """The fields of `ScoreRequest` that these members are."""
    return {
        "messages": fields.get("messages"),
        "chat": chat_options(fields),
        "add_special_tokens": fields.flag("add_special_tokens", True),
        "return_prompt": fields.flag("return_prompt"),
    }


def chat_options(fields: Fields) -> ChatOptions | None:
    fields.text("chat_template")
    if (role := fields.get("item_role")) is not None and role not in ITEM_ROLES:
        message = f"item_role must be {' or '.join(ITEM_ROLES)}; got {shown(role)}"
        raise RequestError("invalid_messages", message, "item_role")
    for name in ("add_generation_prompt", "continue_final_message"):
        fields.flag(name)
    variables = fields.get("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        message = f"chat_template_kwargs must be an object; got {shown(variables)}"
        raise RequestError("invalid_chat_template_kwargs", message, "chat_template_kwargs")
    return ChatOptions.from_fields(fields.body)
