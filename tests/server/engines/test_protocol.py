"""What front and engine say to one another survives the way: requests, read-outs and errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.api import ScoreRequest, Timings, Usage
from onepass.engine.encoding.encode import Encoded
from onepass.engine.readout import ReadOut, RunInfo
from onepass.errors import ContextNotFound, DoesNotFit, RequestError, TooLong
from onepass.ipc import LENGTHS, Frame, decode, encode
from onepass.server.engines.protocol import (
    ScoreCall,
    answer_frame,
    answered,
    error_frame,
    error_of,
    part_frame,
    read_out,
    score_call,
    score_frame,
)

IDS = st.lists(st.integers(0, 150_000), max_size=6).map(tuple)


def through(frame: Frame) -> Frame:
    """As it comes out at the other end."""
    data = b"".join(bytes(buffer) for buffer in encode(frame))
    size, _ = LENGTHS.unpack(data[: LENGTHS.size])
    return decode(data[LENGTHS.size :][:size], data[LENGTHS.size + size :])


@settings(max_examples=60, deadline=None)
@given(
    IDS,
    st.lists(st.tuples(IDS, IDS, st.lists(IDS, max_size=3).map(tuple)), max_size=5),
    st.booleans(),
    st.lists(IDS, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
)
def test_a_request_arrives_whole(
    context: tuple[int, ...],
    rows: list[tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]],
    shared: bool,
    texts: tuple[tuple[int, ...], ...],
    shared_texts: bool,
    flag: bool,
) -> None:
    items = tuple(item for item, _, _ in rows)
    labels = ((1, 2),) * len(items) if shared else tuple(labels for _, labels, _ in rows)
    continuations = (texts,) * len(items) if shared_texts else tuple(own for _, _, own in rows)
    request = ScoreRequest(mode="extend" if flag else "auto", apply_softmax=flag, label_mass=not flag)
    encoded = Encoded(request, context, items, labels, continuations, 7)
    call = ScoreCall(encoded, "tenant", -3, "ctx-1" if flag else None, flag)
    assert score_call(through(score_frame(5, call))) == call


def test_an_answer_arrives_whole() -> None:
    best = np.arange(6, dtype=np.float32).reshape(2, 3)
    read = ReadOut(np.random.default_rng(0).normal(size=3).astype(np.float32), np.arange(3, dtype=np.float32), best)
    info = RunInfo("m", "extend", "because", Usage(5, 2, 3), Timings(1.0, 2.0, 3.0, 4.0, 1.1, 0))
    back, same = answered(through(answer_frame(1, read, info)))
    assert same == info
    assert np.array_equal(back.logits, read.logits)
    assert np.array_equal(back.logsumexp, read.logsumexp)
    assert np.array_equal(back.best, best)  # type: ignore[arg-type]
    part = through(part_frame(1, 4, 7, read))
    assert (part.fields["first"], part.fields["last"]) == (4, 7)
    assert np.array_equal(read_out(part).logits, read.logits)


@pytest.mark.parametrize(
    "error",
    [
        RequestError("invalid_mode", "mode must be one of", "mode"),
        TooLong("the query has 9 tokens; the limit is 8", "query"),
        DoesNotFit("needs 3 GiB; there are 2", "items"),
        ContextNotFound("context 'x' is unknown"),
    ],
)
def test_an_error_keeps_its_kind_and_words(error: Exception) -> None:
    back = error_of(through(error_frame(1, error)))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_defect_tells_no_internals() -> None:
    back = error_of(through(error_frame(1, ValueError("secret path"))))
    assert "secret" not in str(back)
    assert "ValueError" in str(back)
