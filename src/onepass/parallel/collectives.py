"""What devices that share one model say to each other: sums of partial products, rows of a split table, log-sum-exps.

Inside a program under `shard_map` every device runs the same decoder on its own heads, columns and rows; these are the
only places where it needs the others. For a model that is `WHOLE` on one device they cost nothing.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.parallel.split import AXIS, Split


def total(split: Split, partial: Array) -> Array:
    """The sum of what each device has."""
    return partial if split.devices == 1 else jax.lax.psum(partial, AXIS)


def own_rows(split: Split, table: Float[Array, "vocab size"], ids: Int[Array, "..."]) -> Float[Array, "... size"]:
    """This device's part of `table[ids]`: zeros for rows that lie elsewhere, so that `total` completes it."""
    if split.devices == 1:
        return table[ids]
    here = ids - jax.lax.axis_index(AXIS) * table.shape[0]
    mine = (here >= 0) & (here < table.shape[0])
    return jnp.where(mine[..., None], table[jnp.where(mine, here, 0)], 0)


def logsumexp(split: Split, logits: Float[Array, "rows vocab"]) -> Float[Array, " rows"]:
    """Over the whole vocabulary, of which each device has the logits of its own rows."""
    if split.devices == 1:
        return jax.nn.logsumexp(logits, axis=-1)
    assert split.vocab_size is not None
    row = jax.lax.axis_index(AXIS) * logits.shape[-1] + jnp.arange(logits.shape[-1])
    own = jax.nn.logsumexp(jnp.where(row < split.vocab_size, logits, -jnp.inf), axis=-1)
    top = jax.lax.pmax(own, AXIS)
    return top + jnp.log(jax.lax.psum(jnp.exp(own - top), AXIS))
