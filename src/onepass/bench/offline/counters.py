"""What happened while a benchmark was timing: compilations, by the engine's count and by JAX's, and peak memory.

Either count voids a row; deciding that is `row`.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax import monitoring

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


@dataclass
class Compiles:
    """Programs XLA was asked for in a window, also those that a cache on disk spared it."""

    count: int = 0


@contextmanager
def counting_compiles() -> Iterator[Compiles]:
    seen = Compiles()

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs, kwargs
        seen.count += event == BACKEND_COMPILE

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        monitoring.unregister_event_duration_listener(listen)


@dataclass(frozen=True)
class Peak:
    bytes: int
    kind: str


def forget_peak() -> bool:
    """Start a new high-water mark of this process's memory, where the system can; whether it did."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_peak(fresh: bool) -> Peak:
    """Device memory on an accelerator; the process's on a CPU, since `forget_peak` if that could be done."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "peak_bytes_in_use" in stats:
        return Peak(int(stats["peak_bytes_in_use"]), "device, since the process started")
    if fresh:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        marks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        if marks:
            return Peak(marks[0] * 1024, "process, in this row")
    return Peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "process, since it started")
