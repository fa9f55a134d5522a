"""The file of a compiled program, read and written relative to the descriptor of its folder.

A file is a fixed header (`HEADER`) and the payload. Nothing in it is interpreted here; who does, and what becomes of a
damaged file, is `store`. The checksum is for damage, not for malice.
"""

import errno
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MAGIC = b"onepass program\n"
FORMAT = 1
HEADER = struct.Struct("<16sIQ32s32s")  # magic, format, bytes of payload, the key's digest, sha256 of the payload
SUFFIX, TEMPORARY = ".program", ".tmp"
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe by a program's name must not block


class Damaged(Exception):
    """A file that is not the program it should be."""


@dataclass(frozen=True)
class StoredProgram:
    digest: str
    bytes: int
    last_used: float


def read_payload(folder: int, digest: str) -> bytes:
    """Checked, and the file marked as used now. Raises `Damaged`."""
    try:
        descriptor = os.open(digest + SUFFIX, READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Damaged("it is a symbolic link") from error
    with os.fdopen(descriptor, "rb") as file:
        payload = _checked_payload(file, digest)
        with suppress(OSError):  # a disk that may only be read; nothing is evicted there either
            os.utime(file.fileno())
    return payload


def _checked_payload(file: Any, digest: str) -> bytes:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Damaged("it is not a regular file")
    if (why := writable_by_others(status)) is not None:
        raise Damaged(why)
    header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise Damaged("it does not begin as one")
    _, version, length, key, checksum = HEADER.unpack(header)
    if version != FORMAT:
        raise Damaged(f"format {version} instead of {FORMAT}")
    if key != bytes.fromhex(digest):
        raise Damaged("it is another program")
    if status.st_size != HEADER.size + length:
        raise Damaged(f"{status.st_size} bytes instead of {HEADER.size + length}")
    payload: bytes = file.read(length)
    if hashlib.sha256(payload).digest() != checksum:
        raise Damaged("its checksum differs")
    return payload


def writable_by_others(status: os.stat_result) -> str | None:
    if status.st_uid not in (os.geteuid(), 0):  # root's word is law on this machine already
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def write_payload(folder: int, digest: str, payload: bytes) -> None:
    """Under a temporary name, then renamed: a process killed at any point leaves nothing that is ever read."""
    header = HEADER.pack(MAGIC, FORMAT, len(payload), bytes.fromhex(digest), hashlib.sha256(payload).digest())
    temporary = f"{digest[:16]}-{secrets.token_hex(8)}{TEMPORARY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            _write_all(descriptor, header)
            _write_all(descriptor, payload)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, digest + SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    with suppress(OSError):  # not every file system syncs folders; the file is whole or absent either way
        os.fsync(folder)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def stored_programs(folder: int) -> list[StoredProgram]:
    programs = [
        StoredProgram(name.removesuffix(SUFFIX), status.st_size, status.st_mtime)
        for name, status in files_of(folder, SUFFIX)
    ]
    return sorted(programs, key=lambda program: program.last_used)


def files_of(folder: int, suffix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Other processes delete files while we look."""
    for name in os.listdir(folder):
        if name.endswith(suffix):
            with suppress(FileNotFoundError):
                yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)
