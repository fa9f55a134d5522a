"""`LoraConfig`: an adapter_config.json of PEFT, read strictly. What cannot be merged exactly is an error by name."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onepass.errors import BadCheckpoint, UnsupportedModel

READ = frozenset(
    {"alpha_pattern", "base_model_name_or_path", "lora_alpha", "peft_type", "r", "rank_pattern", "use_rslora"}
)
# Which tensors an adapter has is seen from its file; the rest says how it was trained.
HARMLESS = frozenset(
    {
        "auto_mapping",
        "bias",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_bias",
        "lora_dropout",
        "megatron_core",
        "modules_to_save",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    }
)
REFUSED = {
    "use_dora": "DoRA adapters are not supported",
    "fan_in_fan_out": "fan_in_fan_out is for GPT-2's Conv1D, which no supported model has",
    "layer_replication": "adapters that replicate layers are not supported",
    "trainable_token_indices": "adapters with trained tokens (trainable_token_indices) are not supported",
    "target_parameters": "adapters of single parameters (target_parameters) are not supported",
    "alora_invocation_tokens": "activated LoRA depends on the prompt and cannot be merged",
    "use_qalora": "QA-LoRA adapters are not supported",
    "megatron_config": "Megatron's layers are not supported",
}
# These change the base weights when they are set up, so the adapter alone does not say the model.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LoraConfig:
    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    base_model: str | None  # as the adapter names it

    def rank_of(self, module: str) -> int:
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank, alpha = self.rank_of(module), float(_by_pattern(self.alpha_pattern, module, self.alpha))
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def lora_config(raw: Mapping[str, Any]) -> LoraConfig:
    if raw.get("peft_type") != "LORA":
        raise UnsupportedModel(f"peft_type {raw.get('peft_type')!r} is not supported; supported: LORA")
    for key, reason in REFUSED.items():
        if raw.get(key):
            raise UnsupportedModel(f"{reason}; {key} is {str(raw[key])[:60]}")
    how = str(raw.get("init_lora_weights", True)).lower()
    if how.startswith(CHANGES_BASE):
        raise UnsupportedModel(
            f"init_lora_weights {how!r} changes the base weights; save the adapter as plain LoRA "
            "(path_initial_model_for_weight_conversion of PEFT)"
        )
    unknown = sorted(key for key, value in raw.items() if key not in READ | HARMLESS | REFUSED.keys() and value)
    if unknown:
        raise UnsupportedModel(
            f"adapter_config.json has keys that onepass does not know and so will not ignore: {', '.join(unknown)}"
        )
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if not _is_number(rank) or not isinstance(rank, int) or rank < 1 or not _is_number(alpha):
        raise BadCheckpoint(f"adapter_config.json must have r of at least 1 and lora_alpha; got {rank!r} and {alpha!r}")
    assert isinstance(alpha, int | float)
    return LoraConfig(
        rank=rank,
        alpha=float(alpha),
        rslora=bool(raw.get("use_rslora")),
        rank_pattern=raw.get("rank_pattern") or {},
        alpha_pattern=raw.get("alpha_pattern") or {},
        base_model=raw.get("base_model_name_or_path"),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first pattern that is the end of the module's name, as PEFT finds it."""
    for pattern, value in patterns.items():
        try:
            matched = re.match(rf"(.*\.)?({pattern})$", module)
        except re.error as error:
            raise BadCheckpoint(f"adapter_config.json has a pattern that is no expression: {pattern!r}") from error
        if matched:
            return value
    return default
