"""What PyTorch transformers says about sequences of token ids: a script of its own, run by a Python that has torch.

    python torch_oracle.py asked.json answered.json

Reads {"model": folder, "dtype": name, "labels": [ids], "sequences": [[ids], ...]}, writes {"logprobs": [[...], ...],
"versions": {...}}. It imports nothing of onepass: that Python need not have it. A GPU is used where PyTorch sees one
and it has room beside whoever asks.
"""

import json
import platform
import sys
from pathlib import Path
from typing import Any

ROOM = 1.5  # of the model's bytes: activations and the logits of one sequence are small beside it


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found,unused-ignore]
    import transformers  # type: ignore[import-not-found,unused-ignore]

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        asked["model"], dtype=getattr(torch, asked["dtype"]), attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names}
    if wrong:
        raise SystemExit(f"transformers wanted every tensor to fit the configuration; it found {wrong}")
    device = _device(torch, model)
    model.eval().to(device)
    labels = torch.tensor(asked["labels"])
    rows = []
    with torch.inference_mode():
        for tokens in asked["sequences"]:
            logits = model(torch.tensor([tokens], device=device), use_cache=False, logits_to_keep=1).logits[0, -1]
            rows.append(torch.log_softmax(logits.float().cpu(), dim=-1)[labels].tolist())
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return {
        "logprobs": rows,
        "versions": {**versions, "torch's python": platform.python_version(), "torch's device": name},
    }


def _device(torch: Any, model: Any) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    free, _ = torch.cuda.mem_get_info()
    held = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return "cuda" if free > ROOM * held else "cpu"


def main() -> None:
    asked, answered = map(Path, sys.argv[1:])
    found = answer(json.loads(asked.read_text(encoding="utf-8")))
    answered.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
