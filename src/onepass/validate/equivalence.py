"""Do all ways of computing give the serial numbers? Modes, sizes, caches, empty items, item_first, the delimiter.

The serial side is `rig.Serial`, always with isolation on; whether items disturb one another is `isolation`.
"""

from collections.abc import Iterator

import numpy as np

from onepass.evidence.tolerance import Tolerance
from onepass.validate.check import Case, CheckFailed, Differences
from onepass.validate.harness import Harness, SerialOracle
from onepass.validate.settings import Settings
from onepass.validate.workload import Ids, Workload

CHUNK_SIZES = (8,)
EXTEND_BATCH_SIZES = (7, 16)
DENSE_MOST = 128  # items; every token asks every key there, which takes minutes on a CPU


def equivalence_cases(work: Workload, settings: Settings, tolerance: Tolerance, serial: SerialOracle) -> Iterator[Case]:
    for count in settings.counts:
        for way in settings.ways:
            if count > DENSE_MOST and way == "packed-dense":
                continue
            control = count in settings.controlled_counts
            yield against_serial(work, count, way, tolerance, serial, settings.serial_items, control)
    large, middle = settings.large_count, settings.middle_count
    for way in _sizes(settings):
        yield against_serial(work, large, way, tolerance, serial, settings.serial_items, control=False)
    if {"packed-dense", "packed-segment"} <= set(settings.ways):
        yield dense_against_segment(work, large, tolerance)
    for way in settings.ways:
        yield empty_items(work, way, tolerance, serial)
        yield item_first(work, min(middle, 3), way, tolerance, serial)  # each item repeats the query: a few are enough
        yield delimiter(work, middle, way, tolerance, serial)
    if "extend" in settings.ways:
        yield cached_against_cold(work, large, tolerance)
        yield extended_context(work, large, tolerance)


def _sizes(settings: Settings) -> list[str]:
    chunked = [f"chunked:{size}" for size in CHUNK_SIZES] if "chunked" in settings.ways else []
    return chunked + ([f"extend:{size}" for size in EXTEND_BATCH_SIZES] if "extend" in settings.ways else [])


def against_serial(
    work: Workload, count: int, way: str, tolerance: Tolerance, serial: SerialOracle, most: int, control: bool
) -> Case:
    items = work.first(count)
    sampled = work.sample(count, most)

    def measure(rig: Harness) -> Differences:
        found = rig.numbers(way, work.query, items)
        yield np.abs(found[sampled] - serial.numbers(work.query, [items[i] for i in sampled]))

    detail = f"{count} items" + (f", {len(sampled)} of them serially" if len(sampled) < count else "")
    return Case("mode against serial", way, detail, tolerance, measure, control)


def dense_against_segment(work: Workload, count: int, tolerance: Tolerance) -> Case:
    items = work.first(count)
    sound: list[np.ndarray] = []

    def measure(rig: Harness) -> Differences:
        """The control compares a leaking dense mask with the sound segments."""
        if not rig.leaking:
            sound[:] = [rig.numbers("packed-segment", work.query, items)]
        yield np.abs(rig.numbers("packed-dense", work.query, items) - sound[0])

    return Case("dense against segment", "packed", f"{count} items", tolerance, measure, control=count > 1)


def empty_items(work: Workload, way: str, tolerance: Tolerance, serial: SerialOracle) -> Case:
    """Empty items alone, and first, last and side by side among others: each is read at the query's last token."""
    mixed: list[Ids] = [[], *work.items[:3], *work.items[4:7], []]
    none: list[Ids] = [[], []]

    def measure(rig: Harness) -> Differences:
        for items in (mixed, none):
            yield np.abs(rig.numbers(way, work.query, items) - serial.numbers(work.query, items))

    return Case("empty items", way, "alone and among others", tolerance, measure, control=len(work.items) > 1)


def item_first(work: Workload, count: int, way: str, tolerance: Tolerance, serial: SerialOracle) -> Case:
    """Against the serial scoring of `item` as the query and `query` as its only item."""
    items = work.first(count)

    def measure(rig: Harness) -> Differences:
        found = rig.numbers(way, work.query, items, item_first=True)
        for item, row in zip(items, found, strict=True):
            joined = serial.numbers(item, [work.query]) if item else serial.numbers(work.query, [[]])
            yield np.abs(row - joined[0])

    return Case("item_first", way, f"{count} items", tolerance, measure, control=count > 1)


def delimiter(work: Workload, count: int, way: str, tolerance: Tolerance, serial: SerialOracle) -> Case:
    """With a delimiter against serial scoring of `query + delimiter + item` as plain ids. The delimiter also occurs in
    the query and in an item: boundaries are numbers and are never searched for."""
    token = (work.query[0] + 1) % work.vocab_size
    query = [*work.query[:-5], token, *work.query[-4:]]
    items = work.first(count)
    items[0] = [token, *items[0][1:]]

    def measure(rig: Harness) -> Differences:
        found = rig.numbers(way, query, items, delimiter_token_id=token)
        yield np.abs(found - serial.numbers([*query, token], items))

    return Case("delimiter", way, f"{count} items", tolerance, measure, control=count > 1)


def cached_against_cold(work: Workload, count: int, tolerance: Tolerance) -> Case:
    """By the cache and by a handle. The control's cold side keeps its isolation: caching alone cannot leak."""
    items = work.first(count)
    cold: list[np.ndarray] = []

    def measure(rig: Harness) -> Differences:
        scorer = rig.scorer("extend")
        scorer.engine.contexts.clear()
        first = rig.score("extend", work.query, items)
        _expect_cached(first.usage.cached_tokens, 0)
        if not rig.leaking:
            cold[:] = [rig.probabilities(first)]
        second = rig.score("extend", work.query, items)
        _expect_cached(second.usage.cached_tokens, len(work.query))
        yield np.abs(rig.probabilities(second) - cold[0])
        handle = scorer.prefill(work.query)
        by_handle = rig.score("extend", None, items, context=handle.id)
        scorer.release(handle)
        _expect_cached(by_handle.usage.cached_tokens, len(work.query))
        yield np.abs(rig.probabilities(by_handle) - cold[0])

    return Case("cached against cold", "extend", f"{count} items", tolerance, measure, control=count > 1)


def extended_context(work: Workload, count: int, tolerance: Tolerance) -> Case:
    """A query whose beginning is cached is computed from there on. No control: the mask plays no part in it."""
    items = work.first(count)
    beginning = work.query[: len(work.query) * 3 // 4]

    def measure(rig: Harness) -> Differences:
        scorer = rig.scorer("extend")
        scorer.engine.contexts.clear()
        cold = rig.numbers("extend", work.query, items)
        scorer.engine.contexts.clear()
        scorer.release(scorer.prefill(beginning))
        result = rig.score("extend", work.query, items)
        _expect_cached(result.usage.cached_tokens, len(beginning))
        yield np.abs(rig.probabilities(result) - cold)

    detail = f"{count} items, {len(beginning)} of {len(work.query)} query tokens"
    return Case("partly cached against cold", "extend", detail, tolerance, measure, control=False)


def _expect_cached(got: int, wanted: int) -> None:
    if got != wanted:
        raise CheckFailed(f"{wanted} query tokens should have come from the cache; {got} did")
