"""While an engine serves, what was there before is not walked by the collector, and what comes seldom is."""

import gc

from onepass.engine.gc_policy import THRESHOLDS, rare_collections


def test_collections_are_rare_within_and_as_before_afterwards() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > frozen
        assert THRESHOLDS[0] > before[0]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
