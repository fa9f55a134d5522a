"""Tiny rerankers and classifiers that sentence-transformers and transformers save themselves, and what those say.

`make` is called by tests and runs this file as a script under the reference environment's Python: it writes a folder
for each model below `out`, with `expected.json`: the pairs or token ids that were asked for, and the scores.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ARCHITECTURES = ("qwen3", "qwen2", "llama3", "mistral")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PAIR_TEMPLATE = (
    "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n"
    '<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | '
    f'default("{INSTRUCTION}") }}}}\n'
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>\n'
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
PAIRS = [
    ["Which planet is red?", "Mars is red."],
    ["Which planet is red?", " Venus is hot; the sea is blue\n"],
    ["price of the shoes", "7"],
    ["price of the shoes", "49.90, and the size was 42"],
]
TEXTS = [
    "Mars is red.",
    "Venus is hot; the sea is blue",
    "Mars is red.",
    "7",
    "The quick fox jumps over the lazy dog " * 9,
]
CONVERSATIONS = [
    [{"role": "user", "content": "Which planet is red?"}, {"role": "assistant", "content": "Mars, the red planet."}],
    [{"role": "user", "content": "Which planet is red?"}, {"role": "assistant", "content": "no idea {item}"}],
]
SEQUENCES = [[5, 17, 40, 9], [5, 17], [40, 3, 3, 3, 3, 200, 511, 12], [77]]


def make(reference_python: Path, checkpoints: dict[str, Path], out: Path, *, cross_encoders: bool = True) -> None:
    """Classifiers of every checkpoint, and cross-encoders of the one called qwen3."""
    folders = {name: str(path) for name, path in checkpoints.items()}
    given = json.dumps({"checkpoints": folders, "out": str(out), "cross_encoders": cross_encoders})
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [str(reference_python), __file__], input=given, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")


def _classifiers(name: str, checkpoint: str, out: Path) -> None:
    import torch  # type: ignore[import-not-found]
    from transformers import (  # type: ignore[import-not-found]
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    given = {
        "texts": [tokenizer(text).input_ids for text in TEXTS],
        "pairs": [tokenizer(*pair).input_ids for pair in PAIRS],
        "conversations": [
            tokenizer(tokenizer.apply_chat_template(one, tokenize=False), add_special_tokens=False).input_ids
            for one in CONVERSATIONS
            if tokenizer.chat_template is not None
        ],
    }
    for labels in (1, 3):
        torch.manual_seed(labels)
        model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=labels, dtype=torch.float32)
        torch.nn.init.normal_(model.score.weight, std=0.3)
        model.config.pad_token_id = 599
        with torch.inference_mode():
            logits = [model(torch.tensor([ids])).logits[0].tolist() for ids in SEQUENCES]
            read = {
                kind: [model(torch.tensor([ids])).logits[0].tolist() for ids in prompts]
                for kind, prompts in given.items()
            }
        said = {"sequences": SEQUENCES, "logits": logits, "read": read}
        _save(model, checkpoint, out / f"{name}-classifier-{labels}", said)


def _save(model: Any, checkpoint: str, folder: Path, expected: dict[str, Any]) -> None:
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes(Path(checkpoint, file).read_bytes())
    (folder / "expected.json").write_text(json.dumps(expected))


def _cross_encoders(checkpoint: str, out: Path) -> None:
    import torch
    from sentence_transformers import CrossEncoder  # type: ignore[import-not-found]
    from sentence_transformers.base.modules import Transformer  # type: ignore[import-not-found]
    from sentence_transformers.cross_encoder.modules import LogitScore  # type: ignore[import-not-found]

    processor = {"chat_template": PAIR_TEMPLATE, "pad_token": "<|im_end|>"}

    def language_model(score: Any, **options: Any) -> Any:
        transformer = Transformer(checkpoint, transformer_task="text-generation", processor_kwargs=processor)
        return CrossEncoder(modules=[transformer, score], **options)

    classifier = CrossEncoder(str(out / "qwen3-classifier-1"), processor_kwargs=processor)
    classifier[0].model.config.pad_token_id = classifier.tokenizer.pad_token_id
    models = {
        "difference": language_model(LogitScore(5, 17)),
        "prompted": language_model(LogitScore(5, 17), prompts={"web": "Find it"}, default_prompt_name="web"),
        "single": language_model(LogitScore(40), activation_fn=torch.nn.Identity()),
        "classifier": classifier,
    }
    for name, encoder in models.items():
        encoder.save_pretrained(str(out / name))
        instructed = encoder.predict(PAIRS, prompt="Be strict").tolist()
        raw = encoder.predict(PAIRS, activation_fn=torch.nn.Identity()).tolist()
        expected = {"pairs": PAIRS, "scores": encoder.predict(PAIRS).tolist(), "raw": raw, "instructed": instructed}
        (out / name / "expected.json").write_text(json.dumps(expected))


def main() -> None:
    given = json.load(sys.stdin)
    out = Path(given["out"])
    for name, checkpoint in given["checkpoints"].items():
        _classifiers(name, checkpoint, out)
    if given["cross_encoders"]:
        _cross_encoders(given["checkpoints"]["qwen3"], out)


if __name__ == "__main__":
    main()
