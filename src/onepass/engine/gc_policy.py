"""Garbage collection while an engine serves: `rare_collections`.

Results are lists of lists, and reference counts free them. With Python's own thresholds, 16 requests of 500 items made
the collector walk every live result several times a second, with all threads stopped: a tenth of an H200's time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects allocated and not freed between collections of the youngest; collections of each generation before the next.
THRESHOLDS = (20_000, 10, 20)


@contextmanager
def rare_collections() -> Iterator[None]:
    """What is there before is never walked (the model, JAX, the tokenizer); what comes later is, but seldom."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
