"""The arithmetic and memory traffic that a workload needs at least, and how near to the ceilings a time came.

It is what the *request* needs, the shared query once, whatever a mode did instead: fractions of modes are comparable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onepass.bench.ceilings import Ceilings
from onepass.bench.mixed import RequestSizes
from onepass.bench.workloads import TokenRequest, Workload
from onepass.engine.cost_model import CostModel
from onepass.models.config import ModelConfig
from onepass.models.rope import Rope


@dataclass(frozen=True)
class Work:
    flops: float
    bytes: float


@dataclass(frozen=True)
class Utilization:
    """Rates of the needed work, and their fractions of the ceilings; `fraction` is of the roofline's shortest time."""

    tflops: float
    gigabytes_per_second: float
    flops_fraction: float
    bytes_fraction: float
    fraction: float


def needed(work: CostModel, workload: Workload) -> Work:
    each = [_request(work, one, workload.cached) for one in workload.requests]
    return Work(sum(n.flops for n in each), sum(n.bytes for n in each))


def traffic_needed(work: CostModel, sizes: Iterable[RequestSizes]) -> Work:
    """Of requests that share steps: the weights are read once at least, however many requests there are."""
    flops = contexts = 0.0
    for one in sizes:
        sized = _sized(work, one.query, one.items, one.continuations, cached=False)
        flops, contexts = flops + sized.flops, contexts + sized.bytes - work.weight_bytes
    return Work(flops, work.weight_bytes + contexts)


def cost_model_of(config: Mapping[str, Any], dtype: str) -> CostModel:
    """From what a server tells in /info. Blocks of a GGUF file count as the numbers that they are multiplied in."""
    sizes = {"float32": (4, None), "bfloat16": (2, None), "fp8": (2, 1), "int8": (4, 1)}
    itemsize, layers = sizes[{"gguf": "float32", "gguf-bfloat16": "bfloat16"}.get(dtype, dtype)]
    fields = {name: value for name, value in config.items() if name not in ("rope", "split")}
    return CostModel(ModelConfig(**fields, rope=Rope(**config["rope"])), itemsize, layers)


def _request(work: CostModel, request: TokenRequest, cached: bool) -> Work:
    if request.branches:
        candidates, branches = (
            [len(tokens) for tokens in request.candidates],
            [len(tokens) + 1 for tokens in request.branches],
        )
        return _sized(work, len(request.query), candidates, branches, cached, len(request.items))
    return _sized(work, len(request.query), [len(item) for item in request.items], (), cached)


def _sized(
    work: CostModel,
    query: int,
    items: Iterable[int],
    continuations: Iterable[int],
    cached: bool,
    readouts: int | None = None,
) -> Work:
    """Products of every token, attention to the keys each token sees, the vocabulary at each read-out. The weights are
    read once; the query's keys and values are written once (unless cached) and read once. A continuation's last token
    is read out before it would be computed. `readouts` None: at every item's end and at every continuation's token."""
    c = work.config
    lengths, branches = list(items), [length - 1 for length in continuations]
    fresh = 0 if cached else query
    keys = fresh * fresh / 2 + sum(lengths) * query + sum(n * n / 2 for n in lengths)
    keys += sum(b * (query + n) + b * b / 2 for n in lengths for b in branches)
    tokens = fresh + sum(lengths) + len(lengths) * sum(branches)
    flops = tokens * work.flops_per_token + 4.0 * c.num_layers * c.num_heads * c.head_dim * keys
    readouts = len(lengths) * (1 + sum(branches)) if readouts is None else readouts
    flops += 2.0 * c.hidden_size * c.vocab_size * readouts
    return Work(flops, work.weight_bytes + work.page_bytes(query) * (1 if cached else 2))


def reached(work: Work, seconds: float, ceilings: Ceilings) -> Utilization:
    by_flops = work.flops / ceilings.flops_per_second
    by_bytes = work.bytes / ceilings.bytes_per_second
    return Utilization(
        tflops=work.flops / seconds / 1e12,
        gigabytes_per_second=work.bytes / seconds / 1e9,
        flops_fraction=by_flops / seconds,
        bytes_fraction=by_bytes / seconds,
        fraction=max(by_flops, by_bytes) / seconds,
    )
