"""The ladder of padded sizes: what it holds, how much it wastes, and how few rungs it has."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.api import ScoreRequest
from onepass.attention.base import RowShape
from onepass.engine.buckets import bucket, holds, power_rung, prefix_rung, token_rung
from onepass.engine.config import Device, EngineConfig, for_device
from onepass.engine.encode import Encoder
from onepass.engine.plan import Plan, Planner
from onepass.engine.work import Work
from onepass.models.known import known_config

MOST = 40_000
LADDERS: dict[str, Callable[[int], int]] = {"tokens": token_rung, "prefix": prefix_rung, "power": power_rung}

# figures.md: (query tokens, items, tokens an item)
WORKLOADS = {
    "contract": (2000, 500, 20),
    "small": (512, 64, 20),
    "track_low": (183, 16, 26),
    "track_mean": (420, 96, 55),
    "track_high": (483, 128, 63),
    "home_low": (155, 8, 30),
    "home_mean": (275, 34, 50),
    "home_high": (2375, 256, 70),
    "linkedin": (120, 10, 180),
}
DEVICES = {
    "cpu": Device("cpu", 16 << 30, 3e11, 3e10, 5e-4),
    "gpu": Device("gpu", 140 << 30, 5e14, 3.5e12, 5e-4),
}


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_every_rung_holds_its_count_and_is_its_own_rung(ladder: Callable[[int], int]) -> None:
    rungs = [ladder(count) for count in range(MOST)]
    assert rungs[0] == 0
    assert all(rung >= count for count, rung in enumerate(rungs))
    assert rungs == sorted(rungs)
    assert all(ladder(rung) == rung for rung in set(rungs))


def test_token_rungs_waste_at_most_a_quarter_from_64_tokens_on() -> None:
    over = [token_rung(count) / count for count in range(64, MOST)]
    assert max(over) <= 1.25
    assert np.mean(over) <= 1.13


def test_prefix_rungs_waste_at_most_half_from_64_tokens_on() -> None:
    assert max(prefix_rung(count) / count for count in range(64, MOST)) <= 1.5


def test_rungs_are_few_and_of_a_multiple_that_hardware_likes() -> None:
    rungs = {token_rung(count) for count in range(1, MOST)}
    assert len(rungs) <= 4 * 12
    assert all(rung % 16 == 0 for rung in rungs)


SHAPES = st.builds(
    RowShape,
    rows=st.integers(1, 32),
    prefix=st.integers(0, 5000),
    context=st.integers(0, 5000),
    items=st.integers(0, 20_000),
    band=st.integers(0, 600),
    readouts=st.integers(1, 5000),
    labels=st.integers(1, 300),
)


@given(SHAPES)
def test_a_bucket_holds_what_it_was_made_for(needed: RowShape) -> None:
    # No family is longer than the row that holds it.
    needed = replace(needed, band=min(needed.band, needed.items))
    shape = bucket(needed)
    assert holds(shape, replace(needed, prefix=shape.prefix))
    assert shape.prefix >= needed.prefix
    assert shape.tokens > 0
    assert bucket(shape) == shape


@given(SHAPES, st.sampled_from(["rows", "context", "items", "band", "readouts", "labels", "prefix"]))
def test_a_larger_need_never_fits_a_bucket_that_is_too_small(needed: RowShape, name: str) -> None:
    shape = bucket(needed)
    assert not holds(shape, replace(shape, **{name: getattr(shape, name) + 1}))


def plan_of(workload: tuple[int, int, int], device: Device, mode: str, varied: bool) -> tuple[Plan, Work, int]:
    config = known_config("qwen3-0.6b")
    work = Work(config, 2)
    decided = for_device(EngineConfig(dense="xla", band="xla"), device, sixteen_bit=True, head_dim=64)
    query, count, length = workload
    random = np.random.default_rng(0)
    lengths = random.integers(length // 2, 3 * length // 2 + 1, count) if varied else np.full(count, length)
    request = ScoreRequest(
        query=[1] * query,
        items=[[2] * int(n) for n in lengths],
        label_token_ids=[1, 2],
        mode=mode,  # type: ignore[arg-type]
    )
    encoded = Encoder(None, config.vocab_size, config.max_position).encode(request)
    assert decided.max_batch_tokens is not None
    return Planner(decided, device, work).plan(encoded), work, decided.max_batch_tokens


def padding_ratio(workload: tuple[int, int, int], device: Device, mode: str, varied: bool) -> float:
    """Work done in buckets over work needed, as a result's timings count it: a band is the algorithm's, not padding."""
    plan, work, most = plan_of(workload, device, mode, varied)
    shapes = [row.needs for row in plan.rows]
    if plan.prefill:
        shapes += [
            RowShape(1, start, min(most, workload[0] - start), 0, 0, 1, 1) for start in range(0, workload[0], most)
        ]
    padded = [bucket(shape) for shape in shapes]
    needed = [
        work.flops(s.prefix, s.context, s.items, 2 * min(p.band, p.items)) for s, p in zip(shapes, padded, strict=True)
    ]
    return sum(map(work.shape_flops, padded)) / sum(needed)


@pytest.mark.parametrize("varied", [False, True], ids=["even", "varied"])
@pytest.mark.parametrize("mode", ["auto", "extend", "packed", "chunked"])
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_padding_costs_at_most_15_percent_over_the_listed_workloads(device: Device, mode: str, varied: bool) -> None:
    ratios = {name: padding_ratio(workload, device, mode, varied) for name, workload in WORKLOADS.items()}
    assert min(ratios.values()) >= 1.0
    assert np.mean(list(ratios.values())) <= 1.15, ratios
