"""Mixed traffic over HTTP: bodies of the stream's requests, and a real server driven with them."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.test_mixed import FITTING
from onepass.bench.mixed import MixedStream, fields_of
from onepass.bench.online.mixed import MixedOptions, MixedRequests
from onepass.bench.online.requests import MixPart
from onepass.bench.online.run import HttpPlan, bench_http
from onepass.bench.online.server import own_server
from onepass.bench.workloads import Shape


def test_over_http_a_body_asks_for_what_the_stream_says() -> None:
    requests = MixedRequests(MixedStream(600, 2, FITTING))
    for number in range(20):
        prepared, one = requests.prepare(number), requests.stream.request(number)
        assert (prepared.part, prepared.num_items) == (one.kind, len(one.sizes.items))
        assert json.loads(prepared.body) == fields_of(one.request)
        some = json.loads(requests.serial(number, [0]))
        assert some == {**fields_of(one.request), "items": [one.request.items[0]], "mode": "serial"}


def test_a_server_is_driven_with_mixed_traffic(checkpoint: Callable[[str], Path]) -> None:
    options = MixedOptions((2,), 60.0, 24, FITTING, roof_tflops=0.05)
    small = MixPart("small", Shape(40, 8, 6, 6))
    with own_server(str(checkpoint("qwen3")), ["--dtype", "float32"], {**os.environ, "JAX_PLATFORMS": "cpu"}) as server:
        plan = HttpPlan(server.url, (small,), seconds=2.0, mixed=options)
        row, alone = asyncio.run(bench_http(plan, None, lambda row: None)).rows
    assert row.void == []
    assert (row.workload, row.mode, row.purpose) == ("mixed:tiny+small+labels+branches", "http-closed-2", "modes")
    assert (row.requests, row.repeats, row.num_errors, row.compilations) == (24, 24, 0, 0)
    stream = MixedStream(600, 0, FITTING)
    assert row.tokens == sum(stream.sizes(number).tokens for number in range(24))
    assert row.parts.keys() == {stream.sizes(number).kind for number in range(24)}
    assert row.reached["fraction"] == pytest.approx(row.reached["tflops"] / 0.05)
    assert row.checked_items >= len(row.parts)
    assert row.max_difference is not None
    assert row.max_difference < 1e-5
    assert (alone.workload, alone.purpose, alone.void) == ("small", "alone", [])
    assert row.over_small == pytest.approx(row.tokens_per_second / alone.tokens_per_second)  # type: ignore[operator]
