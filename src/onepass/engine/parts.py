"""What an engine is made of: rungs, pool, programs and planner, derived from a model, a device and a configuration.

Everything here is decided before anything is built, so that `capacity` and `onepass info` can ask without a device. The
loop that runs it is `engine`; which kernels there are is `kernels`.
"""

from dataclasses import dataclass

from jax.sharding import Mesh

from onepass.attention.base import Attention, StepShape
from onepass.engine.config import Device, EngineConfig
from onepass.engine.cost_model import CostModel
from onepass.engine.encoding.segments import FamilyLimit
from onepass.engine.planner import Planner
from onepass.engine.programs.builder import ProgramBuilder, zeros
from onepass.engine.programs.ladder import Ladder, ladder
from onepass.errors import ConfigError
from onepass.kernels.cpu.pool import untouched_zeros
from onepass.models.config import ModelConfig
from onepass.models.decoder import Network, cpu_block
from onepass.models.layer_ops import LayerOps
from onepass.models.layout import Layout
from onepass.models.weights import Weights

# Rungs of tokens below the largest, where kernels stop at the last real token. Hopper's products of up to 1,024 tokens
# share their work out in another way than those of more, and those of 384 in one round (`one_round`); what XLA does
# around them takes as long as the rung, not as the tokens in it.
RUNGS = {"hopper": (384, 1024, 8192), "cpu": (64, 256)}
# Elsewhere padding is computed, and rungs are halves.
HALVES = tuple(128 << n for n in range(7))
TPU_TOKENS = 128  # the TPU's kernel takes tokens in so many
# The pool always has room for so many tokens besides the cache's budget, unless the model takes fewer.
WORKING_TOKENS = 8192
WORKING_STEPS = 1


@dataclass(frozen=True)
class EngineParts:
    """What an engine is made of, decided before it is built: `config` by `kernels.for_device`, weights as they lie."""

    model_config: ModelConfig
    weights: Weights
    config: EngineConfig
    device: Device
    attention: Attention
    ops: LayerOps
    mesh: Mesh | None = None

    @property
    def layout(self) -> Layout:
        return Layout(self.model_config, self.mesh)

    @property
    def cost(self) -> CostModel:
        return CostModel.of(self.layout.share, self.weights)

    @property
    def ladder(self) -> Ladder:
        assert self.config.max_batch_tokens is not None
        kind = "cpu" if self.device.platform == "cpu" else self.config.attention
        multiple = max(self.ops.token_multiple, TPU_TOKENS if kind == "pallas-tpu" else 1)
        return ladder(
            self.config.max_batch_tokens, RUNGS.get(kind or "", HALVES), multiple,
            self.attention.page, self.model_config.max_position,
        )  # fmt: skip

    def computed_tokens(self, shape: StepShape, count: int) -> int:
        """Of a step with so many real tokens: products go on to the end of a block."""
        block = {"hopper": 128, "amx": 32, "cpu": 16}.get(self.config.attention or "", shape.tokens)
        if self.device.platform == "cpu" and self.ops.in_blocks:
            block = cpu_block(shape.tokens)
        return -(-count // block) * block

    @property
    def pages(self) -> int:
        """Of the pool: the cache's budget, room to work, and page 0."""
        page, most = self.attention.page, self.ladder.largest.tokens
        working = min(self.model_config.max_position, max(WORKING_TOKENS, WORKING_STEPS * most)) + most
        assert self.config.cache_bytes is not None
        return self.config.cache_bytes // self.cost.page_bytes(page) + -(-working // page) + 1

    def builder(self) -> ProgramBuilder:
        gpu = self.device.platform in ("gpu", "cuda")
        network = Network(self.layout.share, self.attention, self.ops)
        return ProgramBuilder(
            self.layout, network, self.ladder, self.weights, self.pages,
            writes_to_host=gpu and self.layout.devices == 1,
            many_vocabulary_sizes=self.device.platform != "cpu",
            empty_pool=untouched_zeros if self.mesh is None and self.config.attention in ("cpu", "amx") else zeros,
        )  # fmt: skip

    def planner(self) -> Planner:
        largest = self.ladder.largest
        pool_tokens = (self.pages - 1) * self.attention.page
        return Planner(self.config, FamilyLimit(largest.tokens, largest.readouts), pool_tokens)

    @property
    def pool_bytes(self) -> int:
        return self.pages * self.cost.page_bytes(self.attention.page)

    @property
    def step_bytes(self) -> int:
        """Temporaries of the largest step, from above."""
        return self.cost.step_bytes(self.ladder.largest, self.config.mask == "dense")

    def check_memory(self) -> None:
        assert self.config.memory_bytes is not None
        tokens, needed = self.ladder.largest.tokens, self.cost.weight_bytes + self.pool_bytes + self.step_bytes
        if needed > self.config.memory_bytes:
            raise ConfigError(
                f"weights, pool and a step of {tokens:,} tokens need about {needed / 2**30:.2f} GiB; there are "
                f"{self.config.memory_bytes / 2**30:.2f} GiB: a smaller cache_bytes or max_batch_tokens makes room"
            )
