"""Weights of a GGUF file in the file's own blocks, on a CPU: as much memory as the file, and the same values.

Matrices and embeddings are copied as they are, row by row in the network's order; norms and biases are widened.
`models.gguf_matrix` says how they lie; other ways to load are `loading.load_weights`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

import jax
import numpy as np

from onepass.loading.gguf.reader import GgufReader
from onepass.loading.host_weights import allocate, fill_host_leaves, run_tasks
from onepass.loading.tensor_reader import Progress
from onepass.models.gguf_matrix import OFFSET_BYTES, GgufMatrix
from onepass.models.weights import MATRICES, Layers, Leaf, Weights, is_leaf

TABLES = ("embed", "head")  # of the vocabulary
MAX_BYTES = OFFSET_BYTES << 32  # of a matrix, all layers


def load_gguf_weights(tree: Weights, reader: GgufReader, dtype: np.dtype, progress: Progress, total: int) -> Weights:
    """`tree` is the model's abstract one; all but its matrices is in `dtype`."""
    assert isinstance(tree.layers, Layers)
    tables = {name: leaf for name in TABLES if (leaf := getattr(tree, name)) is not None and leaf.axes[0] == "vocab"}
    layers = replace(tree.layers, **dict.fromkeys(MATRICES))
    leaves, structure = jax.tree.flatten(replace(tree, layers=layers, **dict.fromkeys(tables)), is_leaf=is_leaf)
    done = sum(len(leaf.parts) * (leaf.shape[0] if leaf.stacked else 1) for leaf in leaves)
    weights = jax.tree.unflatten(structure, fill_host_leaves(leaves, reader, dtype, progress, total))
    copies = {name: _Copy(leaf, reader) for name, leaf in tables.items()}
    copies |= {name: _Copy(getattr(tree.layers, name), reader) for name in MATRICES}
    run_tasks([task for copy in copies.values() for task in copy.tasks()], progress, done, total)
    made = {name: copy.matrix(dtype) for name, copy in copies.items()}
    layers = replace(weights.layers, **{name: made[name] for name in MATRICES})
    return replace(weights, layers=layers, **{name: made[name] for name in tables})


class _Copy:
    """One matrix, all layers: where each tensor's rows go among the bytes."""

    def __init__(self, leaf: Leaf, reader: GgufReader) -> None:
        self.leaf, self.reader = leaf, reader
        layers = leaf.shape[0] if leaf.stacked else 1
        inner = leaf.shape[1:] if leaf.stacked else leaf.shape
        terms = leaf.parts[0].shape[-1]
        rows = np.arange(prod(inner) // terms)
        if len(leaf.parts) > 1:  # whose index is of the axes before the terms
            rows = rows.reshape(inner[:-1])
        self.offsets = np.empty((layers, rows.size), np.uint32)
        self.kinds = np.empty((layers, rows.size), np.uint8)
        self.starts: dict[str, int] = {}
        size = 0
        for layer in range(layers):
            for part in leaf.parts:
                name, places = part.name.format(layer=layer), rows[part.index].ravel()
                kind, row_bytes = reader.stored_as(name)
                self.starts[name] = size
                self.offsets[layer, places] = (size + row_bytes * np.arange(places.size)) // OFFSET_BYTES
                self.kinds[layer, places] = kind
                size += row_bytes * places.size
        assert size <= MAX_BYTES, f"{size} bytes of {leaf.parts[0].name}"
        self.blocks = allocate((size,), np.dtype(np.uint8))

    def tasks(self) -> Iterator[Callable[[], int]]:
        for name, start in self.starts.items():
            yield partial(self._fill, name, start)

    def _fill(self, name: str, start: int) -> int:
        rows = self.reader.read_stored(name)
        self.blocks[start : start + rows.size] = rows.reshape(-1)
        self.reader.forget(name)
        return 1

    def matrix(self, dtype: np.dtype) -> GgufMatrix:
        blocks, offsets, kinds = (
            jax.device_put(array, may_alias=True) for array in (self.blocks, self.offsets, self.kinds)
        )
        return GgufMatrix(blocks, offsets, kinds, self.leaf.shape, dtype)
