"""What a deployment needs of each device's memory: by the compiler's figures, or by the engine's own estimate.

The estimate is the one by which the engine refuses requests, from above; limits are its answers too, since compiling
at every size would take hours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onepass.attention.base import RowShape
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.rehearsal import Rehearsed
from onepass.engine.buckets import power_rung, prefix_rung, token_rung
from onepass.engine.runner import Program

MOST_ITEMS = 1 << 20  # in one step; more is not looked for


@dataclass(frozen=True)
class Footprint:
    """Bytes of one device. `other` is what goes in and out of steps, the programs themselves, and padding of arrays."""

    weights: int
    contexts: int
    temporaries: int
    other: int
    available: int
    compiled: bool

    @property
    def total(self) -> int:
        return self.weights + self.contexts + self.temporaries + self.other

    @property
    def fits(self) -> bool:
        return self.total <= self.available


@dataclass(frozen=True)
class Limits:
    """`context` is the longest query that fits with the workload's items, and what limits it; `items_a_step` how many
    of the workload's items fit memory at once."""

    context: int
    context_limited_by: str
    items_a_step: int


def estimated(deployment: Deployment, programs: Sequence[Program], context_bytes: int) -> Footprint:
    work = deployment.share.work
    temporaries = max((work.step_bytes(p.shape, p.attention == "dense") for p in programs), default=0)
    available = deployment.target.memory_bytes
    return Footprint(work.weight_bytes, context_bytes, temporaries, 0, available, compiled=False)


def as_compiled(deployment: Deployment, compiled: Sequence[Compiled], context_bytes: int) -> Footprint:
    """Contexts are arguments of one program and results of another; they are there once. Padding of the weights, which
    are in every program's arguments, falls under `other`."""
    work = deployment.share.work

    def beside(one: Compiled) -> int:
        shape = one.program.shape
        inward = one.arguments - work.weight_bytes - shape.rows * work.context_bytes(shape.prefix)
        return max(0, inward) + max(0, one.outputs - shape.rows * work.context_bytes(one.program.keep))

    return Footprint(
        weights=work.weight_bytes,
        contexts=context_bytes,
        temporaries=max(one.temporaries for one in compiled),
        other=max(map(beside, compiled)) + sum(one.code for one in compiled),
        available=deployment.target.memory_bytes,
        compiled=True,
    )


def limits(deployment: Deployment, rehearsed: Rehearsed, item_tokens: int) -> Limits:
    """For items against a context that is kept: what the engine's planner would still accept."""
    planner, work = rehearsed.planner, deployment.share.work
    most = deployment.engine.max_batch_tokens or 0
    largest = max((p.shape for p in rehearsed.programs if p.kind == "score"), key=lambda s: s.tokens)
    after = replace(largest, rows=1, context=0, items=max(16, largest.items))

    def context_fits(tokens: int) -> bool:
        here = min(tokens, most)
        prefill = RowShape(1, prefix_rung(tokens - here), token_rung(here), 0, 0, 1, 4)
        needed = work.weight_bytes + work.step_bytes(prefill, False) + 2 * work.context_bytes(prefix_rung(tokens))
        return needed <= deployment.target.memory_bytes and planner.fits(
            replace(after, prefix=prefix_rung(tokens)), False
        )

    def items_fit(count: int) -> bool:
        items = token_rung(count * item_tokens)
        return planner.fits(replace(after, items=items, prefix=_context(largest), readouts=power_rung(count, 8)), False)

    positions = deployment.share.config.max_position - item_tokens
    context = _most(context_fits, positions)
    limited = "the model's positions" if context == positions else "memory"
    return Limits(context, limited, _most(items_fit, MOST_ITEMS))


def _context(shape: RowShape) -> int:
    return prefix_rung(max(shape.prefix, shape.context))


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits; 0 where not even one does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
