"""How much arithmetic and memory a step costs: the one model behind padding ratios, refusals and capacity plans.

How long it takes is measured, never computed from this: by the scheduler, and for Retry-After by the admission.
"""

from dataclasses import dataclass
from functools import cached_property

import jax

from onepass.attention.base import StepShape
from onepass.models.config import ModelConfig
from onepass.models.weights import Weights


@dataclass(frozen=True)
class CostModel:
    """Costs of rows of one model, in FLOPs and bytes."""

    config: ModelConfig
    itemsize: int
    layer_itemsize: int | None = None  # of the layers' weights, where they are quantized
    stored_bytes: int | None = None  # of all weights, where they are in a file's blocks

    @classmethod
    def of(cls, config: ModelConfig, weights: Weights) -> "CostModel":
        stored = sum(array.nbytes for array in jax.tree.leaves(weights)) if weights.in_gguf_blocks else None
        return cls(config, weights.embed.dtype.itemsize, 1 if weights.layers.in_eight_bits else None, stored)

    @cached_property
    def layer_parameters(self) -> int:
        c = self.config
        heads = 1 if c.tied or c.num_labels else 2
        return c.num_parameters - c.vocab_size * c.hidden_size * heads

    @cached_property
    def flops_per_token(self) -> float:
        return 2.0 * self.layer_parameters

    @cached_property
    def flops_per_key(self) -> float:
        c = self.config
        return 4.0 * c.num_layers * c.num_heads * c.head_dim

    @cached_property
    def weight_bytes(self) -> int:
        if self.stored_bytes is not None:
            return self.stored_bytes
        layers = self.layer_parameters
        return (self.config.num_parameters - layers) * self.itemsize + layers * (self.layer_itemsize or self.itemsize)

    def flops(self, prefix: int, context: int, items: int, seen_by_items: float) -> float:
        """Products of all tokens, and attention to the keys each kind of token sees."""
        keys = (context + items) * prefix + context * context / 2 + items * (context + seen_by_items)
        return (context + items) * self.flops_per_token + self.flops_per_key * keys

    def page_bytes(self, page: int) -> int:
        """Of keys and values of so many tokens in every layer."""
        return page * self.config.kv_bytes_per_token(self.itemsize)

    def step_bytes(self, shape: StepShape, dense: bool = False, block_bytes: int = 1 << 28) -> int:
        """Peak temporaries of a step, from above: activations, scores, logits."""
        c = self.config
        qkv = c.num_kv_heads * (c.group + 2) * c.head_dim
        wide = max(2 * c.mlp_size, 2 * qkv) + 4 * c.hidden_size
        activations = shape.tokens * (wide * self.itemsize + 4 * c.num_heads * c.head_dim * 2)
        keys = shape.entries * shape.page + shape.tokens
        scores = c.num_heads * shape.tokens * keys * 4 * 2 if dense else 3 * min(block_bytes, 8 * activations)
        logits = min(1 << 28, 4 * (c.num_labels or c.vocab_size) * shape.readouts)
        return activations + scores + 2 * logits
