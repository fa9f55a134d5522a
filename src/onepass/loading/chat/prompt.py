"""A chat prompt split around its item: what all items share, and what stands before and after each.

    messages ─► one text with a marker where the item goes ─► before │ item │ after
    before   ─► shared │ lead: cut where the tokenizer gives the same tokens as for the whole text

The shared part is the context that every item continues, so that a chat prompt is computed once for all items.
Rendering is `template`; what a request may say is checked here, as a RequestError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from onepass.api import ITEM_ROLES, ChatOptions
from onepass.errors import RequestError, shown
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.tokenizer import TextTokenizer

ROLES = ("system", "user", "assistant")
ITEM = "{item}"
MARKER = "onepassITEMmarker7Q"
END = "onepassENDmarker7Q "  # of a message that is left open; its blank shows whether the template trims messages
# Items of every kind that a cut must be right for: words, digits, spaces, newlines, punctuation, other scripts.
PROBES = ("word", " word", "7", "\n", "\n\nLine", "  two", ".", "'s", '"quoted"', "<b>", "é", "東京", "_x", "\t", "-")
WINDOW = 400  # characters before the item that decide how it is split into tokens


@dataclass(frozen=True)
class SplitPrompt:
    """A rendered prompt without its item. `strips_left`, `strips_right`: the template removes white space there."""

    before: str
    after: str
    strips_left: bool = False
    strips_right: bool = False

    def item(self, text: str) -> str:
        text = text.lstrip() if self.strips_left else text
        return text.rstrip() if self.strips_right else text


def split_prompt(templates: ChatTemplates, messages: Any, options: ChatOptions, *, complete: bool) -> SplitPrompt:
    """`complete`: the conversation is ended as in training, without a place for an answer, unless `options` say
    otherwise; models with a classification head read it so."""
    _check_options(options)
    placed = _placed(checked_messages(messages), options)
    continued, generation = _ending(placed, options, complete)

    def rendered(item: str) -> str:
        filled = [{**message, "content": message["content"].replace(ITEM, item)} for message in placed]
        return _rendered(templates, filled, options, continued, generation)

    text = rendered(MARKER)
    if text.count(MARKER) != 1:
        raise _wrong(
            "messages", f"the chat template must print the item once; it printed it {text.count(MARKER)} times"
        )
    before, _, after = text.partition(MARKER)
    return SplitPrompt(before, after, rendered(f" {MARKER}") == text, rendered(f"{MARKER} ") == text)


def conversation_text(templates: ChatTemplates, messages: Any, options: ChatOptions, *, complete: bool) -> str:
    """A whole conversation as the chat template prints it, without an item. `complete`: as of `split_prompt`."""
    _check_options(options)
    checked = checked_messages(messages)
    return _rendered(templates, checked, options, *_ending(checked, options, complete))


def _ending(messages: list[dict[str, str]], options: ChatOptions, complete: bool) -> tuple[bool, bool]:
    """Whether the last message is left open, and whether the assistant's turn is begun after it."""
    by_assistant = messages[-1]["role"] == "assistant"
    continued = _chosen(options.continue_final_message, by_assistant and not complete)
    if continued and not by_assistant:
        raise _wrong("continue_final_message", "continue_final_message wants the last message to be the assistant's")
    generation = _chosen(options.add_generation_prompt, not by_assistant and not complete)
    if continued and generation:
        raise _wrong("add_generation_prompt", "continue_final_message and add_generation_prompt exclude each other")
    return continued, generation


def _rendered(
    templates: ChatTemplates, messages: list[dict[str, str]], options: ChatOptions, continued: bool, generation: bool
) -> str:
    """The messages as the template prints them; `continued`: up to the end of the last one, as transformers cuts it."""
    if continued:
        *others, last = messages
        messages = [*others, {**last, "content": last["content"] + END}]
    text = templates.render(
        messages, name=options.template, add_generation_prompt=generation, variables=options.template_kwargs
    )
    if not continued:
        return text
    kept, end, rest = text.rpartition(END.strip())
    if not end:
        raise _wrong("continue_final_message", "continue_final_message wants a chat template that prints the message")
    return kept if rest.startswith(" ") else kept.rstrip()


def _check_options(options: ChatOptions) -> None:
    if options.item_role not in ITEM_ROLES:
        raise _wrong("item_role", f"item_role must be {' or '.join(ITEM_ROLES)}; got {options.item_role!r}")
    if not isinstance(options.template_kwargs, Mapping) or not all(isinstance(k, str) for k in options.template_kwargs):
        raise _wrong("chat_template_kwargs", "chat_template_kwargs must be an object")
    if options.template is not None and not isinstance(options.template, str):
        raise _wrong("chat_template", f"chat_template must be a name; got {shown(options.template)}")
    for name in ("add_generation_prompt", "continue_final_message"):
        if not isinstance(getattr(options, name), bool | None):
            raise _wrong(name, f"{name} must be true or false; got {shown(getattr(options, name))}")


def checked_messages(messages: Any) -> list[dict[str, str]]:
    """Messages with their role and text; content of several text blocks is joined by line breaks."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise _wrong("messages", f"messages must be a list of objects with role and content; got {shown(messages)}")
    if not messages:
        raise _wrong("messages", "messages must hold at least one message; got []")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping) or not message.keys() <= {"role", "content"} or "role" not in message:
        got = ", ".join(map(str, message)) if isinstance(message, Mapping) else shown(message)
        raise _wrong(where, f"{where} must be an object with role and content; got {got}")
    role, content = message["role"], message.get("content")
    if role not in ROLES:
        raise _wrong(f"{where}.role", f"{where}.role must be {', '.join(ROLES)}; got {role!r}")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        blocks = [block.get("text") if isinstance(block, Mapping) else None for block in content]
        if any(not isinstance(block, str) for block in blocks):
            raise _wrong(f"{where}.content", f"{where}.content must be text or text blocks")
        content = "\n".join(str(block) for block in blocks)
    if not isinstance(content, str):
        raise _wrong(f"{where}.content", f"{where}.content must be a string; got {shown(content)}")
    return {"role": role, "content": content}


def _placed(messages: list[dict[str, str]], options: ChatOptions) -> list[dict[str, str]]:
    """The messages with `{item}` where the item goes: where it stands, or at the end of the last message of
    `item_role`, or in a new message of that role."""
    count = sum(message["content"].count(ITEM) for message in messages)
    if count > 1:
        raise _wrong("messages", f"messages may hold {ITEM} once; they hold it {count} times")
    if count:
        return messages
    *others, last = messages
    if last["role"] == options.item_role:
        return [*others, {**last, "content": last["content"] + ITEM}]
    return [*messages, {"role": options.item_role, "content": ITEM}]


def exact_cut(
    tokenizer: TextTokenizer,
    before: str,
    after: str,
    items: Sequence[str],
    fillings: Sequence[Callable[[str], str]] = (str,),
) -> int | None:
    """Where `before` ends for all items: the last place at which tokens of both parts are the whole text's tokens, for
    the probes and for the first items. None where there is no such place. `fillings` put texts into the parts."""
    window = max(0, len(before) - WINDOW)
    probes = [text + after[:WINDOW] for text in (*PROBES, *(item[:WINDOW] for item in items[:4]), "")]
    whole = [tokenizer.encode_items([fill(before[window:] + text) for text in probes]) for fill in fillings]

    def exact(cut: int, fill: Callable[[str], str], ids: list[list[int]]) -> bool:
        head = tokenizer.encode_item(fill(before[window:cut]))
        rest = tokenizer.encode_items([fill(before[cut:] + text) for text in probes])
        return bool(head) and all(head + tail == both for tail, both in zip(rest, ids, strict=True))

    places = _places(before, window)
    return next((cut for cut in places if all(map(partial(exact, cut), fillings, whole))), None)


def _places(before: str, window: int) -> list[int]:
    """The end, and behind every newline, before every run of blanks and at both sides of every `<...>`, last first."""
    places = {len(before)}
    for at in range(max(window, 1), len(before)):
        left, right = before[at - 1], before[at]
        if left in "\n>]" or right in "<[" or (right.isspace() and not left.isspace()):
            places.add(at)
    return sorted(places, reverse=True)


def _chosen(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _wrong(param: str, message: str) -> RequestError:
    return RequestError("invalid_messages", message, param)
