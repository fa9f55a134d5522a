"""Which mode runs and why, and the sequences that each mode makes of a request; what cannot fit is refused before."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiny import QUERY, Tiny, tokens
from onepass.api import ScoreRequest
from onepass.engine.config import EngineConfig
from onepass.engine.cost_model import CostModel
from onepass.engine.encoding.encode import Encoder
from onepass.engine.encoding.segments import FROM_CONTEXT, FamilyLimit
from onepass.engine.planner import Plan, Planner
from onepass.engine.programs.ladder import ladder
from onepass.errors import ConfigError, DoesNotFit
from onepass.models.known import known_config
from onepass.models.quantize import in_eight_bits
from onepass.models.weights import abstract, is_leaf

MODEL = known_config("qwen3-0.6b")
LIMIT = FamilyLimit(256, 64)
WAYS = ("serial", "packed", "chunked", "extend")


def plan_of(
    query: int,
    lengths: list[int],
    cached: int = 0,
    options: dict[str, Any] | None = None,
    pool_tokens: int = 100_000,
    **fields: Any,
) -> Plan:
    request = ScoreRequest(
        **{"label_token_ids": [1, 2], **fields}, query=list(range(query)), items=[[2] * n for n in lengths]
    )
    encoded = Encoder(None, MODEL.vocab_size, MODEL.max_position).encode(request)
    return Planner(EngineConfig(**(options or {})), LIMIT, pool_tokens).plan(encoded, cached)


@pytest.mark.parametrize("mode", WAYS)
def test_a_forced_mode_is_the_mode_that_runs(mode: str) -> None:
    for plan in (plan_of(100, [5] * 10, mode=mode), plan_of(100, [5] * 10, options={"mode": mode})):
        assert plan.mode == mode
        assert plan.reason.startswith(f"{mode} was asked for")


def test_a_request_decides_over_the_engines_mode() -> None:
    assert plan_of(100, [5], mode="extend", options={"mode": "serial"}).mode == "extend"


def test_auto_takes_one_pass_for_a_cold_request_and_extends_a_cached_one() -> None:
    cold, partly, cached = (plan_of(200, [20] * 8, cached=count) for count in (0, 150, 200))
    assert (cold.mode, partly.mode, cached.mode) == ("packed", "packed", "extend")
    assert "context not cached" in cold.reason
    assert "150 of 200 context tokens cached" in partly.reason
    assert cached.reason == "all 200 context tokens are cached"


@pytest.mark.parametrize(("mask", "named"), [("dense", "dense"), ("segment", "segment"), ("auto", "segment")])
def test_a_packed_request_says_its_mask(mask: str, named: str) -> None:
    assert plan_of(100, [5], mode="packed", options={"mask": mask}).reason.endswith(f"; mask {named}")


def test_serial_makes_one_plain_sequence_of_each_item() -> None:
    plan = plan_of(10, [3, 0, 5], mode="serial")
    assert plan.alone
    assert [s.length for s in plan.sequences] == [13, 10, 15]
    assert [s.read_positions.tolist() for s in plan.sequences] == [[12], [9], [14]]
    assert not any(s.keep or s.base or s.last > s.first for s in plan.sequences)


def test_serial_gives_every_continuation_a_sequence_of_its_own() -> None:
    plan = plan_of(10, [3, 0], mode="serial", continuations=[[1, 2, 3], [4]])
    assert [s.length for s in plan.sequences] == [15, 13, 12, 10]


def test_chunks_hold_at_most_their_size() -> None:
    plan = plan_of(10, [3] * 70, mode="chunked", options={"chunk_size": 32})
    assert [s.last - s.first for s in plan.sequences] == [32, 32, 6]
    assert all(s.length == len(s.tokens) == 10 and not s.keep for s in plan.sequences)


@pytest.mark.parametrize("mode", ["packed", "extend"])
def test_a_shared_context_is_one_sequence_with_all_items_and_is_kept(mode: str) -> None:
    plan = plan_of(10, [30] * 7, mode=mode)
    (sequence,) = plan.sequences
    assert (sequence.length, sequence.first, sequence.last, sequence.keep) == (10, 0, 7, True)
    assert plan.apart == (mode == "extend"), "items of a packed request are in the context's own step"


def test_extend_batch_size_bounds_the_items_of_a_step() -> None:
    plan = plan_of(10, [3] * 10, mode="extend", options={"extend_batch_size": 4})
    assert (plan.max_families, plan.alone) == (4, True)


def test_items_longer_than_a_step_are_plain_sequences_after_the_context() -> None:
    plan = plan_of(10, [3, 300, 5, 2, 400, 0], mode="packed")
    assert [(s.length, s.base, s.first, s.last, s.keep) for s in plan.sequences] == [
        (10, 0, 0, 1, True),
        (10, 10, 2, 4, False),
        (10, 10, 5, 6, False),
        (310, 10, 0, 0, False),
        (410, 10, 0, 0, False),
    ]
    assert [s.read_positions.tolist() for s in plan.sequences[3:]] == [[309], [409]]


def test_items_that_are_all_longer_than_a_step_still_share_their_context() -> None:
    plan = plan_of(10, [300, 300], mode="extend")
    assert [(s.length, s.base, s.keep) for s in plan.sequences] == [(10, 0, True), (310, 10, False), (310, 10, False)]


def test_a_long_continuation_of_an_empty_item_is_read_from_the_contexts_last_token_on() -> None:
    """Which is computed again: only its keys are kept."""
    plan = plan_of(10, [0], mode="packed", continuations=[list(range(100))])
    assert [(s.length, s.base) for s in plan.sequences] == [(10, 0), (109, 9)]
    assert plan.sequences[1].read_positions.tolist() == list(range(9, 109))


@pytest.mark.parametrize("mode", ["packed", "chunked", "extend"])
def test_items_alone_have_no_context_to_keep(mode: str) -> None:
    plan = plan_of(10, [5, 6], mode=mode, item_first=True)
    assert not any(s.keep or s.length for s in plan.sequences)
    assert len(plan.segments.tokens) == 31


def test_no_items_are_no_sequences() -> None:
    assert [plan_of(10, [], mode=mode).sequences for mode in WAYS] == [[], [], [], []]


LENGTHS = st.lists(st.one_of(st.integers(0, 30), st.sampled_from([0, 255, 256, 257, 700])), max_size=20)
TEXTS = st.none() | st.lists(st.integers(1, 90).map(lambda n: [3] * n), min_size=1, max_size=4)


@given(st.integers(1, 300), LENGTHS, TEXTS, st.sampled_from(WAYS), st.integers(1, 9), st.booleans())
def test_every_read_out_is_made_once_and_families_fit_a_step(
    query: int, lengths: list[int], texts: list[list[int]] | None, mode: str, chunk: int, item_first: bool
) -> None:
    plan = plan_of(query, lengths, mode=mode, continuations=texts, options={"chunk_size": chunk}, item_first=item_first)
    segments, seen = plan.segments, []
    for number, sequence in enumerate(plan.sequences):
        assert not sequence.base or number, "the first sequence is what others begin with"
        assert sequence.base <= plan.sequences[0].length
        families = range(sequence.first, sequence.last)
        for family in families:
            first, last = segments.readout_starts[[family, family + 1]]
            seen += range(first, last)
            assert segments.family_tokens()[family] <= LIMIT.tokens
            assert last - first <= LIMIT.readouts
        seen += range(sequence.first_read, sequence.first_read + len(sequence.read_positions))
        assert not (families and len(sequence.read_positions))
        assert (np.diff(sequence.read_positions) > 0).all()
        assert (sequence.read_positions >= sequence.base).all(), "read where something is computed"
        assert (sequence.read_positions < sequence.length).all()
    assert sorted(seen) == list(range(len(segments.readouts)))
    if item_first:
        assert FROM_CONTEXT not in segments.readouts


def test_a_sequence_that_the_pool_cannot_hold_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="a sequence of 510 tokens does not fit the pool of pages, which holds 500"):
        plan_of(500, [10], pool_tokens=500, mode="serial")
    assert plan_of(500, [10], pool_tokens=500, mode="extend").sequences


def test_a_scorer_with_no_memory_is_refused_at_once(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match=r"weights, pool and a step of 256 tokens need about .* there are 0\.00 GiB"):
        tiny.scorer(memory_bytes=1000)


def test_a_context_longer_than_the_pool_is_refused_and_the_scorer_lives(tiny: Tiny) -> None:
    planner = tiny.scorer().engine.planner
    small = replace(planner, pool_tokens=100)
    with pytest.raises(DoesNotFit, match="holds 100"):
        small.prefill(tuple(tokens(101, 1)))
    (sequence,) = small.prefill(tuple(QUERY)).sequences
    assert (sequence.keep, sequence.length) == (True, 20)


def test_estimates_grow_with_the_work() -> None:
    cost = CostModel(MODEL, 2)
    least = cost.flops(1000, 100, 100, 10)
    assert all(cost.flops(*more) > least for more in ((2000, 100, 100, 10), (1000, 200, 100, 10), (1000, 100, 200, 10)))
    small, large = ladder(2048, (512,), 128, 128, 4096).shapes[:2]
    for dense in (False, True):
        assert cost.step_bytes(large, dense) > cost.step_bytes(small, dense)
    assert cost.weight_bytes == 2 * MODEL.num_parameters
    assert cost.page_bytes(128) == 128 * MODEL.kv_bytes_per_token(2)


@pytest.mark.parametrize("eight_bit", [False, True], ids=["16 bits", "8 bits"])
def test_weights_take_the_bytes_that_they_have(eight_bit: bool) -> None:
    """Within the scales of weights in 8 bits and the norms, which are few."""
    weights = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract(MODEL), is_leaf=is_leaf
    )
    if eight_bit:
        weights = jax.eval_shape(in_eight_bits, weights)
    there = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    assert CostModel.of(MODEL, weights).weight_bytes == pytest.approx(there, rel=0.01)
