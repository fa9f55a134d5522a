"""Fixtures of the engine's tests: tiny models by name and dtype, kept for the session with their compiled programs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import pytest

from engine.tiny import Tiny


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Compiling is most of what these tests cost. Programs are the same, their machine code is not optimised; that of
    users is run by the tests of `validate`, of parity and of `Scorer`."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Scorers of one session share what XLA compiled. The cache's key is the program itself, so it can hide nothing."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("xla")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(scope="session")
def tiny_of(checkpoint: Callable[[str], Path], compile_cache: None) -> Iterator[Callable[[str, str], Tiny]]:
    """`tiny_of(variant, dtype)`."""
    opened: list[Tiny] = []

    @cache
    def open_tiny(name: str, dtype: str) -> Tiny:
        labels = [] if dtype == "float32" else open_tiny(name, "float32").labels
        opened.append(replace(Tiny.open(checkpoint(name), dtype), _labels=labels))
        return opened[-1]

    yield open_tiny
    for tiny in opened:
        tiny.close()


@pytest.fixture(scope="session")
def tiny(tiny_of: Callable[[str, str], Tiny]) -> Tiny:
    """The model of most tests: grouped KV heads, stretched rotary positions, untied head, float32."""
    return tiny_of("llama3", "float32")
