"""States as texts, JSON and conversations; images are refused by name."""

from typing import Any

import pytest

from onepass.decisions.state import State, state_of
from onepass.errors import RequestError

CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ("as it is ", State("", "as it is ")),
        ({"ticket": "späť", "n": 1}, State("", '{"ticket":"späť","n":1}')),
        ([1, 2], State("", "[1,2]")),
        ([{"role": "user", "content": "hello"}], State("", "hello")),
        (
            [
                {"role": "developer", "content": "Be strict."},
                {"role": "system", "content": [{"type": "input_text", "text": "Be fair."}]},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
                    {"type": "input_json", "data": {"b": 1}},
                ]},
            ],
            State("Be strict.\n\nBe fair.", 'a\n{"b":1}'),
        ),
        (
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "ho"}]},
            ],
            State("", "[user]\nhi\n\n[assistant]\nho"),
        ),
        (
            [
                {"role": "user", "content": "rain?"},
                CALL,
                {"type": "function_call_output", "call_id": "c1", "output": "no"},
            ],
            State("", '[user]\nrain?\n\n[call of weather]\n{"city":"Rome"}\n\n[result of weather]\nno'),
        ),
        (
            [
                {"role": "user", "content": "rain?"},
                {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "no"},
                {"role": "assistant", "content": "Again.", "tool_calls": [CHAT_CALL]},
            ],
            State(
                "",
                '[user]\nrain?\n\n[call of weather]\n{"city":"Rome"}\n\n[result of weather]\nno\n\n'
                '[assistant]\nAgain.\n\n[call of weather]\n{"city":"Rome"}',
            ),
        ),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}], State("", "[user]\na\n\n[tool]\nb")),
    ],
)  # fmt: skip
def test_a_state_becomes_text(value: Any, state: State) -> None:
    assert state_of(value) == state


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ("", "empty_state", "state"),
        (" \n", "empty_state", "state"),
        ([], "invalid_state", "state"),
        (7, "invalid_state", "state"),
        ([{"role": "pope", "content": "x"}], "invalid_state", "state[0].role"),
        ([{"role": "user", "content": 7}], "invalid_state", "state[0].content"),
        ([{"role": "pope", "content": None, "tool_calls": [CHAT_CALL]}], "invalid_state", "state[0].role"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "invalid_state", "state[0].content"),
        ([{"role": "assistant", "content": "x", "tool_calls": {}}], "invalid_state", "state[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "tool_calls": [7]}], "invalid_state", "state[0].tool_calls[0]"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c1"}], "invalid_state", "state[0].tool_call_id"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}],
            "unsupported_content",
            "state[0].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "poem"}]}], "invalid_state", "state[0].content[0]"),
        ([{"type": "function_call_output", "call_id": "c2", "output": "x"}], "invalid_state", "state[0].call_id"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "x", "prompt_cache_breakpoint": 1}]}],
            "invalid_state",
            "state[0].content[0].prompt_cache_breakpoint",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(value: Any, code: str, param: str) -> None:
    with pytest.raises(RequestError) as error:
        state_of(value)
    assert (error.value.code, error.value.param) == (code, param)


def test_an_image_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"'input_image': .* images and other media are not supported"):
        state_of([{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}])
