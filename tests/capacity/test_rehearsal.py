"""The rehearsal takes the steps that the engine takes: the same programs, in the same order, for every mode."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from capacity.deployments import deployed, work_of
from onepass.bench.workloads import Shape, Workload, make_workload
from onepass.capacity import dry_run as rehearsal
from onepass.capacity.dry_run import DryRunner, rehearse
from onepass.engine import engine as engine_module
from onepass.engine.config import EngineConfig
from onepass.engine.parts import EngineParts
from onepass.engine.programs.builder import Program
from onepass.errors import DoesNotFit, TooLong
from onepass.loading.model import open_model
from onepass.scorer import Scorer


def called_by_the_engine(scorer: Scorer, workload: Workload) -> list[Program]:
    """The programs that a real engine calls, of the second time where a workload is cached."""
    requests = [replace(request.request, label_token_ids=list(rehearsal.LABELS)) for request in workload.requests]
    (engine,) = scorer.engines
    assert isinstance(engine.runner, DryRunner)
    for _ in range(1 + workload.cached):
        engine.runner.called.clear()
        engine.score(requests)
    return engine.runner.called


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({"mode": "serial"}, False),
        ({"mode": "packed", "mask": "segment"}, False),
        ({"mode": "packed", "mask": "dense"}, False),
        ({"mode": "chunked", "chunk_size": 4}, False),
        ({"mode": "extend", "max_batch_tokens": 64}, False),
        ({"mode": "auto"}, True),
    ],
    ids=lambda value: value.get("mode", "") if isinstance(value, dict) else f"cached={value}",
)
def test_the_rehearsal_takes_the_engines_steps(
    options: dict[str, Any], cached: bool, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is whole, its thread included; only its programs are not run."""
    monkeypatch.setattr(engine_module, "Runner", lambda builder, store: DryRunner(builder))
    model = open_model(str(checkpoint("llama3")))
    weights = model.load(jnp.dtype("float32"))
    workload = make_workload("tiny", Shape(40, 10, 3, 20, cached), model.config.vocab_size, in_flight=2)
    with Scorer(model, weights, EngineConfig(keep_programs=False, **options)) as scorer:
        kernels, device = scorer.kernels, scorer.engines[0].device
        rehearsed = rehearse(
            EngineParts(model.config, weights, kernels.config, device, kernels.attention, kernels.ops), workload
        )
        expected = [program for step, count in rehearsed.steps for _ in range(count) for program in step.programs]
        assert sorted(map(str, expected)) == sorted(map(str, called_by_the_engine(scorer, workload)))


def test_ten_thousand_items_are_steps_of_bounded_size() -> None:
    rehearsed = deployed("qwen3-0.6b", "v6e").rehearse(work_of("qwen3-0.6b", "many"))
    counts = [(step.tokens, step.shape.tokens, step.readouts, n) for step, n in rehearsed.steps]
    assert counts == [(16380, 16384, 719, 1), (16380, 16384, 819, 11), (5440, 8192, 272, 1)]
    assert {step.pages for step, _ in rehearsed.steps} == {16}, "each step sees the context, in pages of 128"


def test_a_step_says_what_it_computes() -> None:
    """Real tokens, and with the padding that is computed: of a Hopper GPU to the next 128, of XLA the whole rung."""
    steps = {}
    for target in ("h200", "v6e"):
        ((steps[target], _),) = deployed("qwen3-0.6b", target).rehearse(work_of("qwen3-0.6b")).steps
    assert steps["h200"].tokens == steps["v6e"].tokens == 12_000
    assert (steps["h200"].computed_tokens, steps["v6e"].computed_tokens) == (12_032, 16_384)
    assert steps["h200"].flops == steps["v6e"].flops


def test_requests_in_flight_share_steps() -> None:
    work = work_of("qwen3-0.6b", "home_low")
    several = make_workload("home_low", Shape(155, 8, 30, 30), 1000, in_flight=4)
    deployment = deployed("qwen3-0.6b", "h200")
    assert [n for _, n in deployment.rehearse(work).steps] == [1]
    ((step, count),) = deployment.rehearse(several).steps
    assert (step.tokens, count) == (4 * (155 + 8 * 30), 1)


def test_what_the_engine_would_refuse_is_refused() -> None:
    with pytest.raises(TooLong, match="40,960"):
        deployed("qwen3-0.6b", "v6e").rehearse(work_of("qwen3-0.6b", query=50_000))
    few_pages = deployed("qwen3-0.6b", "v6e", max_batch_tokens=128, cache_bytes=0)
    with pytest.raises(DoesNotFit, match="pool of pages"):
        few_pages.rehearse(work_of("qwen3-0.6b", query=20_000, items=1))
    few_pages.with_larger_pool().rehearse(work_of("qwen3-0.6b", query=20_000, items=1))
