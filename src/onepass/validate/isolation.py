"""Does an item's score depend on the item alone? Other items of its request are changed, reordered, taken away.

What an item's score should be is left to `equivalence`, other requests in its step to `neighbours`; here a scorer is
compared with itself.
"""

from collections.abc import Iterator

import numpy as np

from onepass.evidence.tolerance import EXACT, Tolerance
from onepass.validate.check import Case, Differences
from onepass.validate.harness import Harness, raw
from onepass.validate.neighbours import neighbour_cases
from onepass.validate.settings import Settings
from onepass.validate.workload import Workload, mutated_sets, with_other_lengths, with_other_tokens

LARGE = 128


def isolation_cases(work: Workload, settings: Settings, tolerance: Tolerance) -> Iterator[Case]:
    for count in settings.counts:
        if count < 2:
            continue  # one item has no other item to be isolated from
        for way in settings.packed_ways:
            if count > LARGE and way != "extend":
                continue  # seconds a request: minutes for all, and what is proved is the same as at LARGE
            control = count in settings.controlled_counts
            yield same_length(work, count, way, control)
            if count <= LARGE:
                yield changed_length(work, count, way, tolerance, control)
    count = settings.large_count
    for way in settings.packed_ways if count > 1 else ():
        yield order(work, count, way, tolerance, settings.seed)
    count = settings.middle_count
    for way in settings.packed_ways:
        if count > 1:
            yield split(work, count, way, tolerance)
        yield from neighbour_cases(work, way, tolerance)


def same_length(work: Workload, count: int, way: str, control: bool = True) -> Case:
    """Every index is mutated, every other index is observed, and must not change in a single bit."""
    items = work.first(count)
    sets = mutated_sets(count)

    def measure(rig: Harness) -> Differences:
        before = raw(rig.score(way, work.query, items))
        for number, changed in enumerate(sets):
            if not any(items[i] for i in changed):
                continue  # an empty item has no token to change
            mutated = with_other_tokens(items, changed, work.vocab_size, number)
            yield _of_others(np.abs(raw(rig.score(way, work.query, mutated)) - before), changed)

    return Case("same-length isolation", way, f"{count} items, {len(sets)} mutations", EXACT, measure, control)


def changed_length(work: Workload, count: int, way: str, tolerance: Tolerance, control: bool = True) -> Case:
    """As above, but the mutated items also get other lengths, so that the others move in the step."""
    items = work.first(count)
    sets = mutated_sets(count)

    def measure(rig: Harness) -> Differences:
        before = rig.numbers(way, work.query, items)
        for number, changed in enumerate(sets):
            mutated = with_other_lengths(items, changed, work.vocab_size, number)
            yield _of_others(np.abs(rig.numbers(way, work.query, mutated) - before), changed)

    return Case("changed-length isolation", way, f"{count} items, {len(sets)} mutations", tolerance, measure, control)


def order(work: Workload, count: int, way: str, tolerance: Tolerance, seed: int) -> Case:
    items = work.first(count)
    orders = [list(range(count))[::-1], np.random.default_rng(seed).permutation(count).tolist()]

    def measure(rig: Harness) -> Differences:
        before = rig.numbers(way, work.query, items)
        for places in orders:
            yield np.abs(rig.numbers(way, work.query, [items[i] for i in places]) - before[places])

    return Case("order of items", way, f"{count} items, reversed and shuffled", tolerance, measure)


def split(work: Workload, count: int, way: str, tolerance: Tolerance) -> Case:
    items = work.first(count)
    at = min(2, count // 2)

    def measure(rig: Harness) -> Differences:
        whole = rig.numbers(way, work.query, items)
        # The later part first: it is the one that loses what came before it.
        yield np.abs(rig.numbers(way, work.query, items[at:]) - whole[at:])
        yield np.abs(rig.numbers(way, work.query, items[:at]) - whole[:at])

    return Case("split over requests", way, f"{count} items as {at} + {count - at}", tolerance, measure)


def _of_others(difference: np.ndarray, changed: set[int]) -> np.ndarray:
    return difference[[i for i in range(len(difference)) if i not in changed]]
