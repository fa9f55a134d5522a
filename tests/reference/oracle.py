"""What PyTorch transformers says about sequences of token ids: float32, eager attention, one forward per sequence.

`ask` is called by tests and runs this file as a script under the reference environment's Python, which alone has torch.
Text, tokenizers and tolerances are left to the caller: only ids go in, only log-probabilities come out.
"""

import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# {"model": folder or .gguf file, "dtype": "float32", "top": 0,
#  "sequences": [{"tokens": [ids], "labels": [ids], "continuation": [ids, may be left out]}]}
Job = dict[str, Any]
# {"sequences": [{"labels": [ids asked for, then the `top` likeliest others], "logprobs": [...], "continuation": []}],
#  "warnings": [what transformers complained about], "versions": {package: version}}
Answer = dict[str, Any]


def ask(reference_python: Path, jobs: list[Job]) -> list[Answer]:
    """Run all jobs in one process of the reference environment; its standard error is the message when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "jobs.json"), Path(folder, "answers.json")
        asked.write_text(json.dumps(jobs), encoding="utf-8")
        command = [str(reference_python), __file__, str(asked), str(answered)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "PYTHONWARNINGS": "default"}
        environment["OMP_WAIT_POLICY"] = "passive"  # spinning threads take minutes where cores are shared
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")
        answers: list[Answer] = json.loads(answered.read_text(encoding="utf-8"))
        return answers


class _Complaints(logging.Handler):
    """Keeps warnings, so that a checkpoint that transformers reads with reservations is seen as such."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def answer(job: Job) -> Answer:
    complaints = _Complaints()
    loggers = [logging.getLogger(name) for name in ("transformers", "py.warnings")]
    for logger in loggers:
        logger.addHandler(complaints)
    try:
        model = _load(job)
        sequences = [_answer_sequence(model, sequence, job.get("top", 0)) for sequence in job["sequences"]]
    finally:
        for logger in loggers:
            logger.removeHandler(complaints)
    return {"sequences": sequences, "warnings": complaints.messages, "versions": _versions()}


def _load(job: Job) -> Any:
    import torch  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

    path = Path(job["model"])
    where: dict[str, Any] = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model, loading = AutoModelForCausalLM.from_pretrained(
        **where, dtype=getattr(torch, job["dtype"]), attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: sorted(map(str, names)) for kind, names in loading.items() if names}
    if wrong:
        raise SystemExit(f"transformers wanted every tensor of {path} to fit its config; it found {wrong}")
    return model.eval()


def _answer_sequence(model: Any, sequence: dict[str, list[int]], top: int) -> dict[str, Any]:
    """A continuation is run in the same forward: a causal model's earlier positions do not see it."""
    import torch

    tokens, continuation = sequence["tokens"], sequence.get("continuation", [])
    with torch.inference_mode():
        ids = torch.tensor([tokens + continuation])
        logits = model(ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
    labels = list(sequence["labels"])
    labels += [token for token in logprobs[0].topk(top).indices.tolist() if token not in labels]
    return {
        "labels": labels,
        "logprobs": logprobs[0, labels].tolist(),
        "continuation": [float(logprobs[place, token]) for place, token in enumerate(continuation)],
    }


def _versions() -> dict[str, str]:
    import numpy
    import torch
    import transformers

    packages = {package.__name__: str(package.__version__) for package in (numpy, torch, transformers)}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


def main() -> None:
    asked, answered = map(Path, sys.argv[1:])
    logging.captureWarnings(True)
    jobs: list[Job] = json.loads(asked.read_text(encoding="utf-8"))
    answered.write_text(json.dumps([answer(job) for job in jobs]), encoding="utf-8")


if __name__ == "__main__":
    main()
