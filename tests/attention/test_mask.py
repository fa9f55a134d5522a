"""The visibility rule is the matrix drawn in its module, and nothing else."""

import jax.numpy as jnp
import numpy as np

from onepass.attention import mask
from onepass.attention.mask import Places, plain_causal, visible


def places_of(*rows: tuple[int, int, int, int]) -> Places:
    columns = [jnp.array(column) for column in zip(*rows, strict=True)]
    return Places(*columns)


def drawn(text: str) -> np.ndarray:
    """The matrix of a drawing: rows of 1 and . after a token's letter."""
    rows = [line.split()[1:] for line in text.strip().splitlines()[1:]]
    return np.array([[cell == "1" for cell in row] for row in rows])


def test_items_see_the_context_and_themselves_only() -> None:
    # (segment, parent, context, position): three context tokens, item a, item b.
    tokens = places_of((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (1, 0, 0, 3), (1, 0, 0, 4), (2, 0, 0, 3), (2, 0, 0, 4))
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


def test_branches_see_their_item_and_nobody_sees_another_request() -> None:
    request = [(0, 0, 0, 0), (0, 0, 0, 1), (9, 0, 0, 2), (9, 0, 0, 3), (10, 9, 0, 4), (11, 9, 0, 4)]
    tokens = places_of(*request, (1, 1, 1, 0), (12, 1, 1, 1))
    matrix = mask.__doc__
    assert matrix is not None
    wanted = drawn(matrix[matrix.index("            c c a a x y d b") : matrix.index("How tokens get")])
    np.testing.assert_array_equal(visible(tokens, tokens), wanted)


def test_padding_is_seen_by_nobody() -> None:
    tokens = places_of((0, 0, 0, 0), (1, 0, 0, 1), (-1, -1, -1, 0))
    for rule in (visible, plain_causal):
        assert not np.asarray(rule(tokens, tokens))[:, 2].any()


def test_the_negative_control_lets_items_and_requests_see_each_other() -> None:
    tokens = places_of((0, 0, 0, 0), (1, 1, 1, 0), (8, 0, 0, 1), (9, 1, 1, 1))
    np.testing.assert_array_equal(plain_causal(tokens, tokens), np.tril(np.ones((4, 4), bool)))
