"""Configurations known by name, so that `random:qwen3-0.6b` needs no download.

Only shapes are here; where weights come from is `loading.source`.
"""

from onepass.errors import ModelNotFound
from onepass.models.config import ModelConfig
from onepass.models.rope import Rope

LLAMA3_ROPE = Rope(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)


def _qwen3(hidden: int, layers: int, heads: int, mlp: int, tied: bool) -> ModelConfig:
    return ModelConfig("qwen3", 151936, hidden, layers, heads, 8, 128, mlp, 40960, 1e-6, Rope(1e6), tied, qk_norm=True)


def _qwen2(
    hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, tied: bool, vocab: int = 151936
) -> ModelConfig:
    head_dim = hidden // heads
    return ModelConfig(
        "qwen2", vocab, hidden, layers, heads, kv_heads, head_dim, mlp, 32768, 1e-6, Rope(1e6), tied, qkv_bias=True
    )


def _llama32(hidden: int, layers: int, heads: int, head_dim: int, mlp: int) -> ModelConfig:
    return ModelConfig("llama", 128256, hidden, layers, heads, 8, head_dim, mlp, 131072, 1e-5, LLAMA3_ROPE, True)


def _smollm2(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, theta: float) -> ModelConfig:
    return ModelConfig(
        "llama", 49152, hidden, layers, heads, kv_heads, hidden // heads, mlp, 8192, 1e-5, Rope(theta), True
    )


KNOWN: dict[str, ModelConfig] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288, tied=False),
    "qwen2.5-0.5b": _qwen2(896, 24, 14, 2, 4864, tied=True),
    "qwen2.5-1.5b": _qwen2(1536, 28, 12, 2, 8960, tied=True),
    "qwen2.5-3b": _qwen2(2048, 36, 16, 2, 11008, tied=True),
    "qwen2.5-7b": _qwen2(3584, 28, 28, 4, 18944, tied=False, vocab=152064),
    "llama-3.2-1b": _llama32(2048, 16, 32, 64, 8192),
    "llama-3.2-3b": _llama32(3072, 28, 24, 128, 8192),
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, 100000.0),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, 100000.0),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, 130000.0),
}


def known_config(name: str) -> ModelConfig:
    if name not in KNOWN:
        raise ModelNotFound(f"no configuration is known as {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]
