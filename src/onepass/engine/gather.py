"""Rows that can share a step, and the program that runs them.

Whose rows come first is `shares`; launching and collecting the step is `steps`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from onepass.attention.base import RowShape
from onepass.engine.buckets import bucket, holds, power_rung, prefix_rung
from onepass.engine.contexts import KeptContext
from onepass.engine.job import Job, PrefillJob
from onepass.engine.lowering import Program
from onepass.engine.pack import RowPlan
from onepass.engine.plan import Plan

MOST_ROWS = 32


@dataclass(frozen=True)
class Row:
    """One row of a step: whose it is, its place in that job's plan, and its prefix."""

    job: Job | PrefillJob
    number: int
    plan: RowPlan
    context: KeptContext | None

    @property
    def needs(self) -> RowShape:
        width = self.context.width if self.context is not None else 0
        return self.plan.needs if self.plan.prefix == width else replace(self.plan.needs, prefix=width)

    @cached_property
    def padded(self) -> RowShape:
        """The rungs that hold it."""
        return self.plan.padded if self.needs is self.plan.needs else bucket(self.needs)


def gather(first: Row, others: Iterable[Row], most_tokens: int) -> list[Row]:
    """The first row and those like it of the `others`, in order. A power of two of them, so that no row is padding."""
    if isinstance(first.job, Job) and first.job.plan.alone:
        return [first]
    shape = first.padded
    most = min(MOST_ROWS, max(1, most_tokens // shape.tokens))
    alike = [first]
    passed: set[int] = set()  # a job's rows are taken in order, so one that is not alike ends its turn
    for row in others:
        if len(alike) == most:
            break
        if id(row.job) not in passed and _alike(first, row, shape):
            alike.append(row)
        else:
            passed.add(id(row.job))
    return alike[: 1 << (len(alike).bit_length() - 1)]


def program_of(rows: list[Row]) -> Program:
    """For rows that were gathered: the first one's rungs hold all of them."""
    kind, attention, keep = _kind(rows[0])
    shape = replace(rows[0].padded, rows=power_rung(len(rows)))
    return Program(kind, shape, attention, keep)  # type: ignore[arg-type]


def programs_of(plan: Plan, fresh: int, most_tokens: int) -> list[Program]:
    """What a plan runs in whose context has so many tokens that are not kept yet, if it shares steps with nobody. Left
    out is what takes several steps that depend on what else is there: a long context, rows that share steps with one
    another."""
    programs = []
    if plan.prefill and 0 < fresh <= most_tokens:
        programs.append(Program("prefill", bucket(RowShape(1, 0, fresh, 0, 0, 1, 1)), "cascade", prefix_rung(fresh)))
    for row in plan.rows if plan.alone or len(plan.rows) == 1 else ():
        keep = prefix_rung(len(row.context)) if plan.keep else 0
        programs.append(Program("score", row.padded, plan.attention, keep))
    return list(dict.fromkeys(programs))


def _alike(first: Row, other: Row, shape: RowShape) -> bool:
    if _kind(first) != _kind(other):
        return False
    needed = other.padded
    return holds(shape, needed) and needed.prefix == shape.prefix and 2 * needed.tokens >= shape.tokens


def _kind(row: Row) -> tuple[str, str, int]:
    """Program kind, attention and how wide a context it keeps."""
    if isinstance(row.job, PrefillJob):
        return "prefill", "cascade", prefix_rung(row.plan.prefix + len(row.plan.context))
    plan = row.job.plan
    return "score", plan.attention, prefix_rung(len(row.plan.context)) if plan.keep else 0
