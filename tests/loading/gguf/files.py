"""Makes tiny GGUF files with the `reader` package's own writer: any tensors, whole random models, small vocabularies.

Run as a script, it writes the models whose tokens are stored in `tests/reference/values` (see `gguf_tokenizers.py`).
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
from tokenizers.pre_tokenizers import ByteLevel

from loading.gguf.corpus import lines, sample

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
# Where the half-precision scales lie in a block of the types that the package cannot quantise to.
K_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@dataclass(frozen=True)
class Stored:
    """A tensor as the file has it: rows of bytes (or plain numbers) and their type."""

    data: np.ndarray
    kind: str


def stored(kind: str, shape: tuple[int, ...], seed: int = 0) -> Stored:
    """Random weights in any supported type: quantised by the package, or random blocks with finite scales."""
    dice = np.random.default_rng(seed)
    quant = GGMLQuantizationType[kind]
    if kind not in K_SCALES:
        return Stored(gguf.quants.quantize(dice.standard_normal(shape, np.float32), quant), kind)
    block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    blocks = dice.integers(0, 256, (*shape[:-1], shape[-1] // block, block_bytes), np.uint8)
    for place in K_SCALES[kind]:
        scales = dice.standard_normal(blocks.shape[:-1]).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return Stored(blocks.reshape(*shape[:-1], -1), kind)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored | np.ndarray]) -> Path:
    """Whole numbers become uint32 and fractions float32, as llama.cpp's converter writes them."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    kinds = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif key != "general.architecture":
            writer.add_key_value(key, value, kinds.get(type(value), GGUFValueType.STRING))
    for name, tensor in tensors.items():
        kept = tensor if isinstance(tensor, Stored) else Stored(tensor, "F32")
        writer.add_tensor(name, kept.data, raw_dtype=GGMLQuantizationType[kept.kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Two layers of four heads of 8, two of them keys."""
    keys = {
        "block_count": 2,
        "context_length": 256,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    return {"general.architecture": architecture} | {f"{architecture}.{k}": v for k, v in (keys | changes).items()}


def model_tensors(
    architecture: str = "llama", vocab: int = 40, tied: bool = False, bias: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Random weights under llama.cpp's names for the shapes of `model_metadata`."""
    rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 64, "ffn_up": 64, "ffn_down": 32}
    bias = {"attn_q", "attn_k", "attn_v"} if architecture == "qwen2" else set(bias)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, 32), "output_norm.weight": (32,)}
    if not tied:
        shapes["output.weight"] = (vocab, 32)
    for layer in range(2):
        block = f"blk.{layer}."
        shapes |= {f"{block}{name}.weight": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"{block}{name}.weight": (n, 64 if name == "ffn_down" else 32) for name, n in rows.items()}
        shapes |= {f"{block}{name}.bias": (rows[name],) for name in rows if name in bias}
        if architecture == "qwen3":
            shapes |= {f"{block}{name}.weight": (8,) for name in ("attn_q_norm", "attn_k_norm")}
    dice = np.random.default_rng(7)
    return {name: dice.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def byte_level_vocabulary(pre: str) -> dict[str, Any]:
    """Frequent pieces of the corpus, cut without regard to words, so that every way of splitting shows."""
    pieces, unmerged = _byte_level_pieces(), "Ġinternationalization"  # a token that no merge leads to
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", *letters, *pieces, unmerged]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 4),
        "tokenizer.ggml.merges": [f"{piece[:-1]} {piece[-1]}" for piece in pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def sentencepiece_vocabulary(space_prefix: bool = True) -> dict[str, Any]:
    """Scores fall with the rank; some letters of the corpus are left to the byte tokens."""
    specials, raw, ranked = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)], _sentencepieces()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*specials, *raw, *ranked, "<|im_start|>"],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(ranked))] + [0.0],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(ranked)
        + [USER_DEFINED],
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


@cache
def _byte_level_pieces() -> list[str]:
    encode = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    encoded = ("".join(word for word, _ in encode(line)) for line in lines()[::5])
    # llama.cpp makes a plain "</s>" a special token, which no other reader does
    return _frequent_pieces(encoded, lambda piece: not piece.startswith("</s>"))


@cache
def _sentencepieces() -> list[str]:
    visible = [line.replace(" ", "▁") for line in lines()[::5]]
    letters = {letter for line in visible for letter in line if 0 < ord(letter) < 0x600} | {"▁"}
    pieces = _frequent_pieces(visible, lambda piece: set(piece) <= letters and piece not in ("<s>", "</s>", "<0x0A>"))
    return [*pieces, *sorted(letters)]


def _frequent_pieces(texts: Iterable[str], wanted: Callable[[str], bool] = bool) -> list[str]:
    """Strings of two to six letters, shortest first, then by count; whatever begins one is in the list before it."""
    counts: Counter[str] = Counter()
    for text in texts:
        for size in range(2, 7):
            counts.update(text[i : i + size] for i in range(len(text) - size + 1))
    kept = [piece for piece, count in counts.items() if count >= 8 and wanted(piece)]
    return sorted(kept, key=lambda piece: (len(piece), -counts[piece], piece))


def vocabularies() -> dict[str, dict[str, Any]]:
    """One for each way of cutting text that llama.cpp knows and onepass supports."""
    patterns = ("default", "gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx")
    made = {f"gpt2-{pre}": byte_level_vocabulary(pre) for pre in patterns}
    return made | {"llama-prefix": sentencepiece_vocabulary(), "llama-plain": sentencepiece_vocabulary(False)}


def write_models(folder: Path) -> list[Path]:
    """A model that llama.cpp can open around each of the `vocabularies`."""
    return [
        write_gguf(
            folder / f"{name}.gguf",
            model_metadata("llama") | vocabulary,
            model_tensors("llama", len(vocabulary["tokenizer.ggml.tokens"])),
        )
        for name, vocabulary in vocabularies().items()
    ]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_models(folder)
    for name, corpus in {"lines": lines(), "sample": sample()}.items():
        (folder / f"{name}.json").write_text(json.dumps(corpus))
