"""One decoder for every supported architecture: rows of tokens in, KV or label logits out. Pure functions.

Layers are scanned; the last one is trimmed to what scoring needs: keys and values of every token, and everything else
only at read-out rows. The LM head runs at read-out rows only, over the whole vocabulary only when asked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.base import Asking, Attention, Keys, RowShape, precision
from onepass.attention.places import PADDING, Places, context_places
from onepass.attention.reference import fit_block
from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.products import Layer, Products, Stream, XlaProducts
from onepass.models.weights import Layers, Weights
from onepass.parallel.collectives import logsumexp, own_rows, total
from onepass.parallel.split import WHOLE, Split

# The vocabulary's logits are held for at most this many bytes of read-out rows at a time.
LOGIT_BYTES = 1 << 28
# On a CPU, tokens that pass through the MLP together: their activations stay in its caches. Of 256, 448 and 896 tried.
CPU_BLOCK = 512
# Elsewhere, rows of more than this many tokens pass through it in blocks of half as many at most: the activations of a
# row of 10,000 items would take more memory than the weights. In whole tiles of the kernels.
LARGE_ROW, WHOLE_TILE = 1 << 16, 256
XLA = XlaProducts()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefix:
    """A context already computed: keys and values per layer, its length, and the last token's final hidden state."""

    k: Float[Array, "layers rows keys kv_heads head_dim"]
    v: Float[Array, "layers rows keys kv_heads head_dim"]
    length: Int[Array, " rows"]
    hidden: Float[Array, "rows hidden"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The packed row format: context tokens first, then items. `readouts` index a row's tokens; the index just past
    them means the prefix's last token."""

    tokens: Int[Array, "rows tokens"]
    places: Places
    readouts: Int[Array, "rows readouts"]


def hidden_states(
    config: ModelConfig,
    attention: Attention,
    shape: RowShape,
    weights: Weights,
    rows: Rows,
    prefix: Prefix | None,
    products: Products = XLA,
) -> tuple[Float[Array, "rows readouts hidden"], Array, Array]:
    """Final hidden states at the read-outs, and every layer's keys and values of the row's context tokens."""
    from_prefix = (rows.readouts == shape.tokens)[..., None]
    rows, shape = _widened(rows, shape, products.multiple)
    embedded = total(config.split, own_rows(config.split, weights.embed, rows.tokens))
    x = embedded.astype(jnp.float32)  # the residual stream: in 16 bits every layer would round it
    angles = parts.rotary_angles(config, rows.places.position)
    context = None if prefix is None else context_places(prefix.length, shape.prefix)
    index = jnp.broadcast_to(jnp.arange(shape.tokens, dtype=jnp.int32), rows.tokens.shape)
    prepared = attention.prepare(rows.places, context, shape)

    def keys_of(layer: int | Array, in_stack: bool = False) -> Keys | None:
        if prefix is None or context is None:
            return None
        keys = Keys(prefix.k, prefix.v, context, jnp.int32(layer))
        return keys if in_stack else keys.picked()

    def keep(kept: Array, new: Array, at: int | Array) -> Array:
        """Into the stack's place: a stack made at the end would be one more copy of all of it."""
        return jax.lax.dynamic_update_index_in_dim(kept, new[:, : shape.context], at, axis=0)

    def step(carry: tuple[Stream, Array, Array], at: Array) -> tuple[tuple[Stream, Array, Array], None]:
        stream, kept_k, kept_v = carry
        with jax.named_scope("products"):
            q, k, v = products.heads(config, weights.layers, at, stream, angles)
        with jax.named_scope("attention"):
            own = Keys(k, v, rows.places)
            before = keys_of(at, attention.from_stack)
            out = attention.full(Asking(q, rows.places, index), own, before, shape, prepared)
        stream = _rest(config, products, weights.layers, at, stream, out)
        return (stream, keep(kept_k, k, at), keep(kept_v, v, at)), None

    last = config.num_layers - 1
    stack = (config.num_layers, shape.rows, shape.context, config.num_kv_heads, config.head_dim)
    kept = jnp.zeros(stack, weights.embed.dtype)
    stream = products.enter(config, weights.layers, x)
    (stream, k, v), _ = jax.lax.scan(step, (stream, kept, kept), jnp.arange(last))
    x = products.leave(stream)
    x, last_k, last_v = _last_layer(config, attention, shape, weights.layers, rows, x, angles, keys_of(last))
    k, v = keep(k, last_k, last), keep(v, last_v, last)
    x = _normed(config, x, weights.final_norm)
    if prefix is not None:
        x = jnp.where(from_prefix, prefix.hidden[:, None].astype(x.dtype), x)
    return x, k, v


def _widened(rows: Rows, shape: RowShape, multiple: int) -> tuple[Rows, RowShape]:
    """With padding after every row's tokens, so that all rows' tokens are a multiple."""
    spare = -shape.tokens % (multiple // math.gcd(shape.rows, multiple))
    if not spare:
        return rows, shape

    def pad(a: Array, value: int) -> Array:
        return jnp.pad(a, ((0, 0), (0, spare)), constant_values=value)

    places = jax.tree.map(lambda a: pad(a, PADDING), rows.places)
    return Rows(pad(rows.tokens, 0), places, rows.readouts), replace(
        shape, items=shape.items + spare, band=max(1, shape.band)
    )


def _last_layer(
    config: ModelConfig,
    attention: Attention,
    shape: RowShape,
    layers: Layers,
    rows: Rows,
    x: Array,
    angles: parts.Angles,
    prefix: Keys | None,
) -> tuple[Array, Array, Array]:
    """Keys and values of all tokens; the rest at read-out rows, unless these are most of the tokens anyway."""
    last = config.num_layers - 1
    layer = layers.layer(last)
    normed = _normed(config, x, layer.attention_norm)
    k, v = parts.project_kv(config, layer, normed, angles)
    own = Keys(k, v, rows.places)
    at = jnp.minimum(rows.readouts, shape.tokens - 1)

    def take(a: Array) -> Array:
        return jnp.take_along_axis(a, at.reshape(*at.shape, *[1] * (a.ndim - 2)), axis=1)

    if shape.readouts * max(1, min(shape.band, shape.items)) <= 4 * shape.tokens:
        places, turned = jax.tree.map(take, (rows.places, angles))
        q = parts.project_q(config, layer, take(normed), turned)
        out = attention.readouts(Asking(q, places, at), own, prefix, shape)
        return _rest(config, XLA, layers, last, take(x), out), k, v
    index = jnp.broadcast_to(jnp.arange(shape.tokens, dtype=jnp.int32), rows.tokens.shape)
    q = parts.project_q(config, layer, normed, angles)
    out = attention.full(Asking(q, rows.places, index), own, prefix, shape)
    return _rest(config, XLA, layers, last, take(x), take(out)), k, v


def _normed(config: ModelConfig, x: Array, weight: Array) -> Array:
    return parts.rms_norm(x, weight, config.rms_eps)


def _rest(
    config: ModelConfig, products: Products, layers: Layers, at: Layer, stream: Stream, attended: Array
) -> Stream:
    def rest(stream: Stream, attended: Array) -> Stream:
        with jax.named_scope("products"):
            stream = products.out(config, layers, at, stream, attended)
            activation = products.gated(config, layers, at, stream)
            return products.down(config, layers, at, stream, activation)

    def in_blocks(block: int) -> Callable[[Stream, Array], Stream]:
        def split(a: Array) -> Array:
            return a.reshape(-1, 1, block, *a.shape[2:])

        def run(stream: Stream, attended: Array) -> Stream:
            parts = jax.tree.map(split, (stream, attended))
            made = jax.lax.map(lambda part: rest(*part), parts)
            return jax.tree.map(lambda new, old: new.reshape(old.shape), made, stream)

        return run

    tokens = attended.shape[0] * attended.shape[1]
    large = tokens > LARGE_ROW and tokens % WHOLE_TILE == 0
    tiles = fit_block(tokens // WHOLE_TILE, LARGE_ROW // WHOLE_TILE // 2) if large else 0
    elsewhere = in_blocks(tiles * WHOLE_TILE) if large else rest
    if not products.in_blocks or tokens <= CPU_BLOCK:
        return elsewhere(stream, attended)
    return jax.lax.platform_dependent(stream, attended, cpu=in_blocks(fit_block(tokens, CPU_BLOCK)), default=elsewhere)


def read_out(
    weights: Weights,
    hidden: Float[Array, "rows readouts hidden"],
    labels: Int[Array, "rows readouts labels"],
    split: Split = WHOLE,
) -> Float[Array, "rows readouts labels"]:
    """Logits of each read-out's labels."""
    with jax.named_scope("read_out"):
        logits = jnp.einsum(
            "brd,brld->brl",
            hidden,
            own_rows(split, weights.unembed, labels),
            precision=precision(hidden.dtype),
            preferred_element_type=jnp.float32,
        )
        return total(split, logits)


def over_vocabulary(
    weights: Weights, hidden: Float[Array, "rows readouts hidden"], split: Split = WHOLE
) -> Float[Array, "rows readouts"]:
    """log Σ exp(logit) over the vocabulary, holding the logits of a bounded number of read-outs."""

    def some(block: Array) -> Array:
        logits = jnp.einsum(
            "rd,vd->rv", block, weights.unembed, precision=precision(block.dtype), preferred_element_type=jnp.float32
        )
        return logsumexp(split, logits)

    flat = hidden.reshape(-1, hidden.shape[-1])
    at_once = max(1, LOGIT_BYTES // (4 * weights.unembed.shape[0]))
    with jax.named_scope("read_out"):
        if len(flat) <= at_once:
            return some(flat).reshape(hidden.shape[:2])
        blocks = jnp.pad(flat, ((0, -len(flat) % at_once), (0, 0))).reshape(-1, at_once, flat.shape[1])
        return jax.lax.map(some, blocks).reshape(-1)[: len(flat)].reshape(hidden.shape[:2])
