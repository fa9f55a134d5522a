"""`compile_whole`: an executable that holds its machine code, so that `store` can keep it.

It turns JAX's own compilation cache off meanwhile.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache


def compile_whole(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program that can be kept: never one out of JAX's own compilation cache.

    On a CPU an executable that was loaded, from that cache or from ours, no longer holds its machine code: serialised
    again it loads, and fails when it is run. So that cache is off meanwhile, where the user has turned it on.
    """
    with _JAX_CACHE.off():
        return lowered.compile()


class _JaxCacheSwitch:
    """JAX's compilation cache, off while any thread of the process is in `off()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._restore = False

    @contextmanager
    def off(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._restore = jax.config.jax_compilation_cache_dir is not None and _enable_jax_cache(False)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._restore:
                    _enable_jax_cache(True)


_JAX_CACHE = _JaxCacheSwitch()  # one, as the setting it switches is the process's own


def _enable_jax_cache(enabled: bool) -> bool:
    """Whether it was enabled before. JAX decides once whether to use its cache, and again after `reset_cache`."""
    before: bool = jax.config.jax_enable_compilation_cache
    if before != enabled:
        jax.config.update("jax_enable_compilation_cache", enabled)
        jax_cache.reset_cache()
    return before
