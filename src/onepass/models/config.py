"""What a decoder is made of, as one frozen noun: `ModelConfig`.

A HF `config.json` is read by `hf_config`, a GGUF file by `loading.gguf.config`. The names of known models are in
`known`; tensors and their shapes are in `weights`.
"""

from dataclasses import dataclass

from onepass.errors import UnsupportedModel
from onepass.models.rope import Rope
from onepass.parallel.split import WHOLE, Split


@dataclass(frozen=True)
class ModelConfig:
    """A dense pre-norm decoder with gated SiLU MLPs; everything the network and the loader need to know."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    max_position: int
    rms_eps: float
    rope: Rope
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    num_labels: int = 0  # rows of a classification head, which takes the place of the LM head; 0: there is none
    head_bias: bool = False  # of the classification head
    split: Split = WHOLE  # among how many devices; the sizes above are then one device's (`models.layout`)

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"the query heads must be a multiple of the KV heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim must be even for rotary positions; got {self.head_dim}")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        d, f, heads = self.hidden_size, self.mlp_size, self.head_dim
        qkv = self.num_kv_heads * (self.group + 2) * heads
        layer = d * qkv + self.num_heads * heads * d + 3 * d * f + 2 * d
        layer += qkv * self.qkv_bias + d * self.out_bias + (2 * f + d) * self.mlp_bias + 2 * heads * self.qk_norm
        if self.num_labels:
            return self.num_layers * layer + d + self.vocab_size * d + self.num_labels * (d + self.head_bias)
        return self.num_layers * layer + d + self.vocab_size * d * (1 if self.tied else 2)

    @property
    def head_split(self) -> Split:
        """Among how many devices the head's rows are divided: every device has a classification head whole."""
        return WHOLE if self.num_labels else self.split

    def kv_bytes_per_token(self, itemsize: int) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize
