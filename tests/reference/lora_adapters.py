"""LoRA adapters that PEFT itself saves for tiny checkpoints, and the logits of the model with each of them.

`make` is called by tests and runs this file as a script under the reference environment's Python. It writes
`out/NAME/adapter` as PEFT saves it and `out/NAME/expected.json` with the checkpoint, token ids and logits at the last
token: of PEFT's unmerged forward, which is what was trained.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SEQUENCES = [[5, 17, 40, 9], [40, 3, 3, 3, 3, 200, 511, 12], [77, 8]]
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
# The checkpoint, and the fields of LoraConfig; a task other than CAUSAL_LM makes a classifier of so many labels.
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama2", {"r": 4, "lora_alpha": 16, "target_modules": ATTENTION + MLP}),
    "rslora-patterns": (
        "qwen3",
        {
            "r": 4,
            "lora_alpha": 8,
            "use_rslora": True,
            "target_modules": ATTENTION + MLP,
            "rank_pattern": {r"layers\.0\.self_attn\.q_proj": 7, "down_proj": 2},
            "alpha_pattern": {"v_proj": 32},
        },
    ),
    "biases": ("llama-bias", {"r": 3, "target_modules": ["q_proj", "up_proj"], "bias": "all"}),
    "lora-bias": ("llama-bias", {"r": 3, "target_modules": ["q_proj", "down_proj"], "lora_bias": True}),
    "some-layers": ("qwen2", {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "head-saved": ("llama2", {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "tied-head-saved": ("qwen2", {"r": 4, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
    "tied-embedding": ("qwen2", {"r": 4, "target_modules": ["v_proj", "embed_tokens"]}),
    "untied-head-lora": ("llama2", {"r": 4, "target_modules": ["embed_tokens", "lm_head", "k_proj"]}),
    "classifier": ("qwen3", {"r": 4, "target_modules": ATTENTION, "task_type": "SEQ_CLS", "labels": 3}),
    "reward": ("llama2", {"r": 4, "target_modules": MLP, "task_type": "SEQ_CLS", "labels": 1}),
}


def make(reference_python: Path, checkpoints: dict[str, Path], out: Path) -> None:
    given = json.dumps({"checkpoints": {name: str(path) for name, path in checkpoints.items()}, "out": str(out)})
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [str(reference_python), __file__], input=given, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")


def _train(model: Any) -> None:
    """Random numbers in everything that training would change."""
    import torch  # type: ignore[import-not-found]

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                spread = 0.3 if "lora_" in name or "score" in name else 0.1
                parameter += spread * torch.randn_like(parameter)


def _adapter(checkpoint: str, fields: dict[str, Any], folder: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]
    from transformers import (  # type: ignore[import-not-found]
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
    )

    fields = dict(fields)
    labels, task = fields.pop("labels", 0), fields.setdefault("task_type", "CAUSAL_LM")
    if labels:
        model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=labels, dtype=torch.float32)
        model.config.pad_token_id = 599
    else:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(**fields))
    _train(adapted)
    adapted.eval()
    with torch.inference_mode():
        outputs = [adapted(torch.tensor([ids])).logits[0] for ids in SEQUENCES]
    logits = [(out if labels else out[-1]).tolist() for out in outputs]
    adapted.save_pretrained(folder / "adapter")
    expected = {"checkpoint": checkpoint, "task": task, "sequences": SEQUENCES, "logits": logits}
    (folder / "expected.json").write_text(json.dumps(expected))


def main() -> None:
    import torch

    given = json.load(sys.stdin)
    for name, (checkpoint, fields) in ADAPTERS.items():
        torch.manual_seed(len(name))
        _adapter(given["checkpoints"][checkpoint], fields, Path(given["out"], name))


if __name__ == "__main__":
    main()
