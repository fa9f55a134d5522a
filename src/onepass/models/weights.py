"""The network's weights as dataclass pytrees, and one abstract tree that states every leaf.

`abstract(config)` gives each leaf's shape, logical axes, initial scale and the Hugging Face tensors that fill it;
loading (`loading.load_weights`), splitting over devices (`layout`) and random weights (`random`) all derive from it.
Layers are stacked on their first axis, so that the decoder scans them. Query, key and value rows are fused by KV head
([kv_heads, group + 2, head_dim]), gate and up by [2, mlp].
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from onepass.models.config import ModelConfig
from onepass.models.gguf_matrix import GgufMatrix
from onepass.models.rotation import group_of, rotated

MATRICES = ("qkv", "out", "gate_up", "down")  # of a layer


def is_rotated(block: int) -> bool:
    """Whether weights in int8 with a scale of so many terms are stored rotated."""
    return group_of(block) > 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layers:
    """All layers, stacked: each leaf is [layers, ...], or a `GgufMatrix` of that shape. None where the architecture has
    no such weight."""

    attention_norm: Any
    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    out: Any
    out_bias: Any
    mlp_norm: Any
    gate_up: Any
    gate_up_bias: Any
    down: Any
    down_bias: Any
    # Of weights in 8 bits; None of all others. [layers, rows of the matrix] (`quantize`), or [layers, rows, blocks of
    # a row's terms] (`int8`).
    qkv_scale: Any = None
    out_scale: Any = None
    gate_up_scale: Any = None
    down_scale: Any = None
    # Of weights in int8 whose blocks have one: added after the scale.
    qkv_offset: Any = None
    out_offset: Any = None
    gate_up_offset: Any = None
    down_offset: Any = None

    @property
    def in_eight_bits(self) -> bool:
        return self.qkv_scale is not None

    def layer(self, index: jax.Array | int) -> "Layers":
        """One layer's weights, without the stacking axis; in 16 bits if they are kept in 8."""
        with jax.named_scope("weights"):
            one = jax.tree.map(lambda w: jax.lax.dynamic_index_in_dim(w, index, keepdims=False), self)
            if not self.in_eight_bits:
                return one
            wide = {name: one._widened(name) for name in MATRICES}
        rest = [f"{name}_{what}" for name in MATRICES for what in ("scale", "offset")]
        return replace(one, **wide, **dict.fromkeys(rest))

    def _widened(self, name: str) -> jax.Array:
        """One layer's matrix in the network's own numbers."""
        weight, scale, offset = (getattr(self, name + what) for what in ("", "_scale", "_offset"))
        blocks = weight.reshape(*scale.shape, -1).astype(scale.dtype) * scale[..., None]
        if offset is not None:
            blocks += offset[..., None]
        if weight.dtype == jnp.int8 and is_rotated(blocks.shape[-1]):
            blocks = rotated(blocks, group_of(blocks.shape[-1]))
        return blocks.astype(self.mlp_norm.dtype).reshape(weight.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embed: Any
    layers: Layers
    final_norm: Any
    head: Any  # None where tied to `embed`; [labels, hidden] of a classification head
    head_bias: Any = None

    @property
    def in_gguf_blocks(self) -> bool:
        """Whether matrices are `GgufMatrix`."""
        return isinstance(self.embed, GgufMatrix)

    @property
    def unembed(self) -> Any:
        return self.embed if self.head is None else self.head


@dataclass(frozen=True)
class Part:
    """A Hugging Face tensor and where it goes: `leaf[layer][index] = tensor.reshape(...)`."""

    name: str  # with {layer} where it is one of a stack
    shape: tuple[int, ...]
    index: tuple[slice | int, ...] = ()
    split: Literal["queries", "kv_heads", "mlp", "vocab"] | None = None  # what devices that share a model divide it by
    axis: int = 0  # of the tensor, along which they do


@dataclass(frozen=True)
class Leaf:
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    parts: tuple[Part, ...]
    init: float  # standard deviation; 0 for zeros, 1 for a norm's ones

    @property
    def stacked(self) -> bool:
        return self.axes[0] == "layers"


def abstract(config: ModelConfig) -> Weights:
    """The tree of `Leaf`s of this model."""
    vocab, d = config.vocab_size, config.hidden_size

    def table(name: str) -> Leaf:
        return Leaf((vocab, d), ("vocab", None), (Part(name, (vocab, d), split="vocab"),), 0.02)

    embed = table("model.embed_tokens.weight")
    norm = Leaf((d,), (None,), (Part("model.norm.weight", (d,)),), 1.0)
    if config.num_labels:
        rows = config.num_labels
        head = Leaf((rows, d), (None, None), (Part("score.weight", (rows, d)),), 0.02)
        bias = Leaf((rows,), (None,), (Part("score.bias", (rows,)),), 0.02) if config.head_bias else None
        return Weights(embed, _layers(config), norm, head, bias)
    return Weights(embed, _layers(config), norm, None if config.tied else table("lm_head.weight"))


def _layers(c: ModelConfig) -> Layers:
    d, f, hd, kv, g = c.hidden_size, c.mlp_size, c.head_dim, c.num_kv_heads, c.group
    attention, mlp = "model.layers.{layer}.self_attn.", "model.layers.{layer}.mlp."

    def leaf(shape: tuple[int, ...], axes: tuple[str | None, ...], init: float, *parts: Part) -> Leaf:
        return Leaf((c.num_layers, *shape), ("layers", *axes), parts, init)

    def norm(name: str, size: int) -> Leaf:
        return leaf((size,), (None,), 1.0, Part(f"model.layers.{{layer}}.{name}.weight", (size,)))

    def qkv_parts(kind: str, *last: int) -> tuple[Part, ...]:
        every = slice(None)
        return (
            Part(f"{attention}q_proj.{kind}", (kv * g * hd, *last), (every, slice(0, g)), "queries"),
            Part(f"{attention}k_proj.{kind}", (kv * hd, *last), (every, g), "kv_heads"),
            Part(f"{attention}v_proj.{kind}", (kv * hd, *last), (every, g + 1), "kv_heads"),
        )

    def gate_up_parts(kind: str, *last: int) -> tuple[Part, ...]:
        gate = Part(f"{mlp}gate_proj.{kind}", (f, *last), (0,), "mlp")
        return gate, Part(f"{mlp}up_proj.{kind}", (f, *last), (1,), "mlp")

    return Layers(
        attention_norm=norm("input_layernorm", d),
        qkv=leaf((kv, g + 2, hd, d), ("kv_heads", None, None, None), d**-0.5, *qkv_parts("weight", d)),
        qkv_bias=leaf((kv, g + 2, hd), ("kv_heads", None, None), 0.02, *qkv_parts("bias")) if c.qkv_bias else None,
        q_norm=norm("self_attn.q_norm", hd) if c.qk_norm else None,
        k_norm=norm("self_attn.k_norm", hd) if c.qk_norm else None,
        out=leaf(
            (d, kv, g, hd),
            (None, "kv_heads", None, None),
            (kv * g * hd) ** -0.5,
            Part(f"{attention}o_proj.weight", (d, kv * g * hd), (), "queries", 1),
        ),
        out_bias=leaf((d,), (None,), 0.02, Part(f"{attention}o_proj.bias", (d,))) if c.out_bias else None,
        mlp_norm=norm("post_attention_layernorm", d),
        gate_up=leaf((2, f, d), (None, "mlp", None), d**-0.5, *gate_up_parts("weight", d)),
        gate_up_bias=leaf((2, f), (None, "mlp"), 0.02, *gate_up_parts("bias")) if c.mlp_bias else None,
        down=leaf((d, f), (None, "mlp"), f**-0.5, Part(f"{mlp}down_proj.weight", (d, f), (), "mlp", 1)),
        down_bias=leaf((d,), (None,), 0.02, Part(f"{mlp}down_proj.bias", (d,))) if c.mlp_bias else None,
    )


def is_leaf(node: Any) -> bool:
    return isinstance(node, Leaf)


def named_leaves(tree: Weights) -> Iterator[tuple[str, Leaf]]:
    """The leaves that exist, with names such as `layers.qkv`."""
    for field in fields(Weights):
        node = getattr(tree, field.name)
        if isinstance(node, Layers):
            for inner in fields(Layers):
                if (leaf := getattr(node, inner.name)) is not None:
                    yield f"layers.{inner.name}", leaf
        elif node is not None:
            yield field.name, node
