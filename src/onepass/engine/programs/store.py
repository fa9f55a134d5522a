"""Compiled programs kept whole on disk, a file each: `ProgramStore`. A start that finds its programs compiles nothing.

The store costs time at worst: a program that is missing, damaged or cannot be written is compiled by the caller. What
identifies a program is `key`, what a file looks like `program_file`, how a program is compiled that can be kept
`compile_whole`; deciding what to compile is `compiled`, running it `engine.runner`.

JAX unpickles the payload of a file: whoever can write it runs code as this user. So the folder and its files must
belong to this user (or to root) and be writable by nobody else, or nothing is read.
"""

import logging
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from onepass.engine.programs.key import ProgramKey
from onepass.engine.programs.program_file import (
    HEADER,
    SUFFIX,
    TEMPORARY,
    Damaged,
    StoredProgram,
    files_of,
    read_payload,
    stored_programs,
    writable_by_others,
    write_payload,
)

log = logging.getLogger("onepass")

MAX_BYTES = 4 << 30
ABANDONED_SECONDS = 3600.0  # a program is written in less than a second
MACHINE_CODE = (b"\x7fELF", b"\xcf\xfa\xed\xfe")  # how object files begin: Linux, macOS


class _Refused(Exception):
    """The folder is not safe to read from; the message says how to make it so."""


def default_programs_dir() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("onepass") / "programs"


class ProgramStore:
    """Safe for several threads and processes on one folder: files appear whole under their name, and vanish whole."""

    def __init__(
        self, folder: Path, max_bytes: int = MAX_BYTES, *, abandoned_seconds: float = ABANDONED_SECONDS
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._abandoned_seconds = abandoned_seconds
        self._refusal_logged = False
        self._tidied = False

    def problem(self) -> str | None:
        """Why the folder is not used; None where it is, or does not exist yet."""
        try:
            with self._open_folder():
                return None
        except FileNotFoundError:
            return None
        except _Refused as refusal:
            return str(refusal)
        except OSError as error:
            return f"{self.folder} cannot be read: {error.strerror}"

    def load(self, key: ProgramKey, devices: Sequence[jax.Device] | None = None) -> jax.stages.Compiled | None:
        """The program ready to run on `devices` (None: the first), those of its key; None where it is not kept.
        FFI targets that it calls must be registered before."""
        try:
            with self._open_folder() as folder:
                self._tidy_once(folder)
                payload = self._read(folder, key.digest())
        except FileNotFoundError:
            return None
        except (OSError, _Refused) as error:
            self._log_unusable(error)
            return None
        if payload is None:
            return None
        try:
            serialized, in_tree, out_tree = pickle.loads(payload)
            return serialize_executable.deserialize_and_load(
                serialized,
                in_tree,
                out_tree,
                # By default JAX takes all devices of the process, and a program for one then fails when it is run.
                execution_devices=list(devices or jax.devices()[:1]),
            )
        except Exception as error:  # whatever JAX, XLA or a driver find wrong: the program can be compiled
            log.warning("program %s does not load, compiling it: %s", key.name, error)
            self.evict(key)
            return None

    def save(self, key: ProgramKey, compiled: jax.stages.Compiled) -> int:
        """Bytes on disk; 0 where the program is not kept. `compiled` comes from `compile_whole`, not from `load`, and
        has not run yet: on a CPU, XLA cannot serialise a program with a sort after its first run."""
        try:
            payload = pickle.dumps(serialize_executable.serialize(compiled))
        except Exception as error:  # backends differ in what they cannot serialise, and in how they say so
            log.warning("program %s cannot be serialised: %s", key.name, error)
            return 0
        if key.toolchain.platform == "cpu" and not any(start in payload for start in MACHINE_CODE):
            log.warning("program %s is not kept: it holds no machine code", key.name)
            return 0
        if HEADER.size + len(payload) > self.max_bytes:
            log.warning("program %s is not kept: %s bytes, the limit is %s", key.name, len(payload), self.max_bytes)
            return 0
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open_folder() as folder:
                write_payload(folder, key.digest(), payload)
                self._tidy(folder, keep=key.digest())
        except (OSError, _Refused) as error:
            self._log_unusable(error)
            return 0
        return HEADER.size + len(payload)

    def evict(self, key: ProgramKey) -> None:
        """Delete a program, such as one that loads but fails when it is run."""
        try:
            with self._open_folder() as folder:
                os.unlink(key.digest() + SUFFIX, dir_fd=folder)
        except FileNotFoundError:
            pass
        except (OSError, _Refused) as error:
            self._log_unusable(error)

    def entries(self) -> list[StoredProgram]:
        """What is kept, least recently used first. The files are not checked."""
        try:
            with self._open_folder() as folder:
                return stored_programs(folder)
        except (OSError, _Refused):
            return []

    def bytes_of(self, key: ProgramKey) -> int:
        """Bytes of one program on disk; 0 where it is not kept."""
        digest = key.digest()
        return next((entry.bytes for entry in self.entries() if entry.digest == digest), 0)

    @property
    def size(self) -> int:
        """Bytes of all programs."""
        return sum(entry.bytes for entry in self.entries())

    @contextmanager
    def _open_folder(self) -> Iterator[int]:
        """A descriptor of the checked folder. Files are opened relative to it, so that nobody can exchange the folder
        between check and use."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if (why := writable_by_others(os.fstat(descriptor))) is not None:
                raise _Refused(
                    f"compiled programs in {self.folder} are not used, since loading one runs code and {why}; "
                    f"make it yours alone: chown {os.geteuid()} and chmod 700 {self.folder}, "
                    "and delete what others may have put there"
                )
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, folder: int, digest: str) -> bytes | None:
        """The checked payload. A file that fails a check is deleted, before anything in it is interpreted."""
        try:
            return read_payload(folder, digest)
        except Damaged as error:
            self._delete_damaged(folder, digest + SUFFIX, str(error))
            return None

    def _delete_damaged(self, folder: int, name: str, why: str) -> None:
        log.warning("%s is no compiled program of ours (%s): deleting it", self.folder / name, why)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)

    def _tidy_once(self, folder: int) -> None:
        """A start that finds all its programs never saves, and what was killed before it would stay."""
        if not self._tidied:
            self._tidied = True
            self._tidy(folder)

    def _tidy(self, folder: int, keep: str = "") -> None:
        """Delete abandoned temporary files, and the least recently used programs beyond `max_bytes`; never `keep`."""
        oldest = time.time() - self._abandoned_seconds
        for name, status in files_of(folder, TEMPORARY):
            if status.st_mtime < oldest:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        programs = stored_programs(folder)
        excess = sum(program.bytes for program in programs) - self.max_bytes
        for program in programs:
            if excess <= 0:
                return
            if program.digest != keep:
                with suppress(OSError):
                    os.unlink(program.digest + SUFFIX, dir_fd=folder)
                excess -= program.bytes

    def _log_unusable(self, error: Exception) -> None:
        """A full, read-only or unsafe folder is no error of the caller's. A refusal is said once."""
        if isinstance(error, _Refused):
            if not self._refusal_logged:
                log.warning("%s", error)
            self._refusal_logged = True
        else:
            log.warning("compiled programs in %s cannot be used: %s", self.folder, error)


def describe_store(folder: Path) -> dict[str, Any]:
    """Folder, number and bytes of compiled programs, and why they are not used if so; ready for JSON."""
    store = ProgramStore(folder)
    entries = store.entries()
    size = sum(entry.bytes for entry in entries)
    return {"folder": str(folder), "programs": len(entries), "bytes": size, "problem": store.problem()}
