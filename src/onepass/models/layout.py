"""How a model lies on devices: what each holds of every leaf and every tensor, and what one device's decoder is.

    config   the model's own sizes
    wide     sizes that go round the devices: heads copied or filled up (`parallel.heads`), MLP columns and vocabulary
             rows filled up with zeros. The shapes of the arrays that span the mesh.
    share    one device's sizes: what the decoder computes there

Reading tensors is `loading.load_weights`; what devices say to each other is `parallel.split`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from onepass.models.config import ModelConfig
from onepass.models.weights import Leaf, Part, Weights, abstract, is_leaf
from onepass.parallel.heads import HeadSplit, split_heads
from onepass.parallel.split import AXIS, Split

SPLIT_AXES = frozenset(("kv_heads", "mlp", "vocab"))
POOL = P(None, None, None, AXIS, None)  # kept keys and values: [layers, pages, page, kv_heads, head_dim]


@dataclass(frozen=True)
class Piece:
    """Units of a tensor's split axis, and where a device holds them."""

    source: slice
    target: slice


@dataclass(frozen=True)
class Layout:
    """`mesh` None is the default device, where everything is whole."""

    config: ModelConfig
    mesh: Mesh | None = None

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    @cached_property
    def heads(self) -> HeadSplit:
        return split_heads(self.config.num_heads, self.config.num_kv_heads, self.devices)

    @cached_property
    def wide(self) -> ModelConfig:
        return wide_of(self.config, self.devices)

    @cached_property
    def share(self) -> ModelConfig:
        return share_of(self.config, self.devices)

    def leaves(self) -> list[tuple[Leaf, Leaf]]:
        """Every leaf of the model, and the same in its wide shape."""
        return list(zip(_leaves(self.config), _leaves(self.wide), strict=True))

    def tree(self, leaves: list[Any]) -> Weights:
        """Values of `leaves()`, in order, as the tree of weights."""
        return jax.tree.unflatten(jax.tree.structure(abstract(self.config), is_leaf=is_leaf), leaves)

    def sharding(self, spec: P) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, spec if self.devices > 1 else P())

    def weight_specs(self) -> Weights:
        return self.tree([spec_of(leaf) for leaf in _leaves(self.wide)])

    def placed(self, weights: Weights) -> Weights:
        """A copy of weights that lie on as many other devices."""
        if self.devices == 1:
            return jax.tree.map(lambda array: jax.device_put(array, self.sharding(P())), weights)
        leaves = zip(jax.tree.leaves(weights), _leaves(self.wide), strict=True)
        return self.tree([jax.device_put(array, self.sharding(spec_of(leaf))) for array, leaf in leaves])

    def abstract_weights(self, dtype: Any) -> Weights:
        """The tree as shapes with shardings, to compile for devices that need not be here."""
        return self.tree(
            [
                jax.ShapeDtypeStruct(wide.shape, dtype, sharding=self.sharding(spec_of(wide)))
                for _, wide in self.leaves()
            ]
        )

    def count(self, part: Part) -> int:
        """Units of a tensor's split axis in the whole model."""
        c = self.config
        counts = {"queries": c.num_heads, "kv_heads": c.num_kv_heads, "mlp": c.mlp_size, "vocab": c.vocab_size}
        return counts[part.split] if part.split else 1

    def share_count(self, part: Part) -> int:
        """Units of a tensor's split axis that each device has room for."""
        s = self.wide if self.devices == 1 else self.share
        counts = {"queries": s.num_heads, "kv_heads": s.num_kv_heads, "mlp": s.mlp_size, "vocab": s.vocab_size}
        return counts[part.split] if part.split else 1

    def pieces(self, part: Part, number: int) -> list[Piece]:
        """What device `number` holds of a tensor; what no piece covers is zeros."""
        if part.split is None:
            return [Piece(slice(0, 1), slice(0, 1))]
        if part.split in ("mlp", "vocab"):
            size = self.share_count(part)
            first = min(number * size, self.count(part))
            last = min(first + size, self.count(part))
            return [Piece(slice(first, last), slice(0, last - first))]
        return self._head_pieces(part.split, number)

    def _head_pieces(self, kind: Literal["queries", "kv_heads"] | str, number: int) -> list[Piece]:
        heads, places = self.heads, self.heads.held // self.devices
        found = []
        for at in range(places):
            place = number * places + at
            if kind == "kv_heads":
                head = heads.kv_head(place)
                units = range(0) if head is None else range(head, head + 1)
                start = at
            else:
                units, start = heads.queries(place), at * heads.group_share
            if units:
                found.append(Piece(slice(units.start, units.stop), slice(start, start + len(units))))
        return found


def wide_of(config: ModelConfig, devices: int) -> ModelConfig:
    heads = split_heads(config.num_heads, config.num_kv_heads, devices)
    return replace(
        config,
        num_kv_heads=heads.held,
        num_heads=heads.held * heads.group_share,
        mlp_size=_up(config.mlp_size, devices),
        vocab_size=_up(config.vocab_size, devices),
    )


def share_of(config: ModelConfig, devices: int) -> ModelConfig:
    if devices == 1:
        return config
    wide = wide_of(config, devices)
    return replace(
        wide,
        num_kv_heads=wide.num_kv_heads // devices,
        num_heads=wide.num_heads // devices,
        mlp_size=wide.mlp_size // devices,
        vocab_size=wide.vocab_size // devices,
        split=Split(devices, config.vocab_size),
    )


def mesh_of(weights: Weights) -> Mesh | None:
    """The mesh that weights lie on; None on the default device."""
    sharding = getattr(weights.embed, "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None


def spec_of(leaf: Leaf) -> P:
    return P(*(AXIS if axis in SPLIT_AXES else None for axis in leaf.axes))


def _leaves(config: ModelConfig) -> list[Leaf]:
    return jax.tree.leaves(abstract(config), is_leaf=is_leaf)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
