"""The arithmetic and memory traffic that a workload needs at least, and how near to the ceilings a time came.

It is what the *request* needs, the shared query once, whatever a mode did instead: fractions of modes are comparable.
"""

from dataclasses import dataclass

from onepass.bench.ceilings import Ceilings
from onepass.bench.workloads import Asked, Workload
from onepass.engine.work import Work


@dataclass(frozen=True)
class Needed:
    flops: float
    bytes: float


@dataclass(frozen=True)
class Reached:
    """Rates of the needed work, and their fractions of the ceilings; `fraction` is of the roofline's shortest time."""

    tflops: float
    gigabytes_per_second: float
    flops_fraction: float
    bytes_fraction: float
    fraction: float


def needed(work: Work, workload: Workload) -> Needed:
    each = [_request(work, one, workload.cached) for one in workload.asked]
    return Needed(sum(n.flops for n in each), sum(n.bytes for n in each))


def _request(work: Work, asked: Asked, cached: bool) -> Needed:
    """Products of every token, attention to the keys each token sees, the vocabulary at each read-out. The weights are
    read once; the query's keys and values are written once (unless cached) and read once."""
    c = work.config
    query, lengths = len(asked.query), [len(item) for item in asked.items]
    fresh = 0 if cached else query
    keys = fresh * fresh / 2 + sum(lengths) * query + sum(n * n / 2 for n in lengths)
    flops = (fresh + sum(lengths)) * work.flops_per_token
    flops += 4.0 * c.num_layers * c.num_heads * c.head_dim * keys
    flops += 2.0 * c.hidden_size * c.vocab_size * len(lengths)
    return Needed(flops, work.weight_bytes + work.context_bytes(query) * (1 if cached else 2))


def reached(work: Needed, seconds: float, ceilings: Ceilings) -> Reached:
    by_flops = work.flops / ceilings.flops_per_second
    by_bytes = work.bytes / ceilings.bytes_per_second
    return Reached(
        tflops=work.flops / seconds / 1e12,
        gigabytes_per_second=work.bytes / seconds / 1e9,
        flops_fraction=by_flops / seconds,
        bytes_fraction=by_bytes / seconds,
        fraction=max(by_flops, by_bytes) / seconds,
    )
