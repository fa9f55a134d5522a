"""Weights in int8 on a CPU, tensor by tensor: the model is never in memory in a wider form.

A quantised GGUF file's blocks are kept as they are: every type of block is scale · number + offset with a number of at
most 8 bits. Tensors in floating point are quantised when they are read (`models.int8` says how), and so are all whose
scales are to be of more terms.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from onepass.loading.host_weights import allocate, fill_host_leaves, run_tasks
from onepass.loading.tensor_reader import Blocks, Progress, TensorReader
from onepass.models.int8 import BLOCK, Int8Scales, block_terms, largest
from onepass.models.rotation import group_of, rotated
from onepass.models.weights import MATRICES, Layers, Leaf, Weights, is_leaf

FINE = frozenset(["Q6_K"])  # with a scale of every 16 terms
AFFINE = frozenset(["Q4_1", "Q5_1", "Q4_K", "Q5_K"])  # with an offset


def load_int8_weights(
    tree: Weights, reader: TensorReader, dtype: np.dtype, progress: Progress, total: int, scales: Int8Scales
) -> Weights:
    """`tree` is the model's abstract one; all but the layers' matrices is in `dtype`."""
    assert isinstance(tree.layers, Layers)
    plain = replace(tree, layers=replace(tree.layers, **dict.fromkeys(MATRICES)))
    leaves, structure = jax.tree.flatten(plain, is_leaf=is_leaf)
    matrices = {name: _Matrix(name, getattr(tree.layers, name), reader, scales) for name in MATRICES}
    done = sum(len(leaf.parts) * (leaf.shape[0] if leaf.stacked else 1) for leaf in leaves)
    weights = jax.tree.unflatten(structure, fill_host_leaves(leaves, reader, dtype, progress, total))
    run_tasks([task for matrix in matrices.values() for task in matrix.tasks()], progress, done, total)
    arrays = {key: array for matrix in matrices.values() for key, array in matrix.arrays().items()}
    return replace(weights, layers=replace(weights.layers, **arrays))


class _Matrix:
    """One of the layers' matrices, all layers: numbers, scales, and offsets where any tensor has them."""

    def __init__(self, name: str, leaf: Leaf, reader: TensorReader, scales: Int8Scales) -> None:
        self.name, self.leaf, self.reader = name, leaf, reader
        rows = leaf.shape[:2] if name == "out" else leaf.shape[:-1]  # `out` has its terms as heads
        terms = int(np.prod(leaf.shape[len(rows) :]))
        self.block = block_terms(name, terms, scales)
        self.keeps_blocks, self.scales = self.block == BLOCK, scales
        kept = reader.tensors()
        kinds = {kept[part.name.format(layer=n)].dtype for n in range(leaf.shape[0]) for part in leaf.parts}
        if self.keeps_blocks and kinds & FINE:
            self.block = BLOCK // 2
        self.numbers = allocate(leaf.shape, np.dtype(np.int8))
        self.scale = allocate((*rows, terms // self.block), np.dtype(np.float32))
        self.offset = np.zeros_like(self.scale) if self.keeps_blocks and kinds & AFFINE else None

    def tasks(self) -> Iterator[Callable[[], int]]:
        for layer in range(self.leaf.shape[0]):
            for part in self.leaf.parts:
                yield partial(self._fill, layer, part.name.format(layer=layer), part.index)

    def _fill(self, layer: int, name: str, index: tuple[slice | int, ...]) -> int:
        kept = self.reader.read_blocks(name) if self.keeps_blocks else None
        found = kept or quantized(self.reader.read(name), max(self.block, BLOCK), self.scales)
        pairs = [(self.numbers, found.numbers), (self.scale, _regrouped(found.scale, found.block, self.block))]
        if self.offset is not None and found.offset is not None:
            pairs.append((self.offset, _regrouped(found.offset, found.block, self.block)))
        for array, values in pairs:
            target = array[layer][index]
            target[...] = values.reshape(target.shape)
        return 1

    def arrays(self) -> dict[str, jax.Array]:
        layers, blocks = self.scale.shape[0], self.scale.shape[-1]
        found = {self.name: self.numbers, f"{self.name}_scale": self.scale.reshape(layers, -1, blocks)}
        if self.offset is not None:
            found[f"{self.name}_offset"] = self.offset.reshape(layers, -1, blocks)
        return {key: jax.device_put(array, may_alias=True) for key, array in found.items()}


def quantized(matrix: np.ndarray, block: int = BLOCK, scales: Int8Scales = "fine") -> Blocks:
    """As `models.int8.in_int8` does it."""
    group = group_of(block)
    rows = (rotated(matrix.astype(np.float32), group) / np.float32(group)).reshape(matrix.shape[0], -1, block)
    scale = largest(np.abs(rows), scales) / np.float32(127)
    divided = rows / np.maximum(scale, np.finfo(np.float32).tiny)[..., None]
    return Blocks(np.round(divided).astype(np.int8).reshape(matrix.shape), scale, None)


def _regrouped(values: np.ndarray, given: int, wanted: int) -> np.ndarray:
    """Of groups of `given` terms, for groups of `wanted`. Where these are larger, neighbours have the same value."""
    return np.repeat(values, given // wanted, axis=-1) if given >= wanted else values[..., :: wanted // given]
