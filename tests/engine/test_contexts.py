"""Contexts are kept within a byte budget, least recently used out first; handles live until released or expired."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.engine import contexts as module
from onepass.engine.contexts import SHORTEST_REUSE, ContextCache, KeptContext
from onepass.errors import ContextNotFound, DoesNotFit

LAYERS, HEADS, HEAD_DIM, HIDDEN = 2, 1, 4, 8


def kept(first: int, length: int = 64) -> KeptContext:
    """A context of `length` tokens from `first` on; 64 tokens are 4,128 bytes."""
    keys = np.zeros((LAYERS, length, HEADS, HEAD_DIM), np.float32)
    ids = tuple(range(first, first + length))
    return KeptContext(ids, keys, keys, np.zeros(HIDDEN, np.float32))  # type: ignore[arg-type]


SIZE = kept(0).bytes
A, B, C, D = kept(0), kept(1000), kept(2000), kept(3000)


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def cache_with(*contexts: KeptContext, room_for: int = 3, clock: Clock | None = None) -> ContextCache:
    cache = ContextCache(room_for * SIZE, clock or Clock())
    for context in contexts:
        cache.put(context)
    return cache


def held(cache: ContextCache, *contexts: KeptContext) -> list[bool]:
    """Without counting as a use."""
    return [context.ids in cache._held for context in contexts]


def test_a_context_is_found_by_its_ids_alone() -> None:
    cache = cache_with(A, B)
    assert cache.find(A.ids) is A
    assert cache.find(A.ids[:-1]) is None
    assert cache.find((*A.ids, 7)) is None


def test_bytes_stay_within_the_budget() -> None:
    cache = cache_with(room_for=3)
    for first in range(0, 20_000, 1000):
        cache.put(kept(first))
        assert cache.bytes <= cache.budget
    assert len(cache) == 3
    assert cache.bytes == 3 * SIZE
    assert cache.evictions == 17


def test_the_least_recently_used_goes_first() -> None:
    cache = cache_with(A, B, C)
    cache.find(A.ids)
    cache.put(D)
    assert held(cache, A, B, C, D) == [True, False, True, True]


def test_a_use_by_handle_counts_as_a_use() -> None:
    cache = cache_with(A, B, C)
    handle = cache.open(A.ids, 60, pin=False)
    cache.find(B.ids)
    cache.find(C.ids)
    cache.get(handle.id)
    cache.put(D)
    assert held(cache, A, B, C, D) == [True, False, True, True]


def test_a_context_put_again_is_kept_once_and_fresh() -> None:
    cache = cache_with(A, B, C)
    cache.put(A)
    assert len(cache) == 3
    cache.put(D)
    assert held(cache, A, B) == [True, False]


def test_pinned_contexts_are_not_evicted_for_others() -> None:
    cache = cache_with(A, B, C)
    cache.open(A.ids, 60, pin=True)
    for first in range(5000, 9000, 1000):
        cache.put(kept(first))
    assert held(cache, A, B, C) == [True, False, False]
    assert cache.bytes <= cache.budget


def test_when_all_is_pinned_nothing_more_is_kept() -> None:
    cache = cache_with(A, B, C)
    for context in (A, B, C):
        cache.open(context.ids, 60, pin=True)
    cache.put(D)
    assert held(cache, A, B, C, D) == [True, True, True, False]
    with pytest.raises(DoesNotFit, match=rf"64 tokens does not fit the cache: the budget is {3 * SIZE:,} bytes"):
        cache.open(D.ids, 60, pin=False)


def test_a_context_larger_than_the_budget_evicts_nothing() -> None:
    cache = cache_with(A, B, C)
    cache.put(kept(5000, length=400))
    assert held(cache, A, B, C) == [True, True, True]
    assert cache.evictions == 0


def test_a_budget_of_nothing_keeps_nothing() -> None:
    cache = cache_with(A, room_for=0)
    assert len(cache) == 0
    assert cache.find(A.ids) is None


def test_a_handle_says_what_it_holds() -> None:
    clock = Clock()
    cache = cache_with(A, clock=clock)
    handle = cache.open(A.ids, 60, pin=True)
    assert (handle.tokens, handle.bytes, handle.expires_at, handle.pinned) == (64, SIZE, clock.now + 60, True)
    assert cache.get(handle.id) == (handle, A)


def test_a_handle_expires_on_time_and_is_then_an_error() -> None:
    clock = Clock()
    cache = cache_with(A, clock=clock)
    handle = cache.open(A.ids, 60, pin=False)
    clock.now += 59.9
    assert cache.get(handle.id)[1] is A
    clock.now += 0.1
    with pytest.raises(ContextNotFound, match=rf"{handle.id}.*expired"):
        cache.get(handle.id)
    with pytest.raises(ContextNotFound):
        cache.release(handle.id)
    assert cache.find(A.ids) is A, "the context itself may serve until its room is needed"


def test_a_pin_ends_with_its_handle() -> None:
    clock = Clock()
    cache = cache_with(A, B, C, clock=clock)
    cache.open(A.ids, 60, pin=True)
    clock.now += 61
    cache.put(D)
    assert held(cache, A, D) == [False, True]


def test_a_released_handle_is_an_error_and_its_pin_is_gone() -> None:
    cache = cache_with(A, B, C)
    handle = cache.open(A.ids, 60, pin=True)
    cache.release(handle.id)
    for use in (cache.get, cache.release):
        with pytest.raises(ContextNotFound):
            use(handle.id)
    cache.put(D)
    assert held(cache, A, D) == [False, True]


def test_two_handles_on_one_context_end_apart() -> None:
    cache = cache_with(A)
    first, second = cache.open(A.ids, 60, pin=True), cache.open(A.ids, 60, pin=False)
    assert first.id != second.id
    cache.release(first.id)
    assert cache.get(second.id)[1] is A


def test_an_evicted_handle_is_an_error_not_a_recomputation() -> None:
    cache = cache_with(A)
    handle = cache.open(A.ids, 60, pin=False)
    for context in (B, C, D):
        cache.put(context)
    with pytest.raises(ContextNotFound, match="evicted"):
        cache.get(handle.id)


def test_an_unknown_handle_is_an_error() -> None:
    with pytest.raises(ContextNotFound, match="'ctx-nothing'"):
        cache_with(A).get("ctx-nothing")


def test_nearest_shares_the_longest_beginning() -> None:
    short, long = kept(0, 32), kept(0, 48)
    cache = cache_with(long, short, B)
    ids = (*range(40), 9, 9, 9)
    assert cache.nearest(ids) == (long, 40)
    assert cache.nearest((*range(48), 9)) == (long, 48)


IDS = st.lists(st.sampled_from([0, 1, 255, 256, 2**31 - 1]), min_size=1, max_size=6).map(
    lambda ids: tuple([7] * 14 + ids)
)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(IDS, max_size=12), st.sets(st.integers(0, 11)), IDS)
def test_nearest_is_the_longest_of_all_whatever_came_and_went(
    put: list[tuple[int, ...]], pinned: set[int], ids: tuple[int, ...]
) -> None:
    """Room for six; some are pinned, and lose their handles again."""
    keys = np.zeros((1, 8, 1, 1), np.float32)
    cache = ContextCache(6 * KeptContext((), keys, keys, keys).bytes, Clock())  # type: ignore[arg-type]
    handles = []
    for number, one in enumerate(put):
        cache.put(KeptContext(one, keys, keys, keys))  # type: ignore[arg-type]
        if number in pinned and one in cache._held:
            handles.append(cache.open(one, 60, pin=True))
        if len(handles) > 3:
            cache.release(handles.pop(0).id)
    there = list(cache._held)
    assert cache.bytes == sum(held.context.bytes for held in cache._held.values()) <= cache.budget
    assert [one for _, one in cache._sorted] == sorted(there)
    longest = max((min(common(ids, one), len(ids) - 1) for one in there), default=0)
    found = cache.nearest(ids)
    if longest < SHORTEST_REUSE:
        assert found is None
    else:
        assert found is not None
        assert found[1] == longest == min(common(ids, found[0].ids), len(ids) - 1)


def test_a_request_does_not_look_at_every_context_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand contexts that begin with the same words; looking at each would cost more than a small request."""
    same = tuple(range(100_000, 100_032))
    many = [KeptContext((*same, n, *range(30)), A.k, A.v, A.hidden) for n in range(1000)]
    cache = cache_with(*many, room_for=1000)
    looked, compare = [], module._common
    monkeypatch.setattr(module, "_common", lambda a, b: looked.append(1) or compare(a, b))
    assert cache.nearest((*same, 500, *range(20), 77)) == (many[500], 53)
    assert cache.nearest((*same, 2000)) is not None
    assert len(looked) <= 6


def test_nearest_leaves_the_last_token_to_compute() -> None:
    cache = cache_with(kept(0, 64))
    nearest = cache.nearest(tuple(range(40)))
    assert nearest is not None
    assert nearest[1] == 39


def test_a_beginning_too_short_to_matter_is_not_reused() -> None:
    cache = cache_with(A)
    assert cache.nearest((*range(SHORTEST_REUSE - 1), 9, 9)) is None
    assert cache.nearest((*range(SHORTEST_REUSE), 9, 9)) == (A, SHORTEST_REUSE)
    assert cache.nearest((9, *range(60))) is None


def test_clear_forgets_contexts_and_handles() -> None:
    cache = cache_with(A)
    handle = cache.open(A.ids, 60, pin=True)
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)
    with pytest.raises(ContextNotFound):
        cache.get(handle.id)
