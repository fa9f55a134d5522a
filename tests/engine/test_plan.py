"""Which mode runs and why; forced modes are honoured or refused; what cannot fit is refused before it runs."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of
from onepass.api import ScoreRequest
from onepass.attention.base import RowShape
from onepass.engine.config import Device, EngineConfig, for_device
from onepass.engine.encode import Encoder
from onepass.engine.plan import Plan, Planner, fill
from onepass.engine.work import Work
from onepass.errors import DoesNotFit
from onepass.models.known import known_config
from onepass.models.quantize import in_eight_bits
from onepass.models.weights import abstract, is_leaf

CPU = Device("cpu", 16 << 30, 3e11, 3e10, 5e-4)
MODEL = known_config("qwen3-0.6b")


def plan_of(
    query: int, lengths: list[int], cached: int = 0, options: dict[str, Any] | None = None, **fields: Any
) -> Plan:
    config = for_device(EngineConfig(**(options or {})), CPU, sixteen_bit=True, head_dim=64)
    request = ScoreRequest(**{"label_token_ids": [1, 2], **fields}, query=[1] * query, items=[[2] * n for n in lengths])
    encoded = Encoder(None, MODEL.vocab_size, MODEL.max_position).encode(request)
    return Planner(config, CPU, Work(MODEL, 2)).plan(encoded, cached)


@pytest.mark.parametrize("mode", ["serial", "packed", "chunked", "extend"])
def test_a_forced_mode_is_the_mode_that_runs(mode: str) -> None:
    for plan in (plan_of(100, [5] * 10, mode=mode), plan_of(100, [5] * 10, options={"mode": mode})):
        assert plan.mode == mode
        assert plan.reason.startswith(f"{mode} was asked for")


def test_a_request_decides_over_the_engines_mode() -> None:
    assert plan_of(100, [5], mode="extend", options={"mode": "serial"}).mode == "extend"


def test_auto_takes_one_pass_for_a_cold_request_and_extends_a_cached_one() -> None:
    cold, cached = plan_of(200, [20] * 8), plan_of(200, [20] * 8, cached=200)
    assert cold.mode == "packed"
    assert "context not cached" in cold.reason
    assert cached.mode == "extend"
    assert "200 of 200 context tokens cached" in cached.reason


def test_auto_extends_what_no_single_step_holds() -> None:
    plan = plan_of(2000, [20] * 500)
    assert plan.mode == "extend"
    assert "packed" not in plan.reason, "one row of 12,000 tokens was not even considered"


def test_auto_names_the_cost_of_each_mode_it_considered() -> None:
    reason = plan_of(200, [20] * 8).reason
    assert all(f"{mode} " in reason for mode in ("packed", "extend", "chunked"))
    assert reason.count(" ms") == 3


def test_auto_never_chooses_serial() -> None:
    assert plan_of(10, [1]).mode != "serial"


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        ({"mask": "dense"}, "dense"),
        ({"mask": "segment"}, "cascade"),
        ({"dense_mask_tokens": 150}, "dense"),
        ({"dense_mask_tokens": 149}, "cascade"),
    ],
)
def test_the_mask_is_as_asked_or_by_its_threshold(options: dict[str, Any], attention: str) -> None:
    plan = plan_of(100, [5] * 10, mode="packed", options=options)
    assert plan.attention == attention
    assert ("was asked for" in plan.reason.partition(";")[2]) == ("mask" in options)


def test_serial_runs_one_sequence_a_row() -> None:
    plan = plan_of(10, [3, 0, 5], mode="serial")
    assert [(len(row.context), row.num_items, row.num_readouts) for row in plan.rows] == [
        (10, 3, 1),
        (10, 0, 1),
        (10, 5, 1),
    ]


def test_serial_gives_every_continuation_a_sequence_of_its_own() -> None:
    plan = plan_of(10, [3, 0], mode="serial", continuations=[[1, 2, 3], [4]])
    assert [row.num_items for row in plan.rows] == [5, 3, 2, 0]


def test_chunks_hold_at_most_their_size() -> None:
    plan = plan_of(10, [3] * 70, mode="chunked", options={"chunk_size": 32})
    assert [row.last - row.first for row in plan.rows] == [32, 32, 6]
    assert all(len(row.context) == 10 for row in plan.rows)


def test_extend_rows_leave_the_context_to_a_prefill() -> None:
    plan = plan_of(10, [30] * 7, mode="extend", options={"max_batch_tokens": 64})
    assert plan.prefill
    assert [(len(row.context), row.prefix, row.last - row.first) for row in plan.rows] == [
        (0, 10, 2),
        (0, 10, 2),
        (0, 10, 2),
        (0, 10, 1),
    ]


def test_extend_batch_size_bounds_the_items_of_a_row() -> None:
    plan = plan_of(10, [3] * 10, mode="extend", options={"extend_batch_size": 4})
    assert [row.last - row.first for row in plan.rows] == [4, 4, 2]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(16, 64), st.none() | st.integers(1, 10))
def test_rows_cover_every_family_once_and_stay_within_bounds(
    lengths: list[int], most: int, most_families: int | None
) -> None:
    rows = fill(np.array(lengths, np.int64), most, most_families)
    covered = [family for first, last in rows for family in range(first, last)]
    assert covered == list(range(len(lengths)))
    for first, last in rows:
        assert sum(lengths[first:last]) <= most or last == first + 1
        assert last - first <= min(most, most_families or most)


def test_a_request_that_cannot_fit_says_what_it_needs_and_what_there_is() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_of(2000, [20] * 500, mode="packed", options={"mask": "dense", "memory_bytes": 2 << 30})
    assert caught.value.code == "does_not_fit"
    assert "mode packed needs about" in str(caught.value)
    assert "there are 2.00 GiB" in str(caught.value)
    assert "12,288 tokens" in str(caught.value) or "10,240" in str(caught.value)


def test_what_does_not_fit_with_a_dense_mask_fits_with_segments() -> None:
    options = {"memory_bytes": 4 << 30}
    with pytest.raises(DoesNotFit):
        plan_of(2000, [20] * 500, mode="packed", options={**options, "mask": "dense"})
    assert plan_of(2000, [20] * 500, mode="packed", options={**options, "mask": "segment"}).rows
    assert plan_of(2000, [20] * 500, mode="extend", options=options).rows


def test_a_scorer_with_no_memory_refuses_and_lives(tiny: Tiny) -> None:
    scorer = tiny.scorer(memory_bytes=1000)
    for mode in ("serial", "packed", "chunked", "extend"):
        with pytest.raises(DoesNotFit, match=rf"mode {mode} needs about .* GiB .* there are 0\.00 GiB"):
            scorer.score_many([tiny.request(QUERY, ITEMS, mode=mode)])
    with pytest.raises(DoesNotFit):
        scorer.prefill(QUERY)


def test_memory_for_one_request_is_enough_for_several_at_once(tiny: Tiny) -> None:
    """A request that fits alone is not refused because its batch mates would fill the memory: fewer share a step."""
    engine = tiny.scorer(mask="dense").engine
    (row,) = engine.planner.plan(engine.encoder.encode(tiny.request(QUERY, ITEMS, mode="packed"))).rows
    work = Work(tiny.model.config, 4)
    shape = RowShape(1, 0, 32, 48, 16, 8, 4)
    assert (len(row.context), row.num_items) == (20, 43)
    enough = work.weight_bytes + 2 * work.step_bytes(shape, dense=True)
    scorer = tiny.scorer(mask="dense", memory_bytes=enough)
    requests = [tiny.request(QUERY, ITEMS, mode="packed") for _ in range(8)]
    for result in scorer.score_many(requests):
        assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_estimates_grow_with_the_work() -> None:
    work = Work(MODEL, 2)
    shape = RowShape(1, 1024, 512, 2048, 64, 64, 4)
    for name in ("rows", "prefix", "context", "items", "band"):
        larger = replace(shape, **{name: 2 * getattr(shape, name)})
        assert work.shape_flops(larger) > work.shape_flops(shape)
    for name in ("rows", "context", "items"):
        larger = replace(shape, **{name: 2 * getattr(shape, name)})
        assert work.step_bytes(larger, dense=True) > work.step_bytes(shape, dense=True)
        assert work.step_bytes(larger, dense=False) > work.step_bytes(shape, dense=False)
    assert work.weight_bytes == 2 * MODEL.num_parameters


@pytest.mark.parametrize("eight_bit", [False, True], ids=["16 bits", "8 bits"])
def test_weights_take_the_bytes_that_they_have(eight_bit: bool) -> None:
    """Within the scales of weights in 8 bits and the norms, which are few."""
    weights = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract(MODEL), is_leaf=is_leaf
    )
    if eight_bit:
        weights = jax.eval_shape(in_eight_bits, weights)
    there = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    assert Work.of(MODEL, weights).weight_bytes == pytest.approx(there, rel=0.01)


def test_serial_reads_only_what_a_plan_of_items_needs() -> None:
    """Read-outs are one an item; a packed row that keeps its context has one more."""
    packed = plan_of(100, [5] * 10, mode="packed", options={"mask": "segment"})
    assert packed.keep
    assert packed.rows[0].needs.readouts == 11
    assert plan_of(100, [5] * 10, mode="extend").rows[0].needs.readouts == 10


def test_items_alone_have_no_context_to_keep_or_prefill() -> None:
    items = items_of([5, 6], 1)
    for mode in ("packed", "chunked", "extend"):
        plan = plan_of(10, [len(item) for item in items], mode=mode, item_first=True)
        assert not plan.prefill
        assert not plan.keep
        assert sum(row.num_items for row in plan.rows) == 31
