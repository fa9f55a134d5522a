"""Bytes add up, contexts are counted once, and limits are where the engine's planner refuses."""

from dataclasses import replace

from capacity.deployments import deployed, work_of
from onepass.attention.base import RowShape
from onepass.capacity.compiler import Compiled
from onepass.capacity.footprint import as_compiled, estimated, limits
from onepass.engine.lowering import Program

PREFILL = Program("prefill", RowShape(1, 0, 2048, 0, 0, 1, 4), "cascade", 2048)
SCORE = Program("score", RowShape(1, 2048, 0, 10240, 32, 512, 4), "cascade")


def test_a_context_that_one_program_gives_and_another_takes_is_there_once() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    weights, context = deployment.share.work.weight_bytes, deployment.share.work.context_bytes(2048)
    compiled = [
        Compiled(PREFILL, arguments=weights + 5, outputs=context + 7, temporaries=100, code=1),
        Compiled(SCORE, arguments=weights + context + 30, outputs=4, temporaries=50, code=2),
    ]
    found = as_compiled(deployment, compiled, context)
    assert (found.weights, found.contexts, found.temporaries, found.other) == (weights, context, 100, 34 + 3)
    assert found.total == weights + context + 137
    assert found.fits


def test_one_byte_too_many_does_not_fit() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    exact = estimated(deployment, [PREFILL, SCORE], 0)
    full = replace(exact, available=exact.total)
    assert full.fits
    assert not replace(full, contexts=full.contexts + 1).fits


def test_the_longest_context_is_the_longest_that_the_engine_accepts() -> None:
    """Qwen3-8B on a card of 32 GB: weights leave little, and memory ends before the model's positions do."""
    deployment = deployed("qwen3-8b", "rtx-5090", mode="extend")
    work = work_of("qwen3-8b", query=64, items=4)
    found = limits(deployment, deployment.rehearse(work), work)
    assert found.context_limited_by == "memory"
    assert 64 < found.context < 40_940

    def fits(query: int) -> bool:
        rehearsed = deployment.rehearse(work_of("qwen3-8b", query=query, items=4))
        return estimated(deployment, rehearsed.programs, rehearsed.context_bytes).fits

    assert fits(found.context)
    assert not fits(found.context + 1)


def test_a_small_model_is_limited_by_its_positions() -> None:
    deployment, work = deployed("qwen3-0.6b", "v6e"), work_of("qwen3-0.6b")
    found = limits(deployment, deployment.rehearse(work), work)
    assert (found.context, found.context_limited_by) == (40_940, "the model's positions")


def test_more_memory_holds_more_items_in_a_step() -> None:
    work = work_of("qwen3-0.6b")
    small, large = (
        limits(deployment, deployment.rehearse(work), work).items_a_step
        for deployment in (deployed("qwen3-0.6b", "v5e"), deployed("qwen3-0.6b", "v6e"))
    )
    assert 500 < small < large


def test_a_request_has_any_number_of_items_unless_it_must_be_one_row() -> None:
    """And a dense mask, which is quadratic, holds far fewer of them."""
    work = work_of("qwen3-0.6b", "small")
    found = {}
    for mode, mask in (("auto", "auto"), ("packed", "segment"), ("packed", "dense")):
        deployment = deployed("qwen3-0.6b", "v6e", mode=mode, mask=mask)
        found[mode, mask] = limits(deployment, deployment.rehearse(work), work)
    assert found["auto", "auto"].items is None
    segment, dense = found["packed", "segment"].items, found["packed", "dense"].items
    assert segment is not None
    assert dense is not None
    assert 64 <= dense < segment / 10
