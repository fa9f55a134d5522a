"""Mixed traffic: which requests are sent, by how many clients and for how long, and the arithmetic that they need.

Driving an engine is `offline.test_mixed`, driving a server is `online.test_mixed`.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onepass.bench.mixed import KINDS, MixedStream, RequestSizes, Traffic
from onepass.bench.roofline import cost_model_of, needed, traffic_needed
from onepass.bench.workloads import Shape, make_workload
from onepass.errors import ConfigError

VOCABULARY = 49152
FITTING = ("tiny", "small", "labels", "branches")  # within the 1,024 positions of the tiny checkpoints
CONFIG = {
    "architecture": "llama", "vocab_size": 1000, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 16, "mlp_size": 128, "max_position": 4096, "rms_eps": 1e-6, "tied": True, "rope": {"theta": 1e4},
    "split": {},
}  # fmt: skip


def test_kinds_come_by_their_weights_and_within_their_ranges() -> None:
    """The figures of tools/mixed_traffic.py, which is the traffic that was agreed on."""
    assert {name: kind.weight for name, kind in KINDS.items()} == {
        "tiny": 2, "small": 6, "mid": 3, "large": 1, "labels": 1, "branches": 1,
    }  # fmt: skip
    stream = MixedStream(VOCABULARY, 1)
    sizes = [stream.sizes(number) for number in range(4000)]
    counts = Counter(one.kind for one in sizes)
    for name, kind in KINDS.items():
        assert counts[name] / 4000 == pytest.approx(kind.weight / 14, abs=0.02)
        those = [one for one in sizes if one.kind == name]
        for found, (low, high) in (
            ([one.query for one in those], kind.query),
            ([len(one.items) for one in those], kind.items),
            ([length for one in those for length in one.items], kind.item_tokens),
            ([one.labels for one in those], kind.labels),
        ):
            assert low <= min(found)
            assert max(found) <= high
            assert max(found) - min(found) >= 0.8 * (high - low), "the whole range comes"
    branches = [one for one in sizes if one.kind == "branches"]
    assert {len(one.continuations) for one in branches} == {1, 2, 3, 4, 5}
    assert {length for one in branches for length in one.continuations} == set(range(1, 10))
    assert 0.4 < np.mean([one.softmax for one in sizes if one.labels]) < 0.6


def test_a_request_is_the_same_under_its_number_and_of_the_sizes_that_were_told() -> None:
    stream, again = MixedStream(VOCABULARY, 1), MixedStream(VOCABULARY, 1)
    for number in (0, 5, 5, 77, 3):
        one = stream.request(number)
        assert one == again.request(number)
        items: Any = one.request.items
        query: Any = one.request.query
        assert one.sizes == stream.sizes(number)
        assert (len(query), tuple(map(len, items))) == (one.sizes.query, one.sizes.items)
        ids = [*query, *(token for item in items for token in item)]
        assert len(set(ids)) > 0.97 * len(ids), "distinct, but where two permutations of the vocabulary meet"
    assert stream.checksum == again.checksum
    assert (
        len({stream.checksum, MixedStream(VOCABULARY, 2).checksum, MixedStream(VOCABULARY, 1, FITTING).checksum}) == 3
    )


def test_no_two_queries_begin_alike() -> None:
    """Shared tokens would be a context hit."""
    stream = MixedStream(VOCABULARY, 0)
    begun = [tuple(stream.request(number).request.query[:8]) for number in range(500)]  # type: ignore[index]
    assert len(set(begun)) == 500


def test_kinds_can_be_chosen_and_mistakes_are_told() -> None:
    assert {MixedStream(600, 0, ("tiny", "mid")).sizes(n).kind for n in range(50)} == {"tiny", "mid"}
    assert MixedStream(600, 0, ("tiny", "mid")).name == "mixed:tiny+mid"
    with pytest.raises(ConfigError, match=r"kinds must be some of tiny, small, .*; got huge"):
        MixedStream(600, 0, ("huge",))


def test_clients_and_seconds_are_decided_by_the_platform() -> None:
    assert Traffic.decide("cpu", None, None, None, ()) == Traffic(8, 120.0)
    assert Traffic.decide("gpu", None, None, None, ()) == Traffic(16, 30.0)
    assert Traffic.decide("gpu", 64, None, 100, ["tiny"]) == Traffic(64, None, 100, ("tiny",))


def test_traffic_needs_the_arithmetic_of_its_requests_and_the_weights_once() -> None:
    work = cost_model_of(CONFIG, "float32")
    workload = make_workload("one", Shape(100, 5, 20, 20), 1000)
    alike = RequestSizes("small", 100, (20,) * 5, 2, False, ())
    alone = needed(work, workload)
    assert traffic_needed(work, [alike]) == alone
    twice = traffic_needed(work, [alike, alike])
    assert twice.flops == pytest.approx(2 * alone.flops)
    assert twice.bytes == pytest.approx(2 * alone.bytes - work.weight_bytes)
    longer = replace(alike, labels=0, continuations=(1, 3))
    more = traffic_needed(work, [longer]).flops - alone.flops
    tokens = 5 * 2 * (work.flops_per_token + 2.0 * 64 * 1000)  # two tokens and two read-outs an item
    assert tokens < more < 1.5 * tokens
    assert traffic_needed(work, [replace(longer, continuations=(1, 1))]).flops == pytest.approx(alone.flops)
