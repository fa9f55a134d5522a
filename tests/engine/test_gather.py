"""Rows that share a step run in a program that holds each of them, and no larger than that asks for."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onepass.api import ScoreRequest
from onepass.attention.base import RowShape
from onepass.engine.buckets import bucket
from onepass.engine.encode import Encoded
from onepass.engine.gather import Row, gather, program_of
from onepass.engine.job import Job, PrefillJob
from onepass.engine.pack import RowPlan
from onepass.engine.plan import Plan
from onepass.engine.segments import segments_of

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=12)
requests = st.lists(st.tuples(st.integers(0, 60), lengths, st.integers(1, 9)), min_size=1, max_size=12)


def row_of(context: int, items: list[int], labels: int) -> Row:
    ids = tuple((1,) * n for n in items)
    encoded = Encoded(ScoreRequest(), (1,) * context, ids, (tuple(range(labels)),) * len(items), (), 0)
    segments = segments_of(encoded)
    plan = RowPlan(np.ones(context, np.int32), 0, segments, 0, segments.num_families, keep=bool(context))
    job = Job(encoded, Plan("packed", "", "cascade", segments, [plan], keep=bool(context)), None, 0.0, 0.0)
    return Row(job, 0, plan, None)


@given(requests)
def test_a_shared_program_is_the_smallest_that_holds_its_rows(asked: list[tuple[int, list[int], int]]) -> None:
    rows = [row_of(*one) for one in asked]
    shared = gather(rows[0], rows[1:], 1 << 14)
    needs = [row.needs for row in shared]
    most = RowShape(**{name: max(getattr(n, name) for n in needs) for name in vars(needs[0])})
    assert program_of(shared).shape == bucket(replace(most, rows=len(shared)))


def test_prefills_share_a_program_too() -> None:
    rows = [Row(PrefillJob((1,) * n), 0, RowPlan(np.ones(n, np.int32), 0, None), None) for n in (60, 58)]
    shared = gather(rows[0], rows[1:], 1 << 14)
    assert len(shared) == 2
    assert program_of(shared).shape == bucket(replace(rows[0].needs, rows=2))
