"""Memory given back to the system: glibc keeps what is freed, in as many arenas as there were threads, for ever.

Elsewhere than on glibc nothing is done.
"""

import ctypes
from functools import cache

MMAP_THRESHOLD_BYTES = 1 << 22  # at 256 KiB, work on many blocks of 1 MiB took eight times as long
ARENAS = 2
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h


def configure_malloc() -> None:
    """Large blocks come from the system and go back to it when freed. Left alone, glibc raises the threshold to 32 MiB
    after the first large block, and keeps all that comes later."""
    library = _glibc()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES)
        library.mallopt(M_ARENA_MAX, ARENAS)


def release_free_memory() -> None:
    """Give back the free pages of every arena. Releases the interpreter's lock; takes a few milliseconds."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt, library.malloc_trim  # noqa: B018  (raises where there is none)
    except (OSError, AttributeError):
        return None
    return library
