"""While an engine serves, what was there before is not walked by the collector, and what comes seldom is."""

import gc
import time

from engine.tiny import ITEMS, QUERY, Tiny
from onepass.engine.gc_policy import THRESHOLDS, rare_collections


def test_collections_are_rare_within_and_as_before_afterwards() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > frozen
        assert THRESHOLDS[0] > before[0]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_an_answered_request_leaves_nothing_to_collect(tiny: Tiny) -> None:
    """Reference counts free it: every collection stops all threads, the one that feeds the device too."""
    scorer = tiny.scorer()
    request = tiny.request(QUERY, ITEMS)
    scorer.submit(request).result(60)
    gc.collect()
    gc.disable()
    try:
        for future in [scorer.submit(request) for _ in range(3)]:
            future.result(60)
        del future
        cancelled = scorer.submit(request)
        cancelled.cancel()
        scorer.submit(request).result(60)
        del cancelled
        time.sleep(0.1)  # the engine's thread has let go of the last one
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(one).__name__ for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert "Job" not in left
    assert "Future" not in left
