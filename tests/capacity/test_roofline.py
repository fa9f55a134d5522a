"""Arithmetic, traffic and sums of steps; and the assumed efficiency is the one that was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.deployments import deployed, work_of
from onepass.attention.base import StepShape
from onepass.bench.roofline import needed
from onepass.capacity.deployment import Deployment
from onepass.capacity.dry_run import DryStep
from onepass.capacity.latency import predict
from onepass.capacity.roofline import EFFICIENCY, MEASURED_IN, cost_of, fill, least_seconds
from onepass.engine.programs.builder import Program

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
SHAPE = StepShape(16384, 4096, 8192, 2368, 128)
PROGRAMS = (Program("step", 16384), Program("vocabulary", 16384, 512))


def step_of(deployment: Deployment, tokens: int, computed: int | None = None) -> DryStep:
    """Items of so many tokens behind a context of 2,048, read at one in twenty."""
    flops = deployment.share.cost.flops(2048, 0, tokens, 20)
    return DryStep(SHAPE, tokens, computed or tokens, tokens // 20, 16, flops, PROGRAMS)


def test_the_efficiency_is_what_the_stored_run_reached_of_the_h200s_roofline() -> None:
    run = json.loads((RESULTS / MEASURED_IN).read_text(encoding="utf-8"))
    (row,) = [row for row in run["rows"] if row["mode"] == "packed-segment"]
    assert (run["hardware"]["device"], row["dtype"], row["void"]) == ("NVIDIA H200", "bfloat16", [])
    deployment, work = deployed("qwen3-0.6b", "h200"), work_of("qwen3-0.6b")
    assert work.checksum == row["checksum"], "the same tokens"
    least = predict(deployment, deployment.rehearse(work), work.num_items).roofline
    assert pytest.approx(1e3 * least / row["latency_ms"]["p50"], abs=0.001) == EFFICIENCY


def test_steps_do_what_the_request_needs_and_no_more() -> None:
    """Up to the keys of items, of which the engine's model counts all where half are seen."""
    deployment, work = deployed("qwen3-0.6b", "h200"), work_of("qwen3-0.6b")
    done = sum(n * cost_of(deployment.share, step).flops for step, n in deployment.rehearse(work).steps)
    assert done / needed(deployment.share.cost, work).flops == pytest.approx(1, abs=0.01)


def test_padding_is_expected_but_not_in_the_roofline() -> None:
    deployment = deployed("qwen3-0.6b", "v6e")
    exact, padded = step_of(deployment, 10_240), step_of(deployment, 10_240, 16_384)
    assert cost_of(deployment.share, padded) == cost_of(deployment.share, exact)
    more = cost_of(deployment.share, padded, padded=True).flops - cost_of(deployment.share, exact, padded=True).flops
    assert more == pytest.approx(6144 * deployment.share.cost.flops_per_token)
    work = work_of("qwen3-0.6b")
    p = predict(deployment, deployment.rehearse(work), work.num_items)
    assert p.at_efficiency > 1.1 * p.roofline / EFFICIENCY


def test_a_step_of_few_tokens_waits_for_the_weights() -> None:
    deployment = deployed("qwen3-4b", "h100")
    cost = cost_of(deployment.share, step_of(deployment, 16))
    seconds = least_seconds(cost, deployment.target, deployment.share)
    assert seconds == pytest.approx(cost.bytes / deployment.target.bandwidth)
    assert cost.bytes > deployment.share.cost.weight_bytes


def test_devices_that_share_a_copy_send_sums() -> None:
    one, four = (deployed("qwen3-0.6b", "v6e:2x2", tp) for tp in (1, 4))
    alone, cost = (cost_of(deployment.share, step_of(deployment, 10_240)) for deployment in (one, four))
    assert alone.sent == 0
    assert cost.flops == pytest.approx(alone.flops / 4, rel=0.02)
    assert cost.sent == 57 * 10240 * 1024 * 2 * 2 * 3 / 4
    silent = replace(cost, sent=0.0)
    more = least_seconds(cost, four.target, four.share) - least_seconds(silent, four.target, four.share)
    assert more == pytest.approx(cost.sent / 200e9)


def test_narrow_heads_leave_matrix_units_empty() -> None:
    assert fill(deployed("qwen3-0.6b", "v6e").target, deployed("qwen3-0.6b", "v6e").share) == 0.5
    assert fill(deployed("qwen3-0.6b", "v5e").target, deployed("qwen3-0.6b", "v5e").share) == 1.0
    assert fill(deployed("smollm2-135m", "v6e").target, deployed("smollm2-135m", "v6e").share) == 0.25
    assert fill(deployed("smollm2-135m", "h100").target, deployed("smollm2-135m", "h100").share) == 1.0
