"""Configurations of public models by their names on the hub, as published there: `PUBLISHED`.

For questions that shapes alone can answer, without a network. A model that is loaded comes with its own `config.json`;
shapes for random weights are `known`.
"""

from dataclasses import replace

from onepass.models.config import ModelConfig
from onepass.models.known import KNOWN
from onepass.models.rope import Rope

RERANKER_VOCABULARY = 151669


def _qwen3() -> dict[str, ModelConfig]:
    small = {size: KNOWN[f"qwen3-{size.lower()}"] for size in ("0.6B", "1.7B", "4B", "8B")}
    sizes = {
        **small,
        "14B": replace(small["8B"], hidden_size=5120, num_layers=40, num_heads=40, mlp_size=17408),
        "32B": replace(small["8B"], hidden_size=5120, num_layers=64, num_heads=64, mlp_size=25600),
    }
    base = {f"{size}-Base": replace(config, max_position=32768) for size, config in sizes.items() if size != "32B"}
    out = {f"Qwen/Qwen3-{size}": config for size, config in (sizes | base).items()}
    for size in ("0.6B", "4B", "8B"):
        out[f"Qwen/Qwen3-Reranker-{size}"] = replace(sizes[size], vocab_size=RERANKER_VOCABULARY)
    long = replace(sizes["4B"], max_position=262144, rope=Rope(5e6))
    return out | {"Qwen/Qwen3-4B-Instruct-2507": long, "Qwen/Qwen3-4B-Thinking-2507": long}


def _qwen25() -> dict[str, ModelConfig]:
    small = {size: KNOWN[f"qwen2.5-{size.lower()}"] for size in ("0.5B", "1.5B", "3B", "7B")}
    wide = replace(small["7B"], hidden_size=5120, num_heads=40, num_kv_heads=8)
    instruct = {
        **small,
        "14B": replace(wide, num_layers=48, mlp_size=13824),
        "32B": replace(wide, num_layers=64, mlp_size=27648),
        "72B": replace(wide, hidden_size=8192, num_heads=64, num_layers=80, mlp_size=29568),
    }
    out = {f"Qwen/Qwen2.5-{size}-Instruct": config for size, config in instruct.items()}
    out["Qwen/Qwen2.5-0.5B"] = small["0.5B"]
    out["Qwen/Qwen2.5-7B"] = replace(small["7B"], max_position=131072)
    out["Qwen/Qwen2.5-14B"] = replace(instruct["14B"], max_position=131072, rms_eps=1e-5)
    return out


def _llama3() -> dict[str, ModelConfig]:
    rope = Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    eight = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072, 1e-5, rope, False)
    seventy = replace(eight, hidden_size=8192, num_layers=80, num_heads=64, mlp_size=28672)
    first = {"max_position": 8192, "rope": Rope(500000.0)}
    families = {
        "Llama-3.2-1B": KNOWN["llama-3.2-1b"],
        "Llama-3.2-3B": KNOWN["llama-3.2-3b"],
        "Llama-3.1-8B": eight,
        "Llama-3.1-70B": seventy,
        "Meta-Llama-3-8B": replace(eight, **first),  # type: ignore[arg-type]
        "Meta-Llama-3-70B": replace(seventy, **first),  # type: ignore[arg-type]
    }
    both = {f"meta-llama/{name}{kind}": config for name, config in families.items() for kind in ("", "-Instruct")}
    return both | {"meta-llama/Llama-3.3-70B-Instruct": seventy}


def _others() -> dict[str, ModelConfig]:
    smollm2 = {
        f"HuggingFaceTB/SmolLM2-{size}{kind}": KNOWN[f"smollm2-{size.lower()}"]
        for size in ("135M", "360M", "1.7B")
        for kind in ("", "-Instruct")
    }
    mistral = ModelConfig("mistral", 32768, 4096, 32, 32, 8, 128, 14336, 32768, 1e-5, Rope(1e6), False)
    return smollm2 | {
        "mistralai/Mistral-7B-v0.3": mistral,
        "mistralai/Mistral-7B-Instruct-v0.3": mistral,
        "mistralai/Mistral-7B-Instruct-v0.2": replace(mistral, vocab_size=32000),
    }


PUBLISHED: dict[str, ModelConfig] = _qwen3() | _qwen25() | _llama3() | _others()
