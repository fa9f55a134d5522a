"""What questions are about: a text, JSON or a conversation, as the system text and the state text of a prompt.

System and developer messages become the system text. One user message is the state as it is; a longer conversation is
written out with a line per speaker, so that every chat template takes it: none of them takes every order of roles.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.errors import RequestError, shown

ROLES = ("user", "assistant", "tool")
SYSTEM_ROLES = ("system", "developer")
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}  # each with the member that holds what is passed
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
CHAT_CALL = "tool_calls"  # of a chat message
TEXT_PARTS = ("text", "input_text", "output_text")
MEDIA = ("image", "audio", "video", "file")


@dataclass(frozen=True)
class State:
    """`system` may be empty; `text` is not."""

    system: str
    text: str


def state_of(value: Any, path: str = "state") -> State:
    """A text, a list of messages, or any other JSON, which is written as compact text."""
    if isinstance(value, str):
        state = State("", value)
    elif is_conversation(value):
        state = _conversation(value, path)
    elif isinstance(value, Mapping) or (isinstance(value, Sequence) and value):
        state = State("", _json(value))
    else:
        raise RequestError(f"invalid_{path}", f"{path} must be a text, messages or JSON; got {shown(value)}", path)
    if not state.text.strip():
        raise RequestError(f"empty_{path}", f"{path} must not be empty", path)
    return state


def is_conversation(value: Any) -> bool:
    """A list of objects that each have a role or are a tool's call or output."""
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_message, value))


def _is_message(entry: Any) -> bool:
    return isinstance(entry, Mapping) and ("role" in entry or entry.get("type") in (*CALLS, *OUTPUTS))


def _conversation(entries: Sequence[Mapping[str, Any]], path: str) -> State:
    system: list[str] = []
    turns: list[tuple[str, str]] = []
    calls: dict[str, tuple[str, str]] = {}  # call id to kind and name
    for index, entry in enumerate(entries):
        place = f"{path}[{index}]"
        if "role" not in entry:
            turns.append(_tool_turn(entry, calls, place))
            continue
        role = entry["role"]
        if role not in (*SYSTEM_ROLES, *ROLES):
            known = ", ".join((*SYSTEM_ROLES, *ROLES))
            raise _wrong(path, f"{place}.role", f"must be one of {known}; got {shown(role)}")
        passed = _chat_calls(entry.get("tool_calls"), calls, f"{place}.tool_calls")
        if not passed or entry.get("content") is not None:
            text = _content(entry.get("content"), f"{place}.content")
            if role in SYSTEM_ROLES:
                system.append(text)
            else:
                turns.append((_speaker(entry, calls, place), text))
        turns += passed
    if not turns:
        return State("", "\n\n".join(system))
    if len(turns) == 1 and turns[0][0] == "user":
        return State("\n\n".join(system), turns[0][1])
    return State("\n\n".join(system), "\n\n".join(f"[{speaker}]\n{text}" for speaker, text in turns))


def _chat_calls(value: Any, calls: dict[str, tuple[str, str]], place: str) -> list[tuple[str, str]]:
    """The calls that a chat message holds, one turn each."""
    path = place.partition("[")[0]
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(path, place, f"must be a list of calls; got {shown(value)}")
    turns = []
    for index, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        name, passed = (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else (0, 0)
        if not isinstance(name, str) or not isinstance(passed, str):
            raise _wrong(
                path, f"{place}[{index}]", f"must have a function with the texts name and arguments; got {shown(call)}"
            )
        calls[str(call.get("id", ""))] = (CHAT_CALL, name)
        turns.append((f"call of {name}", passed))
    return turns


def _speaker(entry: Mapping[str, Any], calls: Mapping[str, tuple[str, str]], place: str) -> str:
    """The role; of a tool that answers a call of an earlier message, what it is the result of."""
    call_id = entry.get("tool_call_id")
    if call_id is None:
        return str(entry["role"])
    kind, name = calls.get(str(call_id), ("", ""))
    if kind != CHAT_CALL:
        path = place.partition("[")[0]
        raise _wrong(path, f"{place}.tool_call_id", f"must be the id of an earlier tool call; got {shown(call_id)}")
    return f"result of {name}"


def _tool_turn(entry: Mapping[str, Any], calls: dict[str, tuple[str, str]], place: str) -> tuple[str, str]:
    kind, call_id = str(entry["type"]), str(entry.get("call_id", ""))
    path = place.partition("[")[0]
    if kind in CALLS:
        name, passed = entry.get("name"), entry.get(CALLS[kind])
        if not isinstance(name, str) or not isinstance(passed, str):
            raise _wrong(path, place, f"must have the texts name and {CALLS[kind]}")
        calls[call_id] = (kind, name)
        return f"call of {name}", passed
    made, name = calls.get(call_id, ("", ""))
    if made != OUTPUTS[kind]:
        raise _wrong(
            path, f"{place}.call_id", f"must be the call_id of an earlier {OUTPUTS[kind]}; got {shown(call_id)}"
        )
    return f"result of {name}", _content(entry.get("output"), f"{place}.output")


def _content(value: Any, place: str) -> str:
    """A text, or parts one after another."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _json(value)
    if not isinstance(value, Sequence) or not value:
        raise _wrong(place.partition("[")[0], place, f"must be a text or a list of parts; got {shown(value)}")
    return "\n".join(part_text(part, f"{place}[{index}]") for index, part in enumerate(value))


def part_text(part: Any, place: str) -> str:
    path = place.partition("[")[0]
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and any(word in kind for word in MEDIA):
        raise RequestError(
            "unsupported_content",
            f"{place} is of type {kind!r}: this model reads text and JSON; images and other media are not supported",
            place,
        )
    _check_breakpoint(part, place)
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind == "input_json" and isinstance(part.get("data"), Mapping | list):
        return _json(part["data"])
    raise _wrong(
        path, place, f"must be a part of type input_text, output_text, refusal or input_json; got {shown(kind)}"
    )


def _check_breakpoint(part: Any, place: str) -> None:
    """Contexts are kept, and reused up to their longest shared beginning: a breakpoint asks for nothing more."""
    mark = part.get("prompt_cache_breakpoint") if isinstance(part, Mapping) else None
    if mark is not None and mark != {"mode": "explicit"}:
        raise _wrong(
            place.partition("[")[0],
            f"{place}.prompt_cache_breakpoint",
            f'must be {{"mode": "explicit"}}; got {shown(mark)}',
        )


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError("invalid_state", f"the state must be JSON; {error}", "state") from error


def _wrong(path: str, place: str, message: str) -> RequestError:
    return RequestError(f"invalid_{path}", f"{place} {message}"[:1000], place)
