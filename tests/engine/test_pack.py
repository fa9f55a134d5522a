"""Rows as the device gets them: tokens, places and read-outs, drawn out for small requests."""

import jax.numpy as jnp
import numpy as np

from onepass.api import ScoreRequest
from onepass.attention.base import RowShape
from onepass.attention.places import PADDING, Places, visible
from onepass.engine.encode import Encoder
from onepass.engine.pack import RowPlan, pack
from onepass.engine.segments import Segments, segments_of

CONTEXT = np.array([50, 51, 52], np.int32)


def segments(items: list[list[int]], continuations: list[list[int]] | None = None) -> Segments:
    request = ScoreRequest(query=[50, 51, 52], items=items, label_token_ids=[7, 8], continuations=continuations)
    return segments_of(Encoder(None, 100, 64).encode(request))


def drawn(plan: RowPlan, shape: RowShape) -> str:
    """Who sees whom in the row's tokens, 1 and ., a line each."""
    batch = pack([plan], shape)
    places = Places(*(jnp.asarray(a[0]) for a in (vars(batch.rows.places).values())))
    return "\n".join("".join("1" if seen else "." for seen in row) for row in np.asarray(visible(places, places)))


def test_the_row_of_two_items_is_the_matrix_of_the_design() -> None:
    made = segments([[1, 2], [3, 4]])
    assert (
        drawn(RowPlan(CONTEXT, 0, made, 0, 2), RowShape(1, 0, 3, 4, 2, 2, 2))
        == """\
1......
11.....
111....
1111...
11111..
111..1.
111..11"""
    )


def test_the_row_of_two_branches_is_the_matrix_of_the_design() -> None:
    """Continuations of two tokens each: a branch holds all but the last token of its text."""
    made = segments([[1, 2]], [[60, 61], [70, 71]])
    assert (
        drawn(RowPlan(CONTEXT[:2], 0, made, 0, 1), RowShape(1, 0, 2, 4, 4, 4, 2))
        == """\
1.....
11....
111...
1111..
11111.
1111.1"""
    )


def test_padding_is_seen_by_nobody_and_does_not_move_places() -> None:
    made = segments([[1, 2], [3]])
    batch = pack([RowPlan(CONTEXT, 0, made, 0, 2)], RowShape(2, 0, 5, 6, 8, 4, 4))
    rows = batch.rows
    assert np.asarray(rows.tokens)[0].tolist() == [50, 51, 52, 0, 0, 1, 2, 3, 0, 0, 0]
    assert np.asarray(rows.places.segment)[0].tolist() == [0, 0, 0, -1, -1, 1, 1, 2, -1, -1, -1]
    assert np.asarray(rows.places.position)[0].tolist() == [0, 1, 2, 0, 0, 3, 4, 3, 0, 0, 0]
    assert (np.asarray(rows.places.segment)[1] == PADDING).all()


def test_read_outs_are_at_the_last_token_of_each_item() -> None:
    made = segments([[1, 2], [], [3]])
    batch = pack([RowPlan(CONTEXT, 0, made, 0, 3)], RowShape(1, 0, 4, 4, 4, 4, 2))
    assert np.asarray(batch.rows.readouts)[0].tolist() == [5, 2, 6, 2]
    assert batch.labels[0].tolist() == [[7, 8], [7, 8], [7, 8], [0, 0]]


def test_after_a_prefix_an_empty_item_is_read_from_the_prefix() -> None:
    """The index one past the row's tokens means the prefix's last token."""
    made = segments([[1, 2], [], [3]])
    batch = pack([RowPlan(CONTEXT[:0], 3, made, 0, 3)], RowShape(1, 16, 0, 4, 4, 4, 2))
    assert np.asarray(batch.rows.readouts)[0].tolist() == [1, 4, 2, 4]
    assert np.asarray(batch.rows.places.position)[0].tolist() == [3, 4, 3, 0]


def test_a_row_of_later_families_begins_at_its_own_start() -> None:
    made = segments([[1, 2], [3], [4, 5]])
    batch = pack([RowPlan(CONTEXT, 0, made, 1, 3)], RowShape(1, 0, 3, 3, 4, 2, 2))
    assert np.asarray(batch.rows.tokens)[0].tolist() == [50, 51, 52, 3, 4, 5]
    assert np.asarray(batch.rows.places.segment)[0].tolist() == [0, 0, 0, 1, 2, 2]
    assert np.asarray(batch.rows.readouts)[0].tolist() == [3, 5]


def test_a_prefill_row_reads_out_its_last_token() -> None:
    batch = pack([RowPlan(CONTEXT, 10, None)], RowShape(1, 16, 5, 0, 0, 1, 4))
    assert np.asarray(batch.rows.places.position)[0].tolist() == [10, 11, 12, 0, 0]
    assert np.asarray(batch.rows.readouts)[0].tolist() == [2]


def test_a_row_that_keeps_its_context_reads_it_out_last() -> None:
    made = segments([[1], [2]])
    plan = RowPlan(CONTEXT, 0, made, 0, 2, keep=True)
    assert plan.needs.readouts == 3
    batch = pack([plan], RowShape(1, 0, 3, 2, 1, 8, 2))
    assert np.asarray(batch.rows.readouts)[0].tolist() == [3, 4, 2, 2, 2, 2, 2, 2]
