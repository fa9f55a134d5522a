"""Fixtures of the engine's tests: tiny models by name and dtype, kept for the session with their compiled programs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from engine.tiny import Tiny


@pytest.fixture(scope="session")
def tiny_of(checkpoint: Callable[[str], Path]) -> Iterator[Callable[[str, str], Tiny]]:
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
