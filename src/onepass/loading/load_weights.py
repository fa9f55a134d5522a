"""Tensors into the network's tree: strict both ways, one layer of a leaf in host memory at a time.

Every tensor the model needs must be there with the right shape, and nothing else may be. A leaf is read whole by
several threads and copied to the device, one leaf at a time; a large one is allocated on the device and filled in place
layer by layer, so the host never holds a second copy of the model. Over a mesh only the slices that this process's
devices hold are read (`models.layout` says which). A CPU's memory is the host's: `host_weights` fills it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from onepass.errors import BadCheckpoint
from onepass.loading.gguf.reader import GgufReader
from onepass.loading.gguf.weights import load_gguf_weights
from onepass.loading.host_weights import fill_host_leaves, put_leaf
from onepass.loading.int8_weights import load_int8_weights
from onepass.loading.tensor_reader import Progress, TensorInfo, TensorReader, silent
from onepass.models.config import ModelConfig
from onepass.models.int8 import Int8Scales
from onepass.models.layout import Layout, spec_of
from onepass.models.weights import Leaf, Part, Weights, abstract, named_leaves

FLOAT_NAMES = frozenset(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
# In the host's memory at once. Larger leaves are filled on the device, which compiles a program for each.
WHOLE_LEAF_BYTES = 2 << 30
# Buffers that some exporters store and that are recomputed from the config.
DERIVED = ("rotary_emb.inv_freq",)


def load_weights(
    config: ModelConfig,
    reader: TensorReader,
    dtype: jnp.dtype,
    progress: Progress = silent,
    mesh: Mesh | None = None,
    int8: Int8Scales | None = None,
    keep_blocks: bool = False,
) -> Weights:
    """The model's weights in `dtype`, on the default device or split over `mesh`. `int8`: on a CPU, and the layers'
    matrices in 8 bits with such scales. `keep_blocks`: on a CPU, and the matrices of a GGUF file in its blocks."""
    found = {name: info for name, info in reader.tensors().items() if not name.endswith(DERIVED)}
    found = _without_tied_copy(config, found)
    _check(config, found)
    layout = Layout(config, mesh)
    done, total = 0, len(found)
    if mesh is None and jax.default_backend() == "cpu":
        if keep_blocks:
            assert isinstance(reader, GgufReader)
            return load_gguf_weights(abstract(config), reader, np.dtype(dtype), progress, total)
        if int8 is not None:
            return load_int8_weights(abstract(config), reader, np.dtype(dtype), progress, total, int8)
        leaves = [leaf for leaf, _ in layout.leaves()]
        return layout.tree(fill_host_leaves(leaves, reader, np.dtype(dtype), progress, total))
    filled = []
    for leaf, wide in layout.leaves():
        if mesh is None and math.prod(leaf.shape) * np.dtype(dtype).itemsize <= WHOLE_LEAF_BYTES:
            filled.append(put_leaf(leaf, reader, np.dtype(dtype)))
        else:
            filled.append(_Filling(layout, leaf, wide, reader, dtype).filled())
        done += len(leaf.parts) * (leaf.shape[0] if leaf.stacked else 1)
        progress("load", done, total)
    return layout.tree(filled)


def _without_tied_copy(config: ModelConfig, found: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """A tied model's file may repeat the embedding as lm_head.weight, and a classifier's may keep it; transformers
    ignores it too."""
    unused = config.tied or config.num_labels
    return {name: info for name, info in found.items() if not (unused and name == "lm_head.weight")}


def _check(config: ModelConfig, found: Mapping[str, TensorInfo]) -> None:
    wanted = tensor_shapes(config)
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    wrong = [
        f"{name} must be {wanted[name]}, is {found[name].shape}"
        for name in wanted
        if name in found and found[name].shape != wanted[name]
    ]
    types = [f"{name} is {info.dtype}" for name, info in found.items() if info.dtype not in FLOAT_NAMES]
    problems = [
        f"{kind}: {_some(names)}"
        for kind, names in (
            ("missing", missing),
            ("not part of the model", extra),
            ("wrong shape", wrong),
            (f"wrong dtype (wanted one of {', '.join(sorted(FLOAT_NAMES))})", types),
        )
        if names
    ]
    if problems:
        raise BadCheckpoint("the checkpoint does not match its configuration; " + "; ".join(problems))


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of this configuration must have, by Hugging Face name."""
    return {
        part.name.format(layer=layer): part.shape
        for _, leaf in named_leaves(abstract(config))
        for layer in range(leaf.shape[0] if leaf.stacked else 1)
        for part in leaf.parts
    }


@dataclass(frozen=True)
class _Filling:
    """One leaf, and the same as it lies on the devices."""

    layout: Layout
    leaf: Leaf
    wide: Leaf
    reader: TensorReader
    dtype: jnp.dtype

    def filled(self) -> jax.Array:
        if not self.wide.stacked:
            return self._on_devices(0)
        sharding = self.layout.sharding(spec_of(self.wide))
        whole = jax.jit(lambda: jnp.zeros(self.wide.shape, self.dtype), out_shardings=sharding)()
        write = jax.jit(
            lambda whole, layer, value: whole.at[layer].set(value), donate_argnums=0, out_shardings=sharding
        )
        for layer in range(self.wide.shape[0]):
            whole = write(whole, layer, self._on_devices(layer))
        return whole

    def _on_devices(self, layer: int) -> jax.Array:
        """One layer, or a leaf that is not stacked."""
        spec, shape = spec_of(self.wide), self.wide.shape
        if self.wide.stacked:
            spec, shape = P(*spec[1:]), shape[1:]
        sharding = self.layout.sharding(spec)
        if sharding is None:
            return jnp.asarray(self._share(layer, 0, shape))
        local = sharding.shard_shape(shape)
        split = next((axis for axis, name in enumerate(spec) if name is not None), None)
        read = cache(lambda number: self._share(layer, number, local))  # devices that hold the same read it once

        def slice_at(index: tuple[slice, ...] | None) -> np.ndarray:
            return read(0 if split is None or index is None else (index[split].start or 0) // local[split])

        return jax.make_array_from_callback(shape, sharding, slice_at)

    def _share(self, layer: int, number: int, shape: tuple[int, ...]) -> np.ndarray:
        """What device `number` holds of a layer, from as few bytes of the checkpoint as hold it."""
        if len(self.leaf.parts) == 1:  # a copy even if the dtype is right: JAX might keep a view of the file
            return self._tensor(self.leaf.parts[0], layer, number).reshape(shape).astype(self.dtype)
        out = np.empty(shape, self.dtype)
        for part, place in zip(self.leaf.parts, self.wide.parts, strict=True):
            target = out[place.index]
            target[...] = self._tensor(part, layer, number).reshape(target.shape)
        return out

    def _tensor(self, part: Part, layer: int, number: int) -> np.ndarray:
        name, layout, axis = part.name.format(layer=layer), self.layout, part.axis
        if part.split is None or layout.devices == 1:
            return self.reader.read(name)
        unit = part.shape[axis] // layout.count(part)
        before = (slice(None),) * axis
        pieces = layout.pieces(part, number)
        wanted = layout.share_count(part) * unit
        if len(pieces) == 1 and (pieces[0].source.stop - pieces[0].source.start) * unit == wanted:
            return self.reader.read(name, (*before, _times(pieces[0].source, unit)))
        out: np.ndarray | None = None
        for piece in pieces:
            found = self.reader.read(name, (*before, _times(piece.source, unit)))
            if out is None:
                out = np.zeros((*part.shape[:axis], wanted, *part.shape[axis + 1 :]), found.dtype)
            out[(*before, _times(piece.target, unit))] = found
        if out is None:  # a device with zero heads only
            out = np.zeros((*part.shape[:axis], wanted, *part.shape[axis + 1 :]), self.dtype)
        return out


def _times(units: slice, size: int) -> slice:
    return slice(units.start * size, units.stop * size)
