"""How long steps take at least on a target, from their arithmetic, their memory traffic and what devices must tell each
other; and how long they may take in truth, by an assumption that is stated.

Figures of chips are `chips`'; the compiler's own estimate, where there is one, is added by `latency`.
"""

from dataclasses import dataclass

from onepass.capacity.chips import Target
from onepass.capacity.dry_run import DryStep
from onepass.capacity.shard import Share

# What onepass reached of the published peak where it was measured: the contract workload in mode auto on one H200, the
# roofline's time (with the figures of `chips`) over the median of the stored run. A test computes it again. It is the
# newest run with one request at a time; its name has an older commit and -dirty, the tree was that of e5fa219.
EFFICIENCY = 0.455
MEASURED_IN = "bench-contract-random-qwen3-0.6b-nvidia-h200-16-cores-20261115t163938-06a25da067-dirty.json"
EFFICIENCY_SOURCE = (
    "the part of the published peak that onepass reached on one H200 (contract workload, host time included); "
    "not measured on this chip"
)


@dataclass(frozen=True)
class Cost:
    """Of one step, on one device. `sent` is what it sends to the others of its copy in ring sums."""

    product_flops: float
    attention_flops: float
    bytes: float
    sent: float = 0.0

    @property
    def flops(self) -> float:
        return self.product_flops + self.attention_flops


def cost_of(share: Share, step: DryStep, padded: bool = False) -> Cost:
    """Products of real tokens, attention to the keys that they see, the vocabulary at real read-outs; with `padded` the
    padding that is computed, too, of tokens and of the vocabulary's read-outs. Weights are read once, and the pages of
    each context."""
    cost, c = share.cost, share.one_device
    tokens = step.computed_tokens if padded else step.tokens
    whole = [program.size for program in step.programs if program.kind == "vocabulary"]
    readouts = sum(whole) if padded else step.readouts * len(whole)
    products = tokens * cost.flops_per_token + 2.0 * c.hidden_size * c.vocab_size * readouts
    attention = step.flops - step.tokens * cost.flops_per_token
    moved = cost.weight_bytes + step.pages * cost.page_bytes(step.shape.page)
    # Two sums a layer and one of the embeddings, of every token's hidden state; a ring sends each part twice.
    sums = (2 * c.num_layers + 1) * tokens * c.hidden_size * share.dtype.itemsize
    return Cost(products, attention, moved, sums * 2 * (share.tp - 1) / share.tp)


def least_seconds(cost: Cost, target: Target, share: Share) -> float:
    """The roofline of one step. A head narrower than the chip's matrix units leaves part of them empty. Sums between
    devices are not overlapped with anything."""
    flops = target.flops(share.dtype)
    attention = flops * fill(target, share)
    computing = cost.product_flops / flops + cost.attention_flops / attention
    return max(computing, cost.bytes / target.bandwidth) + cost.sent / target.chip.link


def fill(target: Target, share: Share) -> float:
    return min(1.0, share.config.head_dim / target.chip.matrix_width)
