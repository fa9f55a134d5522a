"""Bytes add up, weights and pool are counted once, and limits are where the engine's rules refuse."""

from dataclasses import replace

import pytest

from capacity.deployments import deployed, work_of
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.memory import as_compiled, estimated, limits
from onepass.engine.programs.builder import Program
from onepass.errors import ConfigError, DoesNotFit
from onepass.models.known import known_config

STEP, VOCABULARY, COPY = Program("step", 2048), Program("vocabulary", 2048, 64), Program("copy")


def test_weights_and_pool_that_several_programs_take_are_there_once() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    weights, pool = deployment.parts.cost.weight_bytes, deployment.parts.pool_bytes
    compiled = [
        Compiled(STEP, arguments=weights + pool + 30, outputs=4, temporaries=100, code=1),
        Compiled(VOCABULARY, arguments=weights + 5, outputs=7, temporaries=50, code=2),
        Compiled(COPY, arguments=pool + 2, outputs=0, temporaries=3, code=4),
    ]
    found = as_compiled(deployment, compiled)
    assert (found.weights, found.pool, found.temporaries, found.other) == (weights, pool, 100, 34 + 7)
    assert found.total == weights + pool + 141
    assert found.fits


def test_a_pool_that_a_program_copies_is_seen() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    weights, pool = deployment.parts.cost.weight_bytes, deployment.parts.pool_bytes
    found = as_compiled(deployment, [Compiled(STEP, arguments=weights + pool, outputs=pool)])
    assert found.total == weights + 2 * pool


def test_one_byte_too_many_does_not_fit() -> None:
    exact = estimated(deployed("qwen3-0.6b", "v6e"))
    full = replace(exact, available=exact.total)
    assert full.fits
    assert not replace(full, pool=full.pool + 1).fits


def test_the_estimate_is_the_one_by_which_the_engine_refuses_to_start() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    needed = estimated(deployment).total

    def with_memory(size: int) -> Deployment:
        return replace(deployment, engine=replace(deployment.engine, memory_bytes=size))

    with_memory(needed).parts.check_memory()
    with pytest.raises(ConfigError, match="GiB"):
        with_memory(needed - 1).parts.check_memory()


def test_the_longest_context_is_the_longest_that_the_engine_accepts() -> None:
    """A model that takes a million positions, and no cache beside the pages to work with."""
    deployment = deployed(replace(known_config("qwen3-0.6b"), max_position=1 << 20), "v6e", cache_bytes=0)
    found = limits(deployment, work_of("qwen3-0.6b", items=4))
    assert found.context_limited_by == "the pool of pages"
    deployment.rehearse(work_of("qwen3-0.6b", query=found.context, items=4))
    with pytest.raises(DoesNotFit, match="pool of pages"):
        deployment.rehearse(work_of("qwen3-0.6b", query=found.context + 1, items=4))


def test_a_small_model_is_limited_by_its_positions() -> None:
    found = limits(deployed("qwen3-0.6b", "v6e"), work_of("qwen3-0.6b"))
    assert (found.context, found.context_limited_by) == (40_940, "the model's positions")


def test_a_step_takes_as_many_items_as_the_scheduler_puts_in_one() -> None:
    deployment, work = deployed("qwen3-0.6b", "v6e"), work_of("qwen3-0.6b", "many")
    found = limits(deployment, work)
    steps = [step for step, _ in deployment.rehearse(work).steps]
    assert max(step.readouts for step in steps) == found.items_a_step == found.tokens_a_step // 20


def test_more_memory_keeps_more_contexts() -> None:
    work = work_of("qwen3-0.6b")
    small, large = (limits(deployed("qwen3-0.6b", name), work).cached_contexts for name in ("v5e", "v6e"))
    assert 0 < small < large
