"""What a deployment needs of each device's memory: by the compiler's figures, or by the engine's own estimate.

The estimate is the one by which the engine refuses to start, from above: weights, the whole pool of pages, and the
temporaries of its largest step. Limits follow from the pool and from the largest step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.bench.workloads import Workload
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment


@dataclass(frozen=True)
class Footprint:
    """Bytes of one device. `other` is what goes in and out of steps, the programs themselves, and padding of arrays."""

    weights: int
    pool: int
    temporaries: int
    other: int
    available: int
    compiled: bool

    @property
    def total(self) -> int:
        return self.weights + self.pool + self.temporaries + self.other

    @property
    def fits(self) -> bool:
        return self.total <= self.available


@dataclass(frozen=True)
class Limits:
    """`context` is the longest query that can have the workload's items, and what limits it; `cached_contexts` how many
    queries like the workload's stay on the device; `items_a_step` how many of its items one step takes. A request may
    have any number of items: in steps."""

    context: int
    context_limited_by: str
    cached_contexts: int
    items_a_step: int
    tokens_a_step: int


def estimated(deployment: Deployment) -> Footprint:
    parts = deployment.parts
    available = deployment.target.memory_bytes
    return Footprint(parts.cost.weight_bytes, parts.pool_bytes, parts.step_bytes, 0, available, compiled=False)


def as_compiled(deployment: Deployment, compiled: Sequence[Compiled]) -> Footprint:
    """Programs run one after another, on the same weights and the same pool. Padding of these, which the compiler
    counts among a program's arguments, falls under `other`."""
    parts = deployment.parts
    weights, pool = parts.cost.weight_bytes, parts.pool_bytes

    def beside(one: Compiled) -> int:
        shared = weights * (one.program.kind != "copy") + pool * (one.program.kind in ("step", "copy"))
        return max(0, one.arguments - shared) + one.outputs

    return Footprint(
        weights=weights,
        pool=pool,
        temporaries=max(one.temporaries for one in compiled),
        other=max(map(beside, compiled)) + sum(one.code for one in compiled),
        available=deployment.target.memory_bytes,
        compiled=True,
    )


def limits(deployment: Deployment, workload: Workload) -> Limits:
    """By the rules of the engine's encoder, planner and batches."""
    parts = deployment.parts
    page, largest = parts.attention.page, parts.ladder.largest
    item_tokens = max(1, max(len(item) for request in workload.requests for item in request.items))
    query_pages = -(-max(1, *(len(request.query) for request in workload.requests)) // page)
    positions = deployment.share.config.max_position - item_tokens
    # An item is in pages only where it is a plain sequence with its context.
    plain = deployment.engine.mode == "serial" or item_tokens > largest.tokens
    in_pages = parts.planner().pool_tokens - item_tokens * plain
    assert deployment.engine.cache_bytes is not None
    return Limits(
        context=min(positions, in_pages),
        context_limited_by="the model's positions" if positions <= in_pages else "the pool of pages",
        cached_contexts=deployment.engine.cache_bytes // (query_pages * parts.cost.page_bytes(page)),
        items_a_step=min(largest.tokens // item_tokens, largest.readouts),
        tokens_a_step=largest.tokens,
    )
