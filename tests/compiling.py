"""How the programs of a test run are compiled: once for all of its processes, and quickly where a test allows it.

Compiling is most of what tests cost. A run has a folder of its own for JAX's compilation cache, which its workers and
the processes that tests start share; the cache's key is the program itself, so it can hide nothing. The machine code of
most tests is not optimised; that of users is run by the tests of `OPTIMISED`.
"""

import atexit
import shutil
import sys
import tempfile
from collections.abc import MutableMapping

FOLDER = "JAX_COMPILATION_CACHE_DIR"
QUICK = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# Folders and files, relative to `tests/`, whose tests compile as users do: comparisons with PyTorch, the checks of
# `onepass validate`, the library, and the sessions and examples that users are shown; and the kernels for Hopper, whose
# interpreter computes for longer than it compiles.
OPTIMISED = (
    "parity/",
    "validate/",
    "kernels/hopper/",
    "documentation/",
    "test_scorer.py",
)


def share_compilations(environment: MutableMapping[str, str]) -> None:
    """To be called before JAX is imported. The process that makes the folder removes it; workers find it made."""
    if FOLDER not in environment:
        environment[FOLDER] = tempfile.mkdtemp(prefix="onepass-test-xla-")
        atexit.register(shutil.rmtree, environment[FOLDER], ignore_errors=True)
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def compile_as(node: str, environment: MutableMapping[str, str]) -> None:
    """For a test by its path relative to `tests/`, in this process and those that it starts."""
    quick = not node.startswith(OPTIMISED)
    environment[QUICK] = str(int(quick))
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_disable_most_optimizations", quick)
