"""A model's chat templates: where they are kept, and messages rendered into the text that the model was trained with.

`ChatTemplates` holds the default template and named ones; rendering is equal to transformers'. The sandbox is
`sandbox`; cutting a rendered prompt around an item is `prompt`. Jinja is imported at the first rendering.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from onepass.errors import BadCheckpoint, RequestError

DEFAULT = "default"
# What transformers hands to every template by these names.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
GGUF_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelt so in the file format
    "pad_token": "padding_token_id",
}
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplates:
    """Jinja source by name, and the special tokens that templates may print."""

    sources: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def default(self) -> str | None:
        return self.sources.get(DEFAULT)

    def source(self, name: str | None = None) -> str:
        """The template of that name, or a RequestError that lists those there are."""
        chosen = DEFAULT if name is None else name
        if chosen in self.sources:
            return self.sources[chosen]
        if not self.sources:
            raise RequestError(
                "no_chat_template", "this model has no chat template: give query and items as text", "messages"
            )
        names = ", ".join(sorted(self.sources))
        raise RequestError(
            "unknown_chat_template", f"chat_template must be one of {names}; got {chosen!r}", "chat_template"
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        name: str | None = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as one text, as `apply_chat_template(..., tokenize=False)` of transformers writes it."""
        given = {
            **self.special_tokens,
            **(variables or {}),
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        return render_template(self.source(name), given)


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """Jinja source rendered in the sandbox; whatever it raises becomes a RequestError with its words."""
    from jinja2 import TemplateError

    from onepass.loading.chat.sandbox import COUNTER, MAX_CHARACTERS, IterationCounter

    known = {"tools": None, "documents": None, **variables, COUNTER: IterationCounter()}
    parts, size = [], 0
    try:
        for part in _compiled(source).generate(known):
            size += len(part)
            if size > MAX_CHARACTERS:
                raise TemplateError(f"the text has more than {MAX_CHARACTERS:,} characters")
            parts.append(part)
    except TemplateError as error:
        raise _failed(str(error.message or type(error).__name__)) from error
    except RecursionError as error:
        raise _failed("it calls itself without end") from error
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError) as error:
        raise _failed(f"{type(error).__name__}: {error}") from error
    return "".join(parts)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    from onepass.loading.chat.sandbox import chat_environment

    return chat_environment().from_string(source)


def _failed(reason: str) -> RequestError:
    return RequestError("chat_template_failed", f"the chat template does not take these messages: {reason}", "messages")


def chat_templates_from_folder(folder: Path) -> ChatTemplates:
    """`chat_template.jinja` and `additional_chat_templates/NAME.jinja` where they are, else the string or the named
    list of tokenizer_config.json."""
    config = _json(folder / "tokenizer_config.json")
    tokens = _special_tokens({**_json(folder / "special_tokens_map.json"), **config})
    sources = {path.stem: _text(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    single = folder / "chat_template.jinja"
    if single.is_file():
        sources[DEFAULT] = _text(single)
    if not sources:
        stored = config.get("chat_template")
        if stored is None:
            stored = _json(folder / "chat_template.json").get("chat_template")
        sources = _named(stored)
    return ChatTemplates(sources, tokens)


def chat_templates_from_gguf(metadata: Mapping[str, Any]) -> ChatTemplates:
    prefix = "tokenizer.chat_template"
    sources = {key.removeprefix(prefix + "."): value for key, value in metadata.items() if key.startswith(prefix + ".")}
    if isinstance(metadata.get(prefix), str):
        sources[DEFAULT] = metadata[prefix]
    vocabulary: Sequence[str] = metadata.get("tokenizer.ggml.tokens", ())
    tokens = {}
    for name, key in GGUF_SPECIAL_TOKENS.items():
        number = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(number, int) and 0 <= number < len(vocabulary):
            tokens[name] = vocabulary[number]
    return ChatTemplates(sources, tokens)


def _named(stored: Any) -> dict[str, str]:
    """A string is the default template; a list has an object with name and template for each."""
    if stored is None:
        return {}
    if isinstance(stored, str):
        return {DEFAULT: stored}
    if isinstance(stored, dict) and all(isinstance(text, str) for text in stored.values()):
        return dict(stored)
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in stored}
    except (TypeError, KeyError) as error:
        raise BadCheckpoint(
            "chat_template in tokenizer_config.json must be a string, or a list of objects with name and template"
        ) from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """By name; a token is a string or an object with its `content`."""
    tokens = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_text(path))
    except ValueError as error:
        raise BadCheckpoint(f"{path.name} must be a JSON object; {error}") from error
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise BadCheckpoint(f"{path.name} must be UTF-8; {error}") from error
