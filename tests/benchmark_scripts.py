"""Scripts of `benchmarks/`, imported by tests of them."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

FOLDER = str(Path(__file__).parents[1] / "benchmarks")


@contextmanager
def benchmark_script(name: str) -> Iterator[ModuleType]:
    """`benchmarks/NAME.py` as a module, with its folder on the path as when it is run."""
    sys.path.append(FOLDER)
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)
        del sys.modules[name]
