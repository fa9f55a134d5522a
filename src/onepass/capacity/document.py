"""A capacity plan as one JSON document, with its assumptions in words. Deciding the plan is `estimate`."""

from collections.abc import Sequence
from typing import Any

from onepass.capacity import chips
from onepass.capacity.chips import GIB
from onepass.capacity.estimate import Answer, Question
from onepass.capacity.latency import Prediction
from onepass.capacity.memory import limits
from onepass.capacity.parallelism import Candidate, by_itself
from onepass.capacity.roofline import EFFICIENCY, EFFICIENCY_SOURCE, cost_of, fill, least_seconds

Document = dict[str, Any]


def document(a: Answer) -> Document:
    q, chosen = a.question, a.chosen
    prediction = chosen.prediction if a.fits else None
    return {
        "object": "plan",
        "model": q.model,
        "parameters": q.config.num_parameters,
        "dtype": str(q.dtype),
        "target": _target(q.target),
        "workload": q.workload.describe(),
        "fits": a.fits,
        "why_not": _why_not(a),
        "compiled": bool(a.compiled),
        "per_device": _bytes(chosen),
        "limits": _limits(a),
        "division": {
            "tp": chosen.tp,
            "dp": chosen.deployment.dp,
            "why": a.why,
            "engine_chooses": _by_itself(q),
            "candidates": [_candidate(one, a.found) for one in a.found],
        },
        "mode": chosen.rehearsed.mode,
        "reason": chosen.rehearsed.reason,
        "rungs": [shape.tokens for shape in chosen.deployment.parts.ladder.shapes],
        "steps": _steps(a),
        "programs": _programs(a),
        "compile_seconds": sum(one.seconds for one in a.compiled) if a.compiled else None,
        "prediction": None if prediction is None else _prediction(prediction),
        "items_per_second": None if prediction is None else prediction.items_per_second,
        "cost": None if q.price is None else _cost(q, prediction),
        "assumptions": _assumptions(a),
    }


def _target(target: chips.Target) -> Document:
    chip = target.chip
    return {
        "name": str(target),
        "chips": target.chips,
        "devices": target.devices,
        "chip": {
            "name": chip.name,
            "flops_per_second": chip.flops,
            "memory_bytes": chip.memory_bytes,
            "bytes_per_second": chip.bandwidth,
            "ring_bytes_per_second": chip.link,
            "source": chips.SOURCE,
        },
    }


def _bytes(one: Candidate) -> Document:
    f = one.footprint
    return {
        "weights": f.weights,
        "pool": f.pool,
        "temporaries": f.temporaries,
        "other": f.other,
        "total": f.total,
        "available": f.available,
        "spare": f.available - f.total,
        "source": "the compiler, for the programs that the workload runs"
        if f.compiled
        else "the engine's estimate, not compiled",
    }


def _limits(a: Answer) -> Document | None:
    if not a.fits:
        return None
    found = limits(a.chosen.deployment, a.question.workload)
    return {
        "context_tokens": found.context,
        "context_limited_by": found.context_limited_by,
        "cached_contexts": found.cached_contexts,
        "items_a_step": found.items_a_step,
        "tokens_a_step": found.tokens_a_step,
    }


def _candidate(one: Candidate, found: Sequence[Candidate]) -> Document:
    """Rates against the best of them: the roofline that all of them were compared by is not the prediction."""
    best = max(other.rate for other in found)
    return {
        "tp": one.tp,
        "dp": one.deployment.dp,
        "fits": one.fits,
        "bytes_per_device": one.footprint.total,
        "relative_rate": one.rate / best if one.fits else None,
        "refusal": one.refusal,
    }


def _by_itself(q: Question) -> Document | None:
    """The engine goes by the weights alone; where that differs from the best, `--tp` must be given to it."""
    found = by_itself(q.target, q.config, q.dtype)
    return None if found is None else {"tp": found.tp, "dp": found.dp, "reason": found.reason}


def _steps(a: Answer) -> list[Document]:
    share, steps = a.chosen.deployment.share, []
    for step, count in a.chosen.rehearsed.steps:
        cost = cost_of(share, step)
        steps.append(
            {
                "count": count,
                "rung": step.shape.tokens,
                "tokens": step.tokens,
                "computed_tokens": step.computed_tokens,
                "readouts": step.readouts,
                "pages": step.pages,
                "programs": [str(program) for program in step.programs],
                "flops": cost.flops,
                "bytes": cost.bytes,
                "sent_bytes": cost.sent,
                "roofline_ms": 1e3 * least_seconds(cost, a.question.target, share),
            }
        )
    return steps


def _programs(a: Answer) -> list[Document]:
    """Those that the workload runs; the compiler's figures are None where nothing was compiled."""
    compiled = {one.program: one for one in a.compiled}
    found = []
    for program in a.chosen.rehearsed.programs:
        one = compiled.get(program)
        found.append(
            {
                "name": str(program),
                "temporaries": one and one.temporaries,
                "compile_seconds": one and one.seconds,
                "does_not_fit": one and one.does_not_fit,
            }
        )
    return found


def _prediction(p: Prediction) -> Document:
    return {
        "request_ms": 1e3 * p.seconds,
        "items_per_second": p.items_per_second,
        "basis": p.basis,
        "roofline_ms": 1e3 * p.roofline,
        "roofline_items_per_second": p.rate(p.roofline),
        "at_efficiency_ms": 1e3 * p.at_efficiency,
        "efficiency": EFFICIENCY,
        "scheduled_ms": None if p.scheduled is None else 1e3 * p.scheduled,
    }


def _cost(q: Question, prediction: Prediction | None) -> Document:
    assert q.price is not None
    an_hour = q.price * q.target.chips
    per_million = None if prediction is None else an_hour / 3600 / prediction.items_per_second * 1e6
    return {"price_per_chip_hour": q.price, "per_hour": an_hour, "per_million_items": per_million}


def _why_not(a: Answer) -> str | None:
    if a.fits:
        return None
    words = next((one.does_not_fit for one in a.compiled if one.does_not_fit), None)
    f = a.chosen.footprint
    needed = f"{f.total / GIB:.2f} GiB are needed on each device, and {f.available / GIB:.2f} are there"
    return words or a.chosen.refusal or needed


def _assumptions(a: Answer) -> list[str]:
    target, share, parts = a.question.target, a.chosen.deployment.share, a.chosen.deployment.parts
    told = [
        f"peak, memory and links of {target.chip.name}: {chips.SOURCE}",
        f"programs get {target.chip.usable:.0%} of the memory",
        f"{EFFICIENCY:.1%} of the roofline is reached: {EFFICIENCY_SOURCE}",
        "the roofline counts the real tokens of each step, what is expected also the padding of its rung that is "
        "computed (our own kernels stop at the last real token, XLA does not)",
        "one request at a time on each copy; the host's few milliseconds, which decide small requests, are not seen",
    ]
    if a.question.published:
        told.append(
            f"the shape of {a.question.model} is onepass's own copy of its published config.json; nothing was fetched "
            "(--revision main reads the hub's)"
        )
    if parts.attention.name == "xla":
        told.append("attention there is plain XLA, which also computes keys that are masked; they are not counted")
    if fill(target, share) < 1:
        told.append(f"attention at {fill(target, share):.0%} of the peak: heads of {share.config.head_dim}")
    if share.tp > 1:
        told.append("sums between devices are not overlapped with anything")
    if a.chosen.prediction.scheduled is not None:
        told.append(f"{target.chip.cycles or 0:.3g} cycles a second turn the compiler's schedule into time")
    if not a.compiled:
        told.append("not compiled: roofline only")
    return told
