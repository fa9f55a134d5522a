"""Counting compilations two ways: by the engine, and by JAX's report of every backend compilation in the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from onepass.scorer import Scorer

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations(scorer: Scorer) -> Iterator[list[int]]:
    """Filled in at the end: [by the engine's count, by JAX's]."""
    events: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == COMPILED:
            events.append(event)

    before = scorer.engine.runner.compilations
    counts: list[int] = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    counts += [scorer.engine.runner.compilations - before, len(events)]
