"""What a shared object asks of the system that loads it: its machine, the libraries it needs and their symbol versions.

Reads 64-bit little-endian ELF files of any machine, so that a wheel for ARM64 is checked on x86-64. What is allowed is
`build_wheels`.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
DYNAMIC, VERSION_NEEDS = 6, 0x6FFFFFFE  # types of sections
NEEDED = 1  # a tag of the dynamic section


@dataclass(frozen=True)
class SharedObject:
    machine: str
    libraries: tuple[str, ...]
    versions: tuple[str, ...]  # such as GLIBC_2.14

    @property
    def glibc(self) -> tuple[int, int]:
        """The oldest glibc that has every symbol."""
        numbers = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version) for version in self.versions]
        return max(((int(number[1]), int(number[2])) for number in numbers if number), default=(0, 0))


def read_shared_object(path: Path) -> SharedObject:
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is not a 64-bit little-endian ELF file")
    sections = list(_sections(data))
    needed, versions = [], []
    for kind, offset, size, link, entries in sections:
        strings = sections[link][1]
        if kind == DYNAMIC:
            tags = struct.iter_unpack("<qQ", data[offset : offset + size])
            needed += [_text(data, strings + value) for tag, value in tags if tag == NEEDED]
        elif kind == VERSION_NEEDS:
            versions += [_text(data, strings + name) for name in _version_names(data, offset, entries)]
    machine = struct.unpack_from("<H", data, 18)[0]
    return SharedObject(MACHINES.get(machine, f"machine {machine}"), tuple(needed), tuple(sorted(set(versions))))


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Type, offset, size, linked section and number of entries of each."""
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for at in range(start, start + size * count, size):
        _, kind, _, _, offset, length, link, info = struct.unpack_from("<IIQQQQII", data, at)
        yield kind, offset, length, link, info


def _version_names(data: bytes, at: int, files: int) -> Iterator[int]:
    """Offsets of the names: a chain of files, each with a chain of versions."""
    for _ in range(files):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        version = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, version)
            yield name
            version += step
        at += following


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
