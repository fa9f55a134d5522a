"""Which part of the network each operation of a compiled program belongs to, read from the program's own text.

XLA keeps, for every operation, the stack of Python functions that asked for it; those functions' names decide. Times of
operations come from a trace, in `profile`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

OTHER = "other"
# The innermost function that is listed here names the part, unless one of WHOLE called it.
WHOLE: Mapping[str, str] = {"attend": "attention"}
PARTS: Mapping[str, str] = {
    "write": "pages",
    "scatter": "pages",
    "pair_logits": "read-out",
    "over_vocabulary": "read-out",
    "project_qkv": "products",
    "project_kv": "products",
    "project_q": "products",
    "project_out": "products",
    "project_down": "products",
    "gate_up": "products",
    "rms_norm": "norms",
    "rotate": "rotation",
    "rotary_angles": "rotation",
    "Layers.layer": "weights' layout",
    "block_table": "tables",
    "prepare": "tables",
    "attend": "attention",
}
# Operations that only run others, whose time would count twice.
CONTROL = ("while", "cond", "call", "conditional")

_ENTRY = re.compile(r"^(\d+) (.*)$")
_OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*?\b([a-z][\w\-]*)\(")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SCOPE = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Operations:
    """A program's operations by name, with their parts."""

    kind: str  # of the program: "prefill" or "score"
    parts: Mapping[str, str]

    def likeness(self, ran: set[str]) -> float:
        """How well the operations that ran are those of this program."""
        return len(ran & self.parts.keys()) / max(1, len(ran | self.parts.keys()))


def operations(kind: str, text: str) -> Operations:
    frames = _Frames.read(text)
    parts: dict[str, str] = {}
    called: dict[str, str] = {}  # fusion -> computation
    products: dict[str, str] = {}  # computation -> part of the product in it
    within: dict[str, str] = {}  # operation -> computation
    computation = ""
    for line in text.splitlines():
        if (start := _COMPUTATION.match(line)) is not None:
            computation = start.group(1)
        found = _OPERATION.match(line)
        if found is None or found.group(2) in ("parameter", "bitcast", "tuple", "get-tuple-element", "constant"):
            continue
        name, operation = found.groups()
        parts[name] = frames.part(line)
        within[name] = computation
        if operation in ("dot", "convolution", "custom-call"):
            products.setdefault(computation, parts[name])
        if operation == "fusion" and (inner := _CALLS.search(line)) is not None:
            called[name] = inner.group(1)
    # A product fused with what follows it is still the product. What is fused does not run by itself.
    parts |= {name: products[inner] for name, inner in called.items() if inner in products}
    fused = set(called.values())
    return Operations(kind, {name: part for name, part in parts.items() if within[name] not in fused})


@dataclass(frozen=True)
class _Frames:
    """The tables at the top of a program's text: frame -> (function, parent)."""

    functions: Mapping[int, str]
    parents: Mapping[int, int]

    @classmethod
    def read(cls, text: str) -> "_Frames":
        tables: dict[str, dict[int, str]] = {}
        current: dict[int, str] = {}
        for line in text.splitlines():
            entry = _ENTRY.match(line)
            if entry is not None:
                current[int(entry.group(1))] = entry.group(2)
            elif line.isalpha():
                current = tables.setdefault(line, {})
        names = {key: value.strip('"') for key, value in tables.get("FunctionNames", {}).items()}
        places = {key: _field(value, "function_name_id") for key, value in tables.get("FileLocations", {}).items()}
        stack = tables.get("StackFrames", {})
        functions = {
            key: names.get(places.get(_field(value, "file_location_id"), 0), "") for key, value in stack.items()
        }
        # Parents are written one higher than they are, so that 1 means none.
        parents = {key: _field(value, "parent_frame_id") - 1 for key, value in stack.items()}
        return cls(functions, parents)

    def part(self, line: str) -> str:
        found = _FRAME.search(line)
        frame = int(found.group(1)) if found else 0
        innermost: str | None = None
        while frame in self.functions:
            function = self.functions[frame].partition(".<locals>")[0]
            if function in WHOLE:
                return WHOLE[function]
            for name in (function, function.rpartition(".")[2]):
                innermost = innermost or PARTS.get(name)
            if self.parents[frame] >= frame:
                break
            frame = self.parents[frame]
        if innermost is not None:
            return innermost
        scope = _SCOPE.search(line)
        scopes = scope.group(1).split("/") if scope else []
        return next((part for key, part in _SCOPES.items() if key in scopes), OTHER)


_SCOPES = {"products": "products", "attention": "attention", "read_out": "read-out"}


def _field(text: str, name: str) -> int:
    found = re.search(rf"{name}=(\d+)", text)
    return int(found.group(1)) if found else 0
