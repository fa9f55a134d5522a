"""The tensors of a GGUF file of llama.cpp under Hugging Face names.

llama.cpp's rope turns neighbouring rows, ours the two halves of a head, so the rows that its converter interleaved
are put back. The `ModelConfig` is `config`; bytes and blocks are `file`; the vocabulary is `tokenizer`; shapes are
checked by `load_weights`.
"""

import re
from collections.abc import Mapping

import numpy as np

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.gguf.config import ROPE_FACTORS, architecture_of, config_from_gguf
from onepass.loading.gguf.file import GgufFile
from onepass.loading.tensor_reader import Blocks, TensorInfo

INTERLEAVED = frozenset({"llama"})  # whose query and key rows llama.cpp's converter permutes

WHOLE_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "cls.output.weight": "score.weight",
    "cls.output.bias": "score.bias",
}
PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}  # qwen3 only


class GgufReader:
    """A `TensorReader` over a GGUF file. A tensor that has no Hugging Face name is an error at once."""

    def __init__(self, file: GgufFile) -> None:
        architecture = architecture_of(file.metadata)
        self._file = file
        self._config = config_from_gguf(file)
        self._interleaved = architecture in INTERLEAVED
        self._names = _hugging_face_names(file, architecture)

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: self._file.tensors[stored] for name, stored in self._names.items()}

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """`index` must take whole heads of query and key rows: their rows are put in order head by head."""
        if name not in self._names:
            raise BadCheckpoint(f"{self._file.path.name} has no tensor for {name!r}")
        array = self._in_order(name, self._file.read(self._names[name], *index[:1]), whole=not index)
        return array[(slice(None), *index[1:])]

    def read_blocks(self, name: str) -> Blocks | None:
        found = self._file.read_blocks(self._names[name])
        if found is None:
            return None
        numbers, scale = (self._in_order(name, array) for array in (found.numbers, found.scale))
        return Blocks(numbers, scale, None if found.offset is None else self._in_order(name, found.offset))

    def stored_as(self, name: str) -> tuple[int, int]:
        return self._file.stored_as(self._names[name])

    def read_stored(self, name: str) -> np.ndarray:
        return self._in_order(name, self._file.read_stored(self._names[name]))

    def forget(self, name: str) -> None:
        self._file.forget(self._names[name])

    def _in_order(self, name: str, rows: np.ndarray, whole: bool = True) -> np.ndarray:
        if not self._interleaved or not (".q_proj." in name or ".k_proj." in name):
            return rows
        heads = self._config.num_heads if ".q_proj." in name else self._config.num_kv_heads
        return split_halves(rows, heads if whole else len(rows) // self._config.head_dim)

    def close(self) -> None:
        self._file.close()


def split_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from llama.cpp's order (0, h, 1, h+1, ...) to Hugging Face's (0, 1, ..., h, h+1, ...)."""
    if rows.shape[0] % (2 * num_heads):
        raise BadCheckpoint(f"{rows.shape[0]} rows cannot be {num_heads} heads of even size")
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _hugging_face_names(file: GgufFile, architecture: str) -> dict[str, str]:
    """Hugging Face name -> stored name, for every tensor but the rope factors, which `config_from_gguf` consumed."""
    norms = NORMS | HEAD_NORMS if architecture == "qwen3" else NORMS
    stored = [name for name in file.tensors if name != ROPE_FACTORS]
    names = [_hugging_face_name(name, norms) for name in stored]
    unmapped = [name for name, mapped in zip(stored, names, strict=True) if mapped is None]
    if unmapped:
        shown = ", ".join(unmapped[:8]) + (f" and {len(unmapped) - 8} more" if len(unmapped) > 8 else "")
        raise UnsupportedModel(f"{file.path.name} has tensors that no {architecture} decoder of ours uses: {shown}")
    return {name: place for name, place in zip(names, stored, strict=True) if name is not None}


def _hugging_face_name(stored: str, norms: Mapping[str, str]) -> str | None:
    if stored in WHOLE_MODEL:
        return WHOLE_MODEL[stored]
    match = re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)", stored, re.ASCII)
    if match is None:
        return None
    layer, part, kind = match.groups()
    inside = PROJECTIONS.get(part) or (norms.get(part) if kind == "weight" else None)
    return f"model.layers.{layer}.{inside}.{kind}" if inside else None
