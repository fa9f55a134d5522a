"""One decoder for every supported architecture: a flat step of tokens in, hidden states at its read-outs out.

Pure functions. Layers are scanned with the pool of pages as carry, which stays in place: each layer writes the keys of
the step's context tokens into their pages, then attends. The last layer is trimmed to what scoring needs: keys and
values of every token, and everything else only at read-outs. The LM head runs at read-outs only, over the whole
vocabulary only when asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.base import Attention, KeyValues, KvPool, Queries, Step, StepShape, precision
from onepass.attention.reference import fit_block
from onepass.models import layers as parts
from onepass.models.config import ModelConfig
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.layer_ops import Count, Layer, LayerOps, Qkv, Stream, XlaLayerOps
from onepass.models.weights import Layers, Weights
from onepass.parallel.collectives import own_rows, reduce_vocabulary, reduce_vocabulary_columns, total
from onepass.parallel.split import WHOLE, Split

# The vocabulary's logits are held for at most this many bytes of read-outs at a time.
LOGIT_BYTES = 1 << 28
# On a CPU, XLA's products take a step in blocks, and none past the last real token: quarters of it, but no fewer tokens
# than this, for every block has all weights brought into the products' order anew.
CPU_BLOCK = 128
CPU_READOUTS = 16  # read-outs whose vocabulary is computed together, at least
XLA = XlaLayerOps()


@dataclass(frozen=True)
class Network:
    """What computes a step, decided at load time: one device's sizes, the attention, and the products of a layer."""

    config: ModelConfig
    attention: Attention
    ops: LayerOps = XLA


def hidden_states(
    network: Network, shape: StepShape, weights: Weights, step: Step, pool: KvPool
) -> tuple[Float[Array, "readouts hidden"], KvPool]:
    """Final hidden states at the read-outs, and the pool with the keys and values of the step's context tokens."""
    config, attention, ops = network.config, network.attention, network.ops
    queries, count = step.queries, step.queries.count
    with jax.named_scope("embedding"):
        embedded = total(config.split, _rows(config.split, weights.embed, step.tokens))
        x = embedded.astype(jnp.float32)  # the residual stream: in 16 bits every layer would round it
    angles = parts.rotary_angles(config, queries.places.position)
    with jax.named_scope("block_table"):
        prepared = attention.prepare(queries, step, shape)

    def layer(carry: tuple[Array, Stream, KvPool]) -> tuple[Array, Stream, KvPool]:
        at, stream, pool = carry
        q, k, v = _qkv(config, ops, weights.layers, at, stream, angles, count)
        with jax.named_scope("kv_write"):
            pool = attention.write(pool, at, k, v, step, prepared)
        with jax.named_scope("attention"):
            out = attention.attend(q, KeyValues(k, v, pool, at), queries, step, shape, prepared)
        return at + 1, _rest(config, ops, weights.layers, at, stream, out, count), pool

    with jax.named_scope("embedding"):
        stream = ops.begin(config, weights.layers, x, count)
    first = (jnp.int32(0), stream, pool)
    _, stream, pool = jax.lax.while_loop(lambda carry: carry[0] < config.num_layers - 1, layer, first)
    if ops.finishes(config, weights.layers):
        x, pool = _last_layer_by_kernels(network, shape, weights.layers, step, stream, angles, pool, prepared)
    else:
        x, pool = _last_layer(network, shape, weights.layers, step, stream, angles, pool, prepared)
    return parts.rms_norm(x, weights.final_norm, config.rms_eps), pool


def _last_layer(
    network: Network,
    shape: StepShape,
    layers: Layers,
    step: Step,
    stream: Stream,
    angles: parts.Angles,
    pool: KvPool,
    prepared: Any,
) -> tuple[Array, KvPool]:
    """Keys and values of all tokens; the rest at read-outs, or queries of all where that takes less time."""
    config, attention, ops = network.config, network.attention, network.ops
    at, x = jnp.int32(config.num_layers - 1), ops.end(stream)
    readouts: Queries = step.queries.take(step.readouts, step.num_readouts)
    if ops.projects_all(layers, x.shape[0]):
        q, k, v = _qkv(config, ops, layers, at, stream, angles, step.queries.count)
        with jax.named_scope("qkv"):
            q = q[step.readouts]
    else:
        layer = layers.layer(at)
        with jax.named_scope("qkv"):
            normed = parts.rms_norm(x, layer.attention_norm, config.rms_eps)
            k, v = parts.project_kv(config, layer, normed, angles)
            cos, sin = (a[step.readouts] for a in angles)
            q = parts.project_q(config, layer, normed[step.readouts], (cos, sin))
    with jax.named_scope("kv_write"):
        pool = attention.write(pool, at, k, v, step, prepared)
    with jax.named_scope("block_table"):
        tables = attention.prepare(readouts, step, shape)
    with jax.named_scope("attention"):
        out = attention.attend(q, KeyValues(k, v, pool, at), readouts, step, shape, tables)
    return _rest(config, XLA, layers, at, x[step.readouts], out, step.num_readouts), pool


def _last_layer_by_kernels(
    network: Network,
    shape: StepShape,
    layers: Layers,
    step: Step,
    stream: Stream,
    angles: parts.Angles,
    pool: KvPool,
    prepared: Any,
) -> tuple[Array, KvPool]:
    """The same by the kernels of the layers before: queries of all tokens are computed, too."""
    config, attention, ops = network.config, network.attention, network.ops
    at, count = jnp.int32(config.num_layers - 1), step.num_readouts
    q, k, v = _qkv(config, ops, layers, at, stream, angles, step.queries.count)
    readouts: Queries = step.queries.take(step.readouts, count)
    with jax.named_scope("kv_write"):
        pool = attention.write(pool, at, k, v, step, prepared)
    with jax.named_scope("block_table"):
        tables = attention.prepare(readouts, step, shape)
    with jax.named_scope("attention"):
        out = attention.attend(q[step.readouts], KeyValues(k, v, pool, at), readouts, step, shape, tables)
    chosen = ops.begin(config, layers, ops.end(stream)[step.readouts], count)
    return ops.end(_rest(config, ops, layers, at, chosen, out, count)), pool


def _qkv(
    config: ModelConfig, ops: LayerOps, layers: Layers, at: Layer, stream: Stream, angles: parts.Angles, count: Count
) -> Qkv:
    def whole(stream: Stream, angles: parts.Angles, count: Count) -> Qkv:
        with jax.named_scope("qkv"):
            return ops.qkv(config, layers, at, stream, angles, count)

    def in_blocks(stream: Stream, angles: parts.Angles, count: Count) -> Qkv:
        return by_blocks(lambda part: whole(part[0], part[1], count), (stream, angles), None, count)

    return _on_cpu(ops, stream, in_blocks, whole)(stream, angles, count)


def _rest(
    config: ModelConfig, ops: LayerOps, layers: Layers, at: Layer, stream: Stream, attended: Array, count: Count
) -> Stream:
    """What follows attention."""

    def whole(stream: Stream, attended: Array, count: Count) -> Stream:
        with jax.named_scope("attn_out"):
            stream = ops.attn_out(config, layers, at, stream, attended, count)
        with jax.named_scope("mlp/gate_up"):
            activation = ops.gate_up(config, layers, at, stream, count)
        with jax.named_scope("mlp/down"):
            return ops.down(config, layers, at, stream, activation, count)

    def in_blocks(stream: Stream, attended: Array, count: Count) -> Stream:
        return by_blocks(lambda part: whole(part[0], part[1], count), (stream, attended), stream, count)

    return _on_cpu(ops, attended, in_blocks, whole)(stream, attended, count)


def _on_cpu(ops: LayerOps, tokens: Any, in_blocks: Callable[..., Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """Blocks where XLA computes on a CPU. A loop whose length is data would cost a GPU a wait for the host."""
    count = jax.tree.leaves(tokens)[0].shape[0]
    if not ops.in_blocks or cpu_block(count) == count:
        return whole
    return lambda *given: jax.lax.platform_dependent(*given, cpu=in_blocks, default=whole)


def cpu_block(tokens: int) -> int:
    """Tokens that XLA's products take at a time on a CPU."""
    return fit_block(tokens, max(CPU_BLOCK, tokens // 4))


def by_blocks(function: Callable[[Any], Any], given: Any, like: Any, count: Count, most: int | None = None) -> Any:
    """`function` of blocks of tokens, up to the last real one; what is left out stays as in `like`, or is 0."""
    tokens = jax.tree.leaves(given)[0].shape[0]
    block = cpu_block(tokens) if most is None else fit_block(tokens, most)

    def cut(n: Any) -> Any:
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, n * block, block), given)

    if like is None:
        shapes = jax.eval_shape(function, cut(0))
        like = jax.tree.map(lambda a: jnp.zeros((tokens, *a.shape[1:]), a.dtype), shapes)

    def step(n: Array, out: Any) -> Any:
        return jax.tree.map(
            lambda a, new: jax.lax.dynamic_update_slice_in_dim(a, new, n * block, axis=0), out, function(cut(n))
        )

    return jax.lax.fori_loop(0, -(-count // block), step, like)


def pair_logits(
    weights: Weights,
    hidden: Float[Array, "readouts hidden"],
    at: Int[Array, " pairs"],
    labels: Int[Array, " pairs"],
    split: Split = WHOLE,
) -> Float[Array, " pairs"]:
    """The logit of each pair's label at its read-out."""
    with jax.named_scope("labels"):
        rows = _rows(split, weights.unembed, labels).astype(jnp.float32)
        logits = total(split, (hidden[at].astype(jnp.float32) * rows).sum(axis=-1))
        return logits if weights.head_bias is None else logits + weights.head_bias[labels].astype(jnp.float32)


def _rows(split: Split, table: Array | GgufMatrix, ids: Int[Array, "..."]) -> Float[Array, "... hidden"]:
    return table.rows(ids) if isinstance(table, GgufMatrix) else own_rows(split, table, ids)


def _vocabulary_logits(table: Array, hidden: Array) -> Float[Array, "readouts vocab"]:
    return jnp.einsum("rd,vd->rv", hidden, table, precision=precision(hidden.dtype), preferred_element_type=jnp.float32)


def _vocabulary_columns(table: Array, hidden: Array) -> Float[Array, "vocab readouts"]:
    return jnp.einsum("vd,rd->vr", table, hidden, precision=precision(hidden.dtype), preferred_element_type=jnp.float32)


def over_vocabulary(
    network: Network, weights: Weights, hidden: Float[Array, "readouts hidden"], count: Count
) -> Float[Array, "3 readouts"]:
    """At each read-out log Σ exp(logit) over the vocabulary, the largest logit and its token, by a kernel where there
    is one. On a CPU it stops at the last of the `count` real ones."""
    with jax.named_scope("vocabulary"):
        found = network.ops.over_vocabulary(network.config, weights, hidden, count)
    return _over_vocabulary(weights, hidden, count, network.config.head_split) if found is None else found.T


def _over_vocabulary(weights: Weights, hidden: Array, count: Count, split: Split) -> Array:
    """By XLA, holding the logits of a bounded number of read-outs."""

    def some(block: Array) -> Array:
        logits = _vocabulary_logits(weights.unembed, block)
        if weights.head_bias is not None:
            logits += weights.head_bias.astype(jnp.float32)
        return jnp.stack(reduce_vocabulary(split, logits), axis=-1)

    at_once = max(1, LOGIT_BYTES // (4 * weights.unembed.shape[0]))

    def whole(hidden: Array, count: Count) -> Array:
        if len(hidden) <= at_once:
            return some(hidden)
        blocks = jnp.pad(hidden, ((0, -len(hidden) % at_once), (0, 0))).reshape(-1, at_once, hidden.shape[1])
        return jax.lax.map(some, blocks).reshape(-1, 3)[: len(hidden)]

    def in_columns(block: Array) -> Array:
        """XLA's product on a CPU takes few read-outs at full speed only where they are its columns."""
        logits = _vocabulary_columns(weights.unembed, block)
        if weights.head_bias is not None:
            logits += weights.head_bias.astype(jnp.float32)[:, None]
        return jnp.stack(reduce_vocabulary_columns(logits), axis=-1)

    def in_blocks(hidden: Array, count: Count) -> Array:
        function, parts = (some, 4) if split.devices > 1 else (in_columns, 8)
        return by_blocks(function, hidden, None, count, min(at_once, max(CPU_READOUTS, len(hidden) // parts)))

    with jax.named_scope("vocabulary"):
        return jax.lax.platform_dependent(hidden, count, cpu=in_blocks, default=whole).T
