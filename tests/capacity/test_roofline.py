"""Arithmetic, traffic and sums of steps; and the assumed efficiency is the one that was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.deployments import deployed, work_of
from onepass.attention.base import RowShape
from onepass.bench.roofline import needed
from onepass.capacity.prediction import predict
from onepass.capacity.roofline import EFFICIENCY, MEASURED_IN, cost_of, fill, least_seconds
from onepass.engine.lowering import Program

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
EXTEND = Program("score", RowShape(1, 2048, 0, 10240, 32, 512, 4), "cascade")


def test_the_efficiency_is_what_the_stored_run_reached_of_the_h200s_roofline() -> None:
    run = json.loads((RESULTS / MEASURED_IN).read_text(encoding="utf-8"))
    (row,) = [row for row in run["rows"] if row["mode"] == "packed-segment"]
    assert (run["hardware"]["device"], row["dtype"], row["void"]) == ("NVIDIA H200", "bfloat16", [])
    deployment, work = deployed("qwen3-0.6b", "h200"), work_of("qwen3-0.6b")
    assert work.checksum == row["checksum"], "the same tokens"
    least = predict(deployment, deployment.rehearse(work), work.num_items).roofline
    assert pytest.approx(1e3 * least / row["latency_ms"]["p50"], abs=0.001) == EFFICIENCY


def test_a_step_does_what_the_request_needs_and_its_padding() -> None:
    deployment, work = deployed("qwen3-0.6b", "h200", mode="extend"), work_of("qwen3-0.6b")
    done = sum(n * cost_of(deployment.share, program).flops for program, n in deployment.rehearse(work).steps)
    assert 1.0 < done / needed(deployment.share.work, work).flops < 1.15


def test_a_step_of_few_tokens_waits_for_the_weights() -> None:
    deployment = deployed("qwen3-4b", "h100")
    little = replace(EXTEND, shape=RowShape(1, 64, 0, 16, 16, 1, 4))
    cost = cost_of(deployment.share, little)
    seconds = least_seconds(cost, deployment.target, deployment.share)
    assert seconds == pytest.approx(cost.bytes / deployment.target.bandwidth)
    assert cost.bytes > deployment.share.work.weight_bytes


def test_devices_that_share_a_copy_send_sums() -> None:
    one, four = (deployed("qwen3-0.6b", "v6e:2x2", tp) for tp in (1, 4))
    assert cost_of(one.share, EXTEND).sent == 0
    cost = cost_of(four.share, EXTEND)
    assert cost.flops == pytest.approx(cost_of(one.share, EXTEND).flops / 4, rel=0.02)
    assert cost.sent == 57 * 10240 * 1024 * 2 * 2 * 3 / 4
    silent = replace(cost, sent=0.0)
    more = least_seconds(cost, four.target, four.share) - least_seconds(silent, four.target, four.share)
    assert more == pytest.approx(cost.sent / 200e9)


def test_narrow_heads_leave_matrix_units_empty() -> None:
    assert fill(deployed("qwen3-0.6b", "v6e").target, deployed("qwen3-0.6b", "v6e").share) == 0.5
    assert fill(deployed("qwen3-0.6b", "v5e").target, deployed("qwen3-0.6b", "v5e").share) == 1.0
    assert fill(deployed("smollm2-135m", "v6e").target, deployed("smollm2-135m", "v6e").share) == 0.25
    assert fill(deployed("smollm2-135m", "h100").target, deployed("smollm2-135m", "h100").share) == 1.0
