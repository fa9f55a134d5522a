"""What any body for a classifier or a reward model asks for: `ClassCall`, and the prompts that it holds.

Each dialect's file reads its own body into it and writes its own answer; tokens and classes are `server.classify`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.api import ChatOptions, ScoreResult
from onepass.errors import RequestError, shown
from onepass.server.schema.chat import CHAT_PROPERTIES
from onepass.server.schema.fields import TEXT, TOKEN_IDS, Fields, Schema, flag
from onepass.server.schema.text_limits import MEMBERS as TEXT_LIMITS
from onepass.server.truncation import Side

MAX_PROMPTS = 4096
LABELS: Schema = {
    "anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}],
    "description": "Classes for a language model without a classification head: labels of one token each, read after "
    "the text. Models with classes of their own take none.",
}
CHAT_NAMES = ("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
CHAT: dict[str, Schema] = {name: CHAT_PROPERTIES[name] for name in CHAT_NAMES}
USE_ACTIVATION = flag("false gives logits in place of probabilities.", True)
CUT: dict[str, Schema] = {
    "truncate_prompt_tokens": {
        **TEXT_LIMITS["truncate_prompt_tokens"],
        "description": "vLLM's: cut a prompt to this many tokens; -1: to as many as the model takes.",
    },
    "truncation_side": TEXT_LIMITS["truncation_side"],
}
INPUTS: Schema = {
    "anyOf": [
        TEXT,
        {"type": "array", "items": TEXT, "minItems": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": TOKEN_IDS, "minItems": 1},
        {"type": "null"},
    ],
    "description": "Texts or lists of token ids, one or several.",
}


@dataclass(frozen=True)
class Pair:
    """Two texts, joined by the model's reranking template, or else by its tokenizer."""

    first: str
    second: str


@dataclass(frozen=True)
class Conversation:
    messages: Any


Prompt = str | Sequence[Any] | Pair | Conversation


@dataclass(frozen=True)
class PromptLimit:
    """To how many tokens a prompt is cut; None: to as many as the model takes."""

    tokens: int | None
    side: Side = "right"


@dataclass(frozen=True)
class ClassCall:
    """`names` say where each prompt stood in the body, for messages. A `single` one is answered without a list, where
    the dialect does so."""

    prompts: tuple[Prompt, ...]
    names: tuple[str, ...]
    model: str
    priority: int
    labels: Sequence[str] | None = None
    raw: bool = False
    add_special_tokens: bool = True
    limit: PromptLimit | None = None
    chat: ChatOptions | None = None
    single: bool = False


@dataclass(frozen=True)
class ClassRow:
    """What was read after one prompt."""

    logits: Sequence[float]
    probabilities: Sequence[float]  # or logits, where the call is for raw values
    truncated: bool = False


@dataclass(frozen=True)
class Classified:
    """A row per prompt in the call's order; `reward` makes a single number of a row's logits."""

    classes: tuple[str, ...]
    rows: tuple[ClassRow, ...]
    results: tuple[ScoreResult, ...]
    reward: Callable[[Sequence[float]], float]


def prompts_of(value: Any, name: str) -> tuple[tuple[Prompt, ...], tuple[str, ...], bool]:
    """Prompts, where each stands, and whether it is a single one: texts or lists of token ids, one or several."""
    single = isinstance(value, str) or (isinstance(value, list) and bool(value) and not _nested(value))
    prompts = [value] if single else value
    if not isinstance(prompts, list) or len({isinstance(prompt, str) for prompt in prompts}) > 1:
        message = f"{name} must be texts or lists of token ids, of one kind; got {shown(value)}"
        raise RequestError(f"invalid_{name}", message, name)
    check_count(prompts, name)
    return tuple(prompts), (name,) if single else tuple(f"{name}[{i}]" for i in range(len(prompts))), single


def check_count(prompts: Sequence[Any], name: str) -> None:
    if not prompts:
        raise RequestError(f"empty_{name}", f"{name} must hold at least one prompt; got []", name)
    if len(prompts) > MAX_PROMPTS:
        message = f"{name} must hold at most {MAX_PROMPTS:,} prompts; got {len(prompts):,}"
        raise RequestError("too_many_prompts", message, name)


def chat_options(fields: Fields) -> ChatOptions | None:
    fields.text("chat_template")
    for name in ("add_generation_prompt", "continue_final_message"):
        fields.flag(name)
    variables = fields.get("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        message = f"chat_template_kwargs must be an object; got {shown(variables)}"
        raise RequestError("invalid_chat_template_kwargs", message, "chat_template_kwargs")
    return ChatOptions.from_fields({name: fields.get(name) for name in CHAT_NAMES})


def label_list(fields: Fields) -> list[str] | None:
    labels = fields.get("labels")
    if labels is None:
        return None
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise RequestError("invalid_labels_type", f"labels must be a list of strings; got {shown(labels)}", "labels")
    return labels


def _nested(value: list[Any]) -> bool:
    return any(isinstance(entry, str | list) for entry in value)
