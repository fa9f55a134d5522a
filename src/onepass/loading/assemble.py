"""Tensors into the network's tree: strict both ways, one tensor in host memory at a time.

Every tensor the model needs must be there with the right shape, and nothing else may be. Stacked leaves are allocated
on the device once and filled in place layer by layer, so the host never holds a second copy of the model.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from onepass.errors import BadCheckpoint
from onepass.loading.checkpoint import Progress, TensorInfo, TensorReader, silent
from onepass.models.config import ModelConfig
from onepass.models.weights import Leaf, Part, Weights, abstract, is_leaf, named_leaves

FLOAT_NAMES = frozenset(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
# Buffers that some exporters store and that are recomputed from the config.
DERIVED = ("rotary_emb.inv_freq",)


def load_weights(config: ModelConfig, reader: TensorReader, dtype: jnp.dtype, progress: Progress = silent) -> Weights:
    """The model's weights on the default device, in `dtype`."""
    found = {name: info for name, info in reader.tensors().items() if not name.endswith(DERIVED)}
    found = _without_tied_copy(config, found)
    _check(config, found)
    leaves, structure = jax.tree.flatten(abstract(config), is_leaf=is_leaf)
    done, total = 0, len(found)
    made = []
    for leaf in leaves:
        made.append(_fill(leaf, reader, dtype))
        done += len(leaf.parts) * (leaf.shape[0] if leaf.stacked else 1)
        progress("load", done, total)
    return jax.tree.unflatten(structure, made)


def _without_tied_copy(config: ModelConfig, found: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """A tied model's file may repeat the embedding as lm_head.weight; transformers ignores it too."""
    return {name: info for name, info in found.items() if not (config.tied and name == "lm_head.weight")}


def _check(config: ModelConfig, found: Mapping[str, TensorInfo]) -> None:
    wanted = dict(_wanted(config))
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


def _wanted(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (part.name.format(layer=layer), part.shape)
        for _, leaf in named_leaves(abstract(config))
        for layer in range(leaf.shape[0] if leaf.stacked else 1)
        for part in leaf.parts
    ]


def _fill(leaf: Leaf, reader: TensorReader, dtype: jnp.dtype) -> jax.Array:
    if not leaf.stacked:
        (part,) = leaf.parts
        return jnp.asarray(reader.read(part.name).reshape(leaf.shape).astype(dtype))
    write = jax.jit(lambda whole, layer, value: whole.at[layer].set(value), donate_argnums=0)
    whole = jnp.zeros(leaf.shape, dtype)
    for layer in range(leaf.shape[0]):
        whole = write(whole, layer, _one_layer(leaf, layer, reader, dtype))
    return whole


def _one_layer(leaf: Leaf, layer: int, reader: TensorReader, dtype: jnp.dtype) -> np.ndarray:
    out = np.empty(leaf.shape[1:], dtype)
    for part in leaf.parts:
        _place(out, part, reader.read(part.name.format(layer=layer)))
    return out


def _place(out: np.ndarray, part: Part, tensor: np.ndarray) -> None:
    target = out[part.index] if part.index else out
    target[...] = tensor.reshape(target.shape)
