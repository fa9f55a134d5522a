"""What is compiled: a program's identity, the function behind it, and what the compiler is given.

Over a mesh every device runs the program on its own share of the model, under one `shard_map`. The network is
`models.decoder`; who holds what is `models.layout`. When it is compiled, and how often, is `runner`.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from onepass.attention.base import Attention, RowShape
from onepass.attention.places import Places
from onepass.engine.pack import sizes, taken_apart
from onepass.models import decoder
from onepass.models.decoder import Prefix, Rows
from onepass.models.layout import KEYS, Layout
from onepass.models.products import Products
from onepass.models.weights import Weights


@dataclass(frozen=True)
class Program:
    """A program's whole identity. `keep` > 0: it also returns the rows' contexts, padded to that many keys."""

    kind: Literal["score", "prefill"]
    shape: RowShape
    attention: str
    keep: int = 0


@dataclass
class Lowering:
    """`tells_host`: programs write what is read out into the host's memory themselves; a copy that is asked for
    afterwards takes a GPU 0.3 ms."""

    layout: Layout
    weights: Weights
    attentions: dict[str, Attention]
    products: Products
    tells_host: bool = False

    def lower(self, program: Program, platform: str | None = None) -> jax.stages.Lowered:
        """What the compiler is given; for `platform`, where the weights are shapes on devices that are not here."""
        return _lowered(self._on_every_device(program), self.arguments(program), platform)

    def lower_vocabulary(self, shape: RowShape, platform: str | None = None) -> jax.stages.Lowered:
        """The pass over the vocabulary for so many read-outs. Not a branch of the program: the host would have to wait
        for the device to know which way to go."""

        def run(weights: Weights, hidden: Any) -> Any:
            return self._told(decoder.over_vocabulary(weights, hidden, self.layout.share.split))

        function, layout = run, self.layout
        if layout.mesh is not None and layout.devices > 1:
            specs = (layout.weight_specs(), P())
            function = jax.shard_map(run, mesh=layout.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        size = (*read_outs(shape), layout.wide.hidden_size)
        hidden = jax.ShapeDtypeStruct(size, self.weights.embed.dtype, sharding=layout.sharding(P()))
        return _lowered(function, (self.weights, hidden), platform)

    def _on_every_device(self, program: Program) -> Any:
        function, mesh = self.function(program), self.layout.mesh
        if mesh is None or self.layout.devices == 1:
            return function
        row = (KEYS, KEYS, P())
        rows = program.shape.rows
        arguments = (self.layout.weight_specs(), P(), (row,) * rows if program.shape.prefix else ())
        results = (P(), P(), (row,) * rows if program.keep else ())
        # Not checked: Pallas kernels do not say over which axes their results vary.
        return jax.shard_map(function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False)

    def function(self, program: Program) -> Any:
        config, shape = self.layout.share, program.shape
        attention = self.attentions[program.attention]

        def run(weights: Weights, numbers: Any, prefixes: Any) -> tuple[Any, Any, Any]:
            rows, labels, lengths = _taken_apart(numbers, shape)
            prefix = _stacked(prefixes, lengths) if shape.prefix else None
            hidden, k, v = decoder.hidden_states(config, attention, shape, weights, rows, prefix, self.products)
            kept = _kept(k, v, hidden, prefix, lengths, program.keep, shape) if program.keep else ()
            if program.kind == "prefill":
                return None, None, kept
            return hidden, self._told(decoder.read_out(weights, hidden, labels, config.split)), kept

        return run

    def _told(self, read: jax.Array) -> jax.Array:
        return jax.device_put(read, jax.memory.Space.Host) if self.tells_host else read

    def arguments(self, program: Program) -> tuple[Any, ...]:
        c, shape, layout = self.layout.wide, program.shape, self.layout

        def array(size: tuple[int, ...], dtype: Any = jnp.int32, spec: P = P()) -> Any:  # noqa: B008 - immutable
            return jax.ShapeDtypeStruct(size, dtype, sharding=layout.sharding(spec))

        numbers = array((sum(map(math.prod, sizes(shape))),))
        kv = array((c.num_layers, shape.prefix, c.num_kv_heads, c.head_dim), self.weights.embed.dtype, KEYS)
        prefixes = ((kv, kv, array((c.hidden_size,), self.weights.embed.dtype)),) * shape.rows if shape.prefix else ()
        return self.weights, numbers, prefixes


def _taken_apart(numbers: jax.Array, shape: RowShape) -> tuple[Rows, jax.Array, jax.Array]:
    """Rows, labels and the lengths of prefixes."""
    tokens, segment, parent, position, readouts, labels, lengths = taken_apart(numbers, shape)
    return Rows(tokens, Places(segment, parent, position), readouts), labels, lengths


def _lowered(function: Any, arguments: tuple[Any, ...], platform: str | None) -> jax.stages.Lowered:
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()


def read_outs(shape: RowShape) -> tuple[int, int]:
    return shape.rows, shape.readouts


def _stacked(prefixes: Any, lengths: Any) -> Prefix:
    k, v = (jnp.stack([p[i] for p in prefixes], axis=1) for i in (0, 1))
    return Prefix(k, v, lengths, jnp.stack([p[2] for p in prefixes]))


def _kept(
    k: Any, v: Any, hidden: Any, prefix: Prefix | None, lengths: Any, keep: int, shape: RowShape
) -> tuple[tuple[Any, Any, Any], ...]:
    """Each row's keys and values, after those of its prefix, padded to `keep`, and the hidden state of its context's
    last token, which `pack` puts in the last read-out."""

    def joined(old: Any, new: Any, length: Any) -> Any:
        if old is not None:
            room = jnp.concatenate([old, jnp.zeros_like(new)], axis=1)
            new = jax.lax.dynamic_update_slice_in_dim(room, new, length, axis=1)
        new = new[:, :keep]
        return jnp.pad(new, ((0, 0), (0, keep - new.shape[1]), (0, 0), (0, 0)))

    out = []
    for row in range(shape.rows):
        old_k, old_v = (None, None) if prefix is None else (prefix.k[:, row], prefix.v[:, row])
        kept_k, kept_v = joined(old_k, k[:, row], lengths[row]), joined(old_v, v[:, row], lengths[row])
        out.append((kept_k, kept_v, hidden[row, -1]))
    return tuple(out)
