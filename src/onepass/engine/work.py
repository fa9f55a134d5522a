"""How much arithmetic and memory rows cost: the one model behind planning, padding ratios and refusals.

Rates of a machine are in `config.Device`; which mode is cheapest is decided in `plan`.
"""

from dataclasses import dataclass
from functools import cached_property

from onepass.attention.base import RowShape
from onepass.engine.config import Device
from onepass.models.config import ModelConfig
from onepass.models.weights import Weights


@dataclass(frozen=True)
class Work:
    """Costs of rows of one model, in FLOPs and bytes."""

    config: ModelConfig
    itemsize: int
    layer_itemsize: int | None = None  # of the layers' weights, where they are quantized

    @classmethod
    def of(cls, config: ModelConfig, weights: Weights) -> "Work":
        return cls(config, weights.embed.dtype.itemsize, 1 if weights.layers.in_eight_bits else None)

    @cached_property
    def layer_parameters(self) -> int:
        c = self.config
        return c.num_parameters - c.vocab_size * c.hidden_size * (1 if c.tied else 2)

    @cached_property
    def flops_per_token(self) -> float:
        return 2.0 * self.layer_parameters

    @cached_property
    def flops_per_key(self) -> float:
        c = self.config
        return 4.0 * c.num_layers * c.num_heads * c.head_dim

    @cached_property
    def weight_bytes(self) -> int:
        layers = self.layer_parameters
        return (self.config.num_parameters - layers) * self.itemsize + layers * (self.layer_itemsize or self.itemsize)

    def flops(self, prefix: int, context: int, items: int, seen_by_items: float) -> float:
        """Products of all tokens, and attention to the keys each kind of token sees."""
        keys = (context + items) * prefix + context * context / 2 + items * (context + seen_by_items)
        return (context + items) * self.flops_per_token + self.flops_per_key * keys

    def shape_flops(self, shape: RowShape) -> float:
        seen = 2 * min(shape.band, shape.items)
        return shape.rows * self.flops(shape.prefix, shape.context, shape.items, seen)

    def seconds(self, flops: float, steps: int, device: Device) -> float:
        """A step reads the weights at least once."""
        floor = steps * self.weight_bytes / device.bytes_per_second
        return max(flops / device.flops, floor) + steps * device.dispatch_seconds

    def context_bytes(self, width: int) -> int:
        return width * self.config.kv_bytes_per_token(self.itemsize)

    def step_bytes(self, shape: RowShape, dense: bool, block_bytes: int = 1 << 28) -> int:
        """Peak temporaries of a step, from above: activations, the layer's keys, scores, logits."""
        c = self.config
        tokens = shape.rows * shape.tokens
        qkv = c.num_kv_heads * (c.group + 2) * c.head_dim
        wide = max(2 * c.mlp_size, 2 * qkv) + 4 * c.hidden_size
        activations = tokens * (wide * self.itemsize + 4 * c.num_heads * c.head_dim * 2)
        keys = shape.prefix + shape.tokens
        scores = shape.rows * c.num_heads * shape.tokens * keys * 4 * 2 if dense else 3 * block_bytes
        logits = min(1 << 28, 4 * c.vocab_size * shape.rows * max(1, shape.readouts))
        kept = shape.rows * shape.context * c.kv_bytes_per_token(self.itemsize) * 2
        return activations + scores + 2 * logits + kept + self.context_bytes(shape.prefix) * (shape.rows > 1)
