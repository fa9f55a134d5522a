"""Tiles of a product on Hopper GPUs: their sizes, and how they are shared out to programs, pairs of multiprocessors."""

from typing import Any

import jax.numpy as jnp

ROWS = 64  # tokens of a warpgroup
COLUMNS = 128  # of a tile of weights; fewer where that leaves multiprocessors without work
DEPTH_BYTES = 128  # of a step
STAGED_PART = 32  # columns that `epilogue` may write at a time
FEW_TOKENS = 1024  # that a step can have
SHARED_BYTES = 192 << 10  # for the steps under way
WARPGROUPS = 2
TOGETHER = 2  # multiprocessors that share tiles
NEAR = 4  # pairs of tiles of tokens that meet all weights before the next; 4, 8 and 16 tried
TOKENS = WARPGROUPS * ROWS  # of a multiprocessor


def shares_tokens(tokens: int, pairs: int) -> bool:
    """Whether two multiprocessors share tiles of tokens, or else of weights. These are more than tokens, unless tokens
    are many; and both must have work of a kind."""
    return (tokens <= FEW_TOKENS and pairs % TOGETHER == 0) or tokens % (TOGETHER * TOKENS) != 0


def rounds(units: Any, programs: int, parts: int) -> tuple[Any, Any]:
    """How many units of work are done whole, and how many parts of units follow: those of a last round that takes half
    as long in parts."""
    rest = units % programs
    rest = jnp.where(parts * rest <= parts // 2 * programs, rest, 0)
    return units - rest, parts * rest


def place_of(number: Any, down: Any, pairs: int) -> tuple[Any, Any]:
    """Which pair of tiles of tokens, of `down`, meets which pair of tiles of weights, as the number-th."""
    group, within = number // (NEAR * pairs), number % (NEAR * pairs)
    wide = jnp.clip(down - group * NEAR, 1, NEAR)
    return group * NEAR + within % wide, within // wide


def whole_tiles(tokens: int, pairs: int) -> bool:
    """Whether so many tokens and pairs of tiles can be shared out to pairs of multiprocessors."""
    return tokens % TOKENS == 0 and (tokens // TOKENS % TOGETHER == 0 or pairs % TOGETHER == 0)


def depth_of(dtype: Any) -> int:
    """Terms of a step."""
    return DEPTH_BYTES // jnp.dtype(dtype).itemsize
