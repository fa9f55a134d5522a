"""The visibility rule is the matrix drawn in its module, and nothing else."""

import jax.numpy as jnp
import numpy as np

from onepass.attention import places
from onepass.attention.places import Places, plain_causal, visible


def places_of(*rows: tuple[int, int, int]) -> Places:
    columns = [jnp.array(column) for column in zip(*rows, strict=True)]
    return Places(*columns)


def drawn(text: str) -> np.ndarray:
    """The matrix of a drawing: rows of 1 and . after a token's letter."""
    rows = [line.split()[1:] for line in text.strip().splitlines()[1:]]
    return np.array([[cell == "1" for cell in row] for row in rows])


def test_items_see_the_context_and_themselves_only() -> None:
    # (segment, parent, position): three context tokens, item a, item b.
    tokens = places_of((0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 3), (1, 0, 4), (2, 0, 3), (2, 0, 4))
    wanted = drawn(
        """
            c c c a a b b
        c   1 . . . . . .
        c   1 1 . . . . .
        c   1 1 1 . . . .
        a   1 1 1 1 . . .
        a   1 1 1 1 1 . .
        b   1 1 1 . . 1 .
        b   1 1 1 . . 1 1
        """
    )
    np.testing.assert_array_equal(visible(tokens, tokens), wanted)


def test_branches_see_their_item_and_never_one_another() -> None:
    tokens = places_of((0, 0, 0), (0, 0, 1), (1, 0, 2), (1, 0, 3), (2, 1, 4), (3, 1, 4))
    matrix = places.__doc__
    assert matrix is not None
    wanted = drawn(matrix[matrix.index("            c c a a x y") : matrix.index("How tokens get")])
    np.testing.assert_array_equal(visible(tokens, tokens), wanted)


def test_padding_is_seen_by_nobody() -> None:
    tokens = places_of((0, 0, 0), (1, 0, 1), (-1, -1, 0))
    seen = np.asarray(visible(tokens, tokens))
    assert not seen[:, 2].any()


def test_the_negative_control_lets_items_see_each_other() -> None:
    tokens = places_of((0, 0, 0), (1, 0, 1), (2, 0, 1))
    np.testing.assert_array_equal(plain_causal(tokens, tokens), np.tril(np.ones((3, 3), bool)))
