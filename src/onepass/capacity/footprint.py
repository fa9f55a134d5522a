"""What a deployment needs of each device's memory: by the compiler's figures, or by the engine's own estimate.

The estimate is the one by which the engine refuses requests, from above; limits are its answers too, since compiling
at every size would take hours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onepass.bench.workloads import Workload
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.rehearsal import Rehearsed
from onepass.engine.buckets import power_rung, prefix_rung, token_rung
from onepass.engine.lowering import Program
from onepass.errors import DoesNotFit

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
    of the workload's items fit memory at once; `items` how many a request may have, None where any: in steps."""

    context: int
    context_limited_by: str
    items_a_step: int
    items: int | None


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


def limits(deployment: Deployment, rehearsed: Rehearsed, workload: Workload) -> Limits:
    """The longest query that the engine would accept with the workload's items, and the most of them that it would put
    in one step behind the workload's own query, were steps not bounded in tokens."""
    item_tokens = max(1, max(len(item) for asked in workload.asked for item in asked.items))
    positions = deployment.share.config.max_position - item_tokens
    context = _most(lambda tokens: _accepts(deployment, workload, tokens), positions)
    in_one_row = deployment.engine.mode == "packed"
    largest = max((p for p in rehearsed.programs if p.kind == "score"), key=lambda p: p.shape.tokens)
    dense, after = largest.attention == "dense", replace(largest.shape, rows=1)
    if not in_one_row:
        after = replace(after, context=0, prefix=prefix_rung(max(after.prefix, after.context)))

    def items_fit(count: int) -> bool:
        shape = replace(after, items=token_rung(count * item_tokens), readouts=power_rung(count, 8))
        return rehearsed.planner.fits(shape, dense)

    limited = "the model's positions" if context == positions else "memory"
    items = _most(items_fit, MOST_ITEMS)
    return Limits(context, limited, items, items if in_one_row else None)


def _accepts(deployment: Deployment, workload: Workload, query: int) -> bool:
    """Whether the same items with a query of so many tokens would run. Which tokens they are does not matter."""
    request = replace(workload.asked[0].request, query=[0] * query)
    asked = replace(workload.asked[0], request=request, query=(0,) * query)
    try:
        rehearsed = deployment.rehearse(replace(workload, asked=(asked,)))
    except DoesNotFit:
        return False
    return estimated(deployment, rehearsed.programs, rehearsed.context_bytes).fits


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest count up to `most` that fits; 0 where not even one does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
