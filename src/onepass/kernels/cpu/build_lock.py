"""A lock file between processes that build the same library: the second waits, and finds what the first has built.

What is built is `build`. A lock that cannot be had, in time or at all, keeps nobody from building.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.05


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[bool]:
    """Whether the lock is held: not after `timeout` seconds, nor on a file system without locks. The file is removed
    with the lock; that of a process that died is not locked and is used again."""
    descriptor = _acquire(path, time.monotonic() + timeout)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            with suppress(OSError):
                path.unlink()  # while it is locked: nobody else can hold it
            os.close(descriptor)


def _acquire(path: Path, deadline: float) -> int | None:
    while True:
        descriptor = None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if _try_lock(descriptor) and _is_at(descriptor, path):
                return descriptor
        except OSError:
            deadline = 0.0
        if descriptor is not None:
            os.close(descriptor)
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_SECONDS)


def _try_lock(descriptor: int) -> bool:
    import fcntl  # not on Windows, where nothing is built

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """The holder before us may have removed the file after we opened it; another is then made."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
