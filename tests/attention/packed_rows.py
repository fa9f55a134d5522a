"""Random packed rows for the tests of kernels: a prefix, a context, and families of items and branches, all ragged."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from onepass.attention.base import RowShape
from onepass.attention.places import PADDING, Places, context_places


@dataclass(frozen=True)
class Packed:
    """Places of a batch of rows, padded to its shape."""

    own: Places
    prefix: Places

    @property
    def real(self) -> np.ndarray:
        return np.asarray(self.own.segment) != PADDING


@st.composite
def packed_rows(draw: st.DrawFn, shape: RowShape) -> Packed:
    """Rows that `shape` holds. A row without any token and a prefix of no keys occur too."""
    grid = np.full((shape.rows, shape.tokens, 3), (PADDING, PADDING, 0), np.int32)
    lengths = []
    for row in range(shape.rows):
        prefix, context = draw(st.integers(0, shape.prefix)), draw(st.integers(0, shape.context))
        grid[row, :context] = [(0, 0, prefix + i) for i in range(context)] or np.zeros((0, 3))
        items = _items(draw, shape, prefix + context)
        grid[row, shape.context : shape.context + len(items)] = np.array(items, np.int32).reshape(-1, 3)
        lengths.append(prefix)
    own = Places(*(jnp.array(grid[..., i]) for i in range(3)))
    return Packed(own, context_places(jnp.array(lengths, jnp.int32), shape.prefix))


def _items(draw: st.DrawFn, shape: RowShape, start: int) -> list[tuple[int, int, int]]:
    """(segment, parent, position) of families that fit; an item may be empty and still have branches."""
    places: list[tuple[int, int, int]] = []
    segment = 0
    for _ in range(draw(st.integers(0, 2 * shape.items // shape.band + 2))):
        left = min(shape.band, shape.items - len(places))
        item = draw(st.integers(0, left))
        segment += 1
        own = segment
        places += [(own, 0, start + i) for i in range(item)]
        used = item
        for _ in range(draw(st.integers(0, 2))):
            branch = draw(st.integers(0, min(5, left - used)))
            segment += 1
            places += [(segment, own, start + item + i) for i in range(branch)]
            used += branch
    return places
