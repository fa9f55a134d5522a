"""The files of a run, such that a killed one can go on: rows that are written, and a journal of what is sure.

    OUT.run/job.json        what the run is: input, options. Another run's folder is refused
    OUT.run/rows.jsonl      output rows, in order
    OUT.run/journal.jsonl   a line per window: rows read and written, the input's next position, the bytes of rows.jsonl

A window's rows are on disk before its line in the journal is. What comes after the last whole line is cut off when a
run goes on. At the end rows.jsonl is renamed to the output, or converted into it (`row_output`), and the folder goes.
"""

import fcntl
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, Self

from onepass.errors import OnepassError, RequestError

SAMPLE_BYTES = 1 << 20
FINISHED = "finished"  # a file that is there from just before the output is put in its place


@dataclass(frozen=True)
class Checkpoint:
    """What is on disk after a window."""

    rows_read: int = 0
    position: int = 0
    rows: int = 0
    errors: int = 0
    tokens: int = 0
    bytes: int = 0


class JobFiles:
    """`begin` makes or goes on with a run's folder; `append` keeps a window; `close` leaves it for the next time."""

    def __init__(self, folder: Path, lock: IO[str], checkpoint: Checkpoint) -> None:
        self._folder = folder
        self._lock = lock
        self.checkpoint = checkpoint
        self._rows = (folder / "rows.jsonl").open("ab", buffering=0)
        self._journal = (folder / "journal.jsonl").open("ab", buffering=0)

    @classmethod
    def begin(cls, out: Path, job: dict[str, Any]) -> Self:
        """`job` is all that decides the output, ready for JSON."""
        folder = folder_of(out)
        if out.exists():
            raise RequestError("output_exists", f"{out} is there already; remove it or give another --out")
        if not out.parent.is_dir():
            raise RequestError("no_folder", f"there is no folder {out.parent}")
        _make(folder, job)
        lock = (folder / "job.json").open(encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise RequestError("run_in_progress", f"another process is at this run: {folder}") from None
        checkpoint, journal_bytes = _last_checkpoint(folder)
        _cut(folder / "journal.jsonl", journal_bytes)
        _cut(folder / "rows.jsonl", checkpoint.bytes)
        return cls(folder, lock, checkpoint)

    def append(self, lines: bytes, checkpoint: Checkpoint) -> None:
        """`checkpoint.bytes` are those after these lines."""
        try:
            _keep(self._rows, lines)
            _keep(self._journal, json.dumps(asdict(checkpoint)).encode() + b"\n")
        except OSError as error:
            raise OnepassError(
                f"cannot write to {self._folder}: {error.strerror}; {self.checkpoint.rows:,} rows are kept, and the "
                "same command goes on after them"
            ) from error
        self.checkpoint = checkpoint

    @property
    def rows_path(self) -> Path:
        return self._folder / "rows.jsonl"

    def finish(self, out: Path, converted: Path) -> None:
        """Put what was made (rows.jsonl or a file converted from it) in the output's place."""
        self.close()
        (self._folder / FINISHED).touch()
        _sync_folder(self._folder)
        os.replace(converted, out)
        _sync_folder(out.parent)
        shutil.rmtree(self._folder)

    def close(self) -> None:
        self._rows.close()
        self._journal.close()
        self._lock.close()


def was_finished(out: Path, job: dict[str, Any]) -> bool:
    """Whether this very run had put its output in place when it was stopped; its folder is then removed."""
    folder = folder_of(out)
    if not out.exists() or not (folder / FINISHED).exists():
        return False
    _make(folder, job)
    shutil.rmtree(folder)
    return True


def folder_of(out: Path) -> Path:
    return out.with_name(out.name + ".run")


def fingerprint(path: Path) -> dict[str, Any]:
    """Of a file's contents: its size, and what its beginning, middle and end hold."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        for start in (0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return {"size": size, "sha256": digest.hexdigest()}


def _make(folder: Path, job: dict[str, Any]) -> None:
    """The folder with this job in it; a RequestError where it is another's."""
    path, wanted = folder / "job.json", json.loads(json.dumps(job))
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        if differing:
            was = "; ".join(f"{name} was {found.get(name)!r} and is {wanted.get(name)!r}" for name in differing)
            raise RequestError(
                "other_run", f"{folder} is another run's: {was}. Remove it to begin anew, or give another --out"
            )
        return
    if folder.exists() and any(entry.name != "job.json.new" for entry in folder.iterdir()):
        raise RequestError("other_run", f"{folder} is there and is no run's folder; give another --out")
    folder.mkdir(exist_ok=True)
    new = folder / "job.json.new"
    with new.open("wb", buffering=0) as file:
        _keep(file, json.dumps(job, indent=1).encode() + b"\n")
    os.replace(new, path)
    _sync_folder(folder)
    _sync_folder(folder.parent)


def _last_checkpoint(folder: Path) -> tuple[Checkpoint, int]:
    """The last whole line of the journal whose rows are there, and the journal's bytes up to its end."""
    journal, rows = folder / "journal.jsonl", folder / "rows.jsonl"
    checkpoint, end, at = Checkpoint(), 0, 0
    if not journal.is_file() or not rows.is_file():
        return checkpoint, end
    size = rows.stat().st_size
    for line in journal.read_bytes().splitlines(keepends=True):
        at += len(line)
        try:
            next_one = Checkpoint(**json.loads(line))
        except (ValueError, TypeError):
            break
        if not line.endswith(b"\n") or next_one.bytes > size:
            break
        checkpoint, end = next_one, at
    return checkpoint, end


def _cut(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _keep(file: RawIOBase, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
