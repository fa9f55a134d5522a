"""What engine processes print becomes records of the server's log, whoever printed it."""

import asyncio
import json
import logging

import pytest

from onepass.server.engines.log_relay import LONGEST_LINE, parsed, relay_lines


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ('{"time":"x","level":"error","message":"a step failed"}', logging.ERROR, "a step failed"),
        ("Fatal Python error: Segmentation fault", logging.WARNING, "Fatal Python error: Segmentation fault"),
        ("W0000 00:00:1731.5 42 tsl.cc:8] slow", logging.WARNING, "W0000 00:00:1731.5 42 tsl.cc:8] slow"),
        ("E1116 13:38:29.58 42 gpu.cc:8] lost", logging.ERROR, "E1116 13:38:29.58 42 gpu.cc:8] lost"),
        ("I1116 13:38:29.58 42 gpu.cc:8] found", logging.DEBUG, "I1116 13:38:29.58 42 gpu.cc:8] found"),
        ("WARNING: All log messages before absl::InitializeLog() is called", logging.DEBUG, None),
        ('{"no": "record"}', logging.WARNING, '{"no": "record"}'),
        ("17", logging.WARNING, "17"),
    ],
)
def test_a_line_has_a_level(line: str, level: int, message: str | None) -> None:
    found, text, _ = parsed(line)
    assert (found, text) == (level, message or line)


def test_members_of_a_record_are_kept() -> None:
    line = json.dumps({"time": "x", "level": "error", "message": "m", "traceback": "t", "engine": 7, "stage": "load"})
    assert parsed(line)[2] == {"traceback": "t", "stage": "load"}


def test_every_line_of_a_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def relay(*chunks: bytes) -> None:
        stream = asyncio.StreamReader()
        for chunk in chunks:
            stream.feed_data(chunk)
        stream.feed_eof()
        await relay_lines(stream, 3)

    record = b'{"level":"info","message":"in two\\nparts"}'
    with caplog.at_level(logging.INFO, "onepass.server.engine"):
        asyncio.run(relay(record[:9], record[9:] + b"\n\n", b"bad \xff byte\n", b"the last, without an end"))
    assert [one.getMessage() for one in caplog.records] == ["in two\nparts", "bad � byte", "the last, without an end"]
    assert {one.fields["engine"] for one in caplog.records} == {3}  # type: ignore[attr-defined]


def test_a_line_without_an_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def relay() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(b"x" * (3 * LONGEST_LINE))
        stream.feed_eof()
        await relay_lines(stream, 0)

    asyncio.run(relay())
    assert len(caplog.records) > 1
    assert sum(len(one.getMessage()) for one in caplog.records) == 3 * LONGEST_LINE
