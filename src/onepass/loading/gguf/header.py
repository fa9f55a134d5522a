"""The header of a GGUF file, parsed and checked: metadata, and name, shape, type and place of every tensor.

It is parsed here because the `reader` of the package `gguf` builds a NumPy array for every vocabulary entry.
"""

import struct
from math import prod
from typing import Any, NamedTuple

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.tensor_reader import TensorInfo

SUPPORTED_VERSIONS = (2, 3)


class Block(NamedTuple):
    """GGML's number of a tensor type, and how many numbers share how many bytes."""

    type_number: int
    numbers: int
    bytes: int


BLOCKS = {
    "F32": Block(0, 1, 4), "F16": Block(1, 1, 2), "BF16": Block(30, 1, 2), "Q8_0": Block(8, 32, 34),
    "Q4_0": Block(2, 32, 18), "Q4_1": Block(3, 32, 20), "Q5_0": Block(6, 32, 22), "Q5_1": Block(7, 32, 24),
    "Q4_K": Block(12, 256, 144), "Q5_K": Block(13, 256, 176), "Q6_K": Block(14, 256, 210),
}  # fmt: skip
SUPPORTED_TYPES = tuple(BLOCKS)
TYPE_NAMES = {block.type_number: name for name, block in BLOCKS.items()}

# GGUF's numbers for the types of metadata values, and their struct codes; 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
SMALLEST_ARRAY = 12  # a type and a count
MAX_NESTING = 8
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32


class Header:
    """One walk over the header. Every length is checked against the bytes left before anything is made of it."""

    def __init__(self, name: str, content: memoryview) -> None:
        self.name, self.content, self.place = name, content, 0

    def parse(self) -> tuple[dict[str, Any], dict[str, TensorInfo], dict[str, int]]:
        num_tensors, num_keys = self.preamble()
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.string("a metadata key")
            if key in metadata:
                raise self.damaged(f"the metadata key {key!r} comes twice")
            metadata[key] = self.value(self.number("I"), key)
        tensors: dict[str, TensorInfo] = {}
        starts: dict[str, int] = {}
        for _ in range(num_tensors):
            name = self.string("a tensor name")
            if name in tensors:
                raise self.damaged(f"the tensor {name!r} comes twice")
            tensors[name], starts[name] = self.tensor(name)
        return metadata, tensors, self.offsets(tensors, starts, metadata)

    def preamble(self) -> tuple[int, int]:
        magic = bytes(self.content[:4])
        if magic != b"GGUF":
            raise BadCheckpoint(f"{self.name} must start with b'GGUF'; it starts with {magic!r}")
        self.place = 4
        version = self.number("I")
        if version not in SUPPORTED_VERSIONS:
            raise UnsupportedModel(
                f"{self.name} has GGUF version {version}; supported: versions 2 and 3, little-endian"
            )
        num_tensors, num_keys = self.number("Q"), self.number("Q")
        self.fits(num_tensors, 24, "tensors")
        self.fits(num_keys, 13, "metadata keys")
        return num_tensors, num_keys

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.string(key)
        if kind != ARRAY or depth > MAX_NESTING:
            raise self.damaged(f"the metadata key {key!r} has an unknown value type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in SCALARS:
            return self.numbers(SCALARS[inner], count, key)
        if inner == STRING:
            return self.strings(count, key)
        self.fits(count, SMALLEST_ARRAY, f"values of {key!r}")
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def tensor(self, name: str) -> tuple[TensorInfo, int]:
        num_dimensions = self.number("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self.damaged(f"the tensor {name!r} has {num_dimensions} dimensions; wanted 1 to {MAX_DIMENSIONS}")
        shape = tuple(reversed(self.numbers("Q", num_dimensions, name)))
        kind = TYPE_NAMES.get(number := self.number("I")) or _type_name(number)
        if kind not in SUPPORTED_TYPES:
            raise UnsupportedModel(
                f"tensor {name[:64]!r} of {self.name} has type {kind}; supported: {', '.join(SUPPORTED_TYPES)}"
            )
        block = BLOCKS[kind].numbers
        if min(shape) < 1 or shape[-1] % block:
            raise self.damaged(
                f"the tensor {name!r} has shape {list(shape)}; {kind} wants rows of a multiple of {block}"
            )
        return TensorInfo(shape, kind), self.number("Q")

    def offsets(
        self, tensors: dict[str, TensorInfo], starts: dict[str, int], metadata: dict[str, Any]
    ) -> dict[str, int]:
        """Where each tensor lies in the file: the data begins after the header, aligned."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment must be a power of two; it is {alignment!r}")
        data = -(-self.place // alignment) * alignment
        size = len(self.content)
        for name, info in tensors.items():
            end = data + starts[name] + num_bytes(info)
            if end > size:
                raise self.damaged(f"the tensor {name!r} ends at byte {end:,}, but the file has {size:,}")
            if starts[name] % alignment:
                raise self.damaged(f"the tensor {name!r} is not aligned to {alignment} bytes")
        return {name: data + start for name, start in starts.items()}

    def number(self, code: str) -> Any:
        return self.numbers(code, 1, "a number")[0]

    def numbers(self, code: str, count: int, what: str) -> list[Any]:
        size = struct.calcsize("<" + code)
        self.fits(count, size, f"values of {what!r}")
        values = struct.unpack_from(f"<{count}{code}", self.content, self.place)
        self.place += count * size
        return list(values)

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        """The hot loop: a vocabulary and its merges are some 300,000 strings."""
        self.fits(count, 8, f"strings of {what!r}")
        content, place, size = self.content, self.place, len(self.content)
        length_at = struct.Struct("<Q").unpack_from
        texts = []
        try:
            for _ in range(count):
                start = place + 8
                place = start + length_at(content, place)[0]
                if place > size:
                    raise self.damaged(f"a string of {what!r} runs past the end of the file")
                texts.append(str(content[start:place], "utf-8"))
        except struct.error as error:
            raise self.damaged(f"the strings of {what!r} run past the end of the file") from error
        except UnicodeDecodeError as error:
            raise self.damaged(f"a string of {what!r} is not UTF-8") from error
        self.place = place
        return texts

    def fits(self, count: int, smallest: int, what: str) -> None:
        left = len(self.content) - self.place
        if count * smallest > left:
            raise self.damaged(f"it announces {count:,} {what}, but only {left:,} bytes are left")

    def damaged(self, what: str) -> BadCheckpoint:
        shown = what if len(what) <= 200 else what[:199] + "…"  # a damaged name may be long
        return BadCheckpoint(f"{self.name} is damaged or cut short: {shown}")


def num_bytes(info: TensorInfo) -> int:
    block = BLOCKS[info.dtype]
    return prod(info.shape) // block.numbers * block.bytes


def _type_name(number: int) -> str:
    """Of a tensor type that is not ours."""
    from gguf import GGMLQuantizationType

    names = {member.value: member.name for member in GGMLQuantizationType}
    return names.get(number, f"number {number}")
