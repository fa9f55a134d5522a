"""A model's tensors with an adapter merged in: `merged(config, reader, adapter)`, strict about what fits.

The sum is computed in float32 when a tensor is read, some rows at a time, and rounded once to the model's dtype. The
model may be safetensors, GGUF or quantised. A head that the adapter brings (`score`) makes the model a classifier;
a tied embedding of which the adapter changes one side only is untied, as it was in training.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.adapters.adapter import Adapter, LoraPair
from onepass.loading.tensor_reader import Blocks, TensorInfo, TensorReader
from onepass.models.config import ModelConfig

EMBEDDING, HEAD, SCORE = "model.embed_tokens.weight", "lm_head.weight", "score.weight"
ROWS_ELEMENTS = 1 << 20  # merged at once


class MergedReader:
    """A `TensorReader` over the model's own."""

    def __init__(self, base: TensorReader, adapter: Adapter, tensors: Mapping[str, TensorInfo], untied: bool) -> None:
        self._base, self._adapter, self._untied = base, adapter, untied
        self._tensors = tensors

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        module, _, kind = name.rpartition(".")
        pair = self._adapter.pairs.get(module)
        if pair is None or (kind == "bias" and pair.bias is None):
            return self._unmerged(name, index)
        out = self._unmerged(name, index).astype(np.float32)
        scale = np.float32(self._adapter.config.scale_of(module))
        if kind == "bias":
            assert pair.bias is not None
            return out + scale * self._adapter.file.read(pair.bias, index).astype(np.float32)
        left, right = self._factors(pair, index)
        step = max(1, ROWS_ELEMENTS // max(1, out.shape[1]))
        for start in range(0, len(out), step):
            out[start : start + step] += scale * (left[start : start + step] @ right)
        return out

    def read_blocks(self, name: str) -> Blocks | None:
        """Blocks of the file, of tensors that the adapter leaves alone."""
        module, _, kind = name.rpartition(".")
        changed = (module in self._adapter.pairs and kind == "weight") or name in self._adapter.replaced
        return None if changed or (self._untied and name == HEAD) else self._base.read_blocks(name)

    def close(self) -> None:
        self._base.close()
        self._adapter.file.close()

    def _unmerged(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        if name in self._adapter.replaced:
            return self._adapter.file.read(self._adapter.replaced[name], index)
        return self._base.read(EMBEDDING if self._untied and name == HEAD else name, index)

    def _factors(self, pair: LoraPair, index: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        """[rows, r] and [r, columns] of what is wanted."""
        rows, columns = (*index, *[slice(None)] * (2 - len(index)))
        read = self._adapter.file.read
        assert pair.a is not None
        assert pair.b is not None
        a, b = read(pair.a), read(pair.b)
        left, right = (a.T, b.T) if pair.embedding else (b, a)
        return left[rows].astype(np.float32), right[:, columns].astype(np.float32)


def merged(config: ModelConfig, base: TensorReader, adapter: Adapter, model: str) -> tuple[ModelConfig, MergedReader]:
    """The configuration and tensors of the model with the adapter, or an error that says what does not fit."""
    after, tensors = _with_places(config, base.tensors(), adapter)
    _check(tensors, adapter, model)
    touched = _touched(adapter)
    changed = {name: replace(tensors[name], dtype="F32") for name in touched if name not in adapter.replaced}
    brought = {name: adapter.shape_of(stored) for name, stored in adapter.replaced.items()}
    added = {f"{module}.bias" for module, pair in adapter.pairs.items() if pair.bias}
    changed |= {name: replace(tensors[name], dtype="F32") for name in added}
    untied = _unties(config, adapter)
    return after, MergedReader(base, adapter, tensors | brought | changed, untied)


def merged_config(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], adapter: Adapter, model: str
) -> ModelConfig:
    """The configuration of a model whose tensors are known by their shapes alone, with the adapter; the same errors."""
    after, tensors = _with_places(config, {name: TensorInfo(shape, "F32") for name, shape in shapes.items()}, adapter)
    _check(tensors, adapter, model)
    return after


def _with_places(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], adapter: Adapter
) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """With a place for the head that an adapter brings, and for a side of a tied embedding that it changes alone."""
    tensors = dict(tensors)
    if _unties(config, adapter):
        config = replace(config, tied=False)
        tensors[HEAD] = tensors[EMBEDDING]
    if SCORE in adapter.replaced and SCORE not in tensors:
        rows = adapter.shape_of(adapter.replaced[SCORE]).shape[0]
        config = replace(config, tied=False, num_labels=rows, head_bias="score.bias" in adapter.replaced)
        tensors[SCORE] = TensorInfo((rows, config.hidden_size), "F32")
        if config.head_bias:
            tensors["score.bias"] = TensorInfo((rows,), "F32")
    return config, tensors


def _unties(config: ModelConfig, adapter: Adapter) -> bool:
    return config.tied and bool(_touched(adapter) & {EMBEDDING, HEAD})


def _touched(adapter: Adapter) -> set[str]:
    return {f"{module}.weight" for module in adapter.pairs} | adapter.replaced.keys()


def _check(tensors: Mapping[str, TensorInfo], adapter: Adapter, model: str) -> None:
    """Every tensor of the adapter has its place in the model, with the right shape."""
    targets = [f"{module}.weight" for module in adapter.pairs] + list(adapter.replaced)
    targets += [f"{module}.bias" for module, pair in adapter.pairs.items() if pair.bias]
    missing = [name for name in targets if name not in tensors]
    wrong = [] if missing else [problem for problem in _wrong_shapes(tensors, adapter) if problem]
    if not missing and not wrong:
        return
    base = f" (it was trained on {adapter.config.base_model})" if adapter.config.base_model else ""
    what = f"{model} has no {_some(missing)}" if missing else "; ".join(wrong[:4])
    raise BadCheckpoint(f"the adapter {adapter.name}{base} does not fit {model}: {what}")


def _wrong_shapes(tensors: Mapping[str, TensorInfo], adapter: Adapter) -> list[str]:
    problems = []
    for module, pair in adapter.pairs.items():
        shape, rank = tensors[f"{module}.weight"].shape, adapter.config.rank_of(module)
        rows, columns = shape
        wanted: dict[str | None, tuple[int, ...]] = {pair.a: (rank, columns), pair.b: (rows, rank), pair.bias: (rows,)}
        if pair.embedding:
            wanted = {pair.a: (rank, rows), pair.b: (columns, rank)}
        problems += [_problem(adapter, stored, size) for stored, size in wanted.items() if stored is not None]
    problems += [_problem(adapter, stored, tensors[name].shape) for name, stored in adapter.replaced.items()]
    return problems


def _problem(adapter: Adapter, stored: str, wanted: tuple[int, ...]) -> str:
    got = adapter.shape_of(stored)
    if got.shape == wanted and got.dtype in ("F32", "F16", "BF16"):
        return ""
    return f"{stored} must be {list(wanted)} in F32, F16 or BF16, is {list(got.shape)} in {got.dtype}"


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
