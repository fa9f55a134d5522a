"""The arrays of a step, all in one array of int32: a copy to the device costs a small request more than its bytes do.

The host fills them (`packing`), and a program takes them apart (`unpack`).
"""

from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np

from onepass.attention.base import NOWHERE, PageTable, Queries, Step, StepShape
from onepass.attention.mask import PADDING, Places


def sizes(shape: StepShape) -> tuple[int, ...]:
    """Of the arrays of a step, in order: nine of tokens, four of page-table entries, read-outs, pairs, two counts."""
    return (shape.tokens,) * 9 + (shape.entries,) * 4 + (shape.readouts, shape.pairs, shape.pairs, 2)


def views(numbers: Any, shape: StepShape) -> list[Any]:
    """The parts of one array, in the order of `sizes`."""
    return [numbers[start:end] for start, end in pairwise(_edges(shape))]


@cache
def _edges(shape: StepShape) -> tuple[int, ...]:
    """Where the arrays of a step begin and end: a few shapes for each model."""
    return tuple(accumulate(sizes(shape), initial=0))


def num_numbers(shape: StepShape) -> int:
    """Of all arrays of a step together."""
    return _edges(shape)[-1]


@cache
def blank(shape: StepShape) -> np.ndarray:
    """A step of padding alone, to be copied: its tokens are nobody's, and are written and seen nowhere."""
    numbers = np.zeros(num_numbers(shape), np.int32)
    (_, segment, parent, context, _, slots, _, _, first_own, _, page_context, *_) = views(numbers, shape)
    for place in (segment, parent, context, page_context):
        place[:] = PADDING
    slots[:] = NOWHERE
    first_own[:] = np.arange(1, shape.tokens + 1)
    numbers.flags.writeable = False
    return numbers


def unpack(numbers: Any, shape: StepShape) -> tuple[Step, Any, Any]:
    """Inside a program: the step, and its pairs' read-outs and labels."""
    (tokens, segment, parent, context, position, slots, first_entry, context_keys, first_own, page,
     page_context, page_start, page_length, readouts, pair_at, labels, counts) = views(numbers, shape)  # fmt: skip
    index = jnp.arange(shape.tokens, dtype=jnp.int32)
    places = Places(segment, parent, context, position)
    queries = Queries(places, index, first_entry, context_keys, first_own, counts[0])
    pages = PageTable(page, page_context, page_start, page_length)
    return Step(tokens, queries, slots, pages, readouts, counts[1]), pair_at, labels
