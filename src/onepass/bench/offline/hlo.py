"""Which part of the network each operation of a compiled program belongs to, read from the program's own text.

XLA keeps with every operation the named scopes (`jax.named_scope`) in which JAX traced it, as a path:
`jit(run)/while/body/mlp/gate_up/norm/mul`. The part of an operation is the path of the scopes listed here, in this
example `mlp/gate_up/norm`. Times of operations come from a trace, in `profile`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

OTHER = "other"  # outside every scope, or made by the compiler without saying what for
# Every scope of the network, and what is in it. A scope that a kernel computes with its neighbour has no time of its
# own: a norm in a product's epilogue counts as the product.
SCOPES: Mapping[str, str] = {
    "unpack": "a step's arrays, cut from the one that the host sends",
    "embedding": "rows of the embedding table",
    "rotary": "angles of positions, and the rotation of queries and keys",
    "block_table": "which keys each block of tokens sees",
    "weights": "a layer's weights, cut from the stack and widened where they are kept in 8 bits",
    "norm": "RMS norms",
    "qkv": "the query, key and value projections",
    "kv_write": "keys and values into pages",
    "attention": "softmax(q·k) v",
    "attn_out": "the output projection",
    "mlp": "the gated MLP",
    "gate_up": "its first product and the activation",
    "down": "its second product",
    "all_reduce": "sums over the devices that share the model",
    "labels": "logits of labels at read-outs",
    "vocabulary": "logits of the whole vocabulary at read-outs",
    "page_copy": "pages into other pages, before a step",
}
# Operations that only run others, whose time would count twice.
CONTROL = ("while", "cond", "call", "conditional")
_MOSAIC = "_mosaic_gpu_kernel"  # that Pallas writes after a kernel's name
_WITHOUT_TIME = ("parameter", "bitcast", "tuple", "get-tuple-element", "constant")
_PRODUCTS = ("dot", "convolution", "custom-call")

_OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*?\b([a-z][\w\-]*)\(")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_VMAP = re.compile(r"^vmap\((.*)\)$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Operations:
    """A program's operations by name, with their parts."""

    parts: Mapping[str, str]

    @cached_property
    def kernels(self) -> Mapping[str, str]:
        """By the names of kernels on a GPU, which have no dots."""
        return {name.replace(".", "_").replace("-", "_"): part for name, part in self.parts.items()}

    def part(self, name: str) -> str:
        """Of an operation, or of a kernel on a GPU. A kernel of ours has no operation of its name: it is a part."""
        if name.endswith(_MOSAIC):
            return name.removesuffix(_MOSAIC)
        return self.parts.get(name) or self.kernels.get(name, OTHER)

    def likeness(self, ran: set[str]) -> float:
        """How well the operations that ran are those of this program."""
        return max(len(ran & known) / max(1, len(ran | known)) for known in (self.parts.keys(), self.kernels.keys()))


@dataclass(frozen=True)
class _Operation:
    name: str
    part: str
    computation: str  # that it is in
    kind: str
    calls: str | None  # the computation that a fusion runs


def operations(text: str) -> Operations:
    """Of a program's text after compilation, as `jax.stages.Compiled.as_text` gives it."""
    every = _read(text)
    inside: dict[str, list[_Operation]] = {}
    for operation in every:
        inside.setdefault(operation.computation, []).append(operation)
    fused = {operation.calls for operation in every if operation.calls is not None}
    # What is fused does not run by itself.
    alone = [operation for operation in every if operation.computation not in fused]
    return Operations({one.name: _part(one, inside.get(one.calls or "", [])) for one in alone})


def part_of(op_name: str) -> str:
    """The scopes in an operation's path; `vmap(norm)` is `norm`."""
    names = (_VMAP.sub(r"\1", name) for name in op_name.split("/"))
    return "/".join(dict.fromkeys(name for name in names if name in SCOPES)) or OTHER


def _part(operation: _Operation, fused: list[_Operation]) -> str:
    """A product fused with what follows it is still the product."""
    product = next((one.part for one in fused if one.kind in _PRODUCTS), None)
    if product is not None or operation.part != OTHER:
        return product or operation.part
    return next((one.part for one in reversed(fused) if one.part != OTHER), OTHER)


def _read(text: str) -> list[_Operation]:
    found: list[_Operation] = []
    computation = ""
    for line in text.splitlines():
        if (start := _COMPUTATION.match(line)) is not None:
            computation = start.group(1)
        match = _OPERATION.match(line)
        if match is None or match.group(2) in _WITHOUT_TIME:
            continue
        name, kind = match.groups()
        path = _OP_NAME.search(line)
        calls = _CALLS.search(line) if kind == "fusion" else None
        found.append(
            _Operation(
                name, part_of(path.group(1)) if path else OTHER, computation, kind, calls.group(1) if calls else None
            )
        )
    return found
