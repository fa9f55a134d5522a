"""Values are counted before they are parsed: what would become too much memory is refused, whatever strings hold."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.errors import RequestError
from onepass.server.http import json_size
from onepass.server.http.json_size import check_json_size

VALUES = st.recursive(
    st.one_of(st.integers(), st.text(st.sampled_from('ab"\\,[{}]é'), max_size=8), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=20,
)


def containers_in(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers_in, value.values()))
    return 1 + sum(map(containers_in, value)) if isinstance(value, list) else 0


@settings(max_examples=200, deadline=None)
@given(value=VALUES, chunk=st.integers(1, 9))
def test_what_strings_hold_is_not_counted(value: object, chunk: int) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "CHUNK_BYTES", chunk)
        outside = b"".join(json_size._outside_strings(json_size._chunks(text)))
        assert b"".join(json_size._chunks(text)) == text
        assert json_size._count(outside)[1] == containers_in(value)


@pytest.mark.parametrize("entry", [b"{},", b"[],", b'{"a":[]},', b"1,", b'"a",'])
def test_countless_values_are_refused_before_they_are_parsed(entry: bytes) -> None:
    body = b'{"items":[' + entry * (json_size.MAX_VALUES + 1) + b"1]}"
    with pytest.raises(RequestError, match="at most") as caught:
        check_json_size(body)
    assert caught.value.code == "too_many_values"


def test_a_text_of_brackets_and_commas_is_a_text() -> None:
    for text in ("[{," * 1_000_000, '\\"[' * 1_000_000, "\\\\" * 500_000 + "[" * 500_000):
        check_json_size(json.dumps({"query": text}).encode())
