"""Contexts are kept within a byte budget, least recently used out first; handles live until released or expired."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.engine.contexts import prefix_index
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.contexts.prefix_index import MIN_PREFIX_TOKENS
from onepass.errors import ContextNotFound, DoesNotFit

PAGE, SIZE = 64, 1000  # tokens and bytes of a page
PAGES = 3000


class HeldPool(PagePool):
    """All pages are held once, by the test."""

    def __init__(self) -> None:
        super().__init__(PAGES)
        self.allocate(PAGES - 1)


def kept(first: int, length: int = 64) -> CachedContext:
    """A context of `length` tokens from `first` on, in pages of its own."""
    return CachedContext(
        tuple(range(first, first + length)), tuple(range(1 + first // 100, 1 + first // 100 + -(-length // PAGE)))
    )


A, B, C, D = kept(0), kept(1000), kept(2000), kept(3000)


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def cache_with(
    *contexts: CachedContext, room_for: int = 3, clock: Clock | None = None, pool: PagePool | None = None
) -> ContextCache:
    cache = ContextCache(room_for * SIZE, pool or HeldPool(), PAGE, SIZE, clock or Clock())
    for context in contexts:
        cache.put(context)
    return cache


def held(cache: ContextCache, *contexts: CachedContext) -> list[bool]:
    """Without counting as a use."""
    return [context.ids in cache._entries for context in contexts]


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


def test_the_longest_common_beginning_is_found() -> None:
    short, long = kept(0, 32), CachedContext(tuple(range(48)), (9,))
    cache = cache_with(long, short, B)
    ids = (*range(40), 9, 9, 9)
    assert cache.longest_prefix(ids) == (long, 40)
    assert cache.longest_prefix((*range(48), 9)) == (long, 48)
    assert cache.longest_prefix(tuple(range(30))) in ((long, 30), (short, 30)), "the beginning of one, whole"


IDS = st.lists(st.sampled_from([0, 1, 255, 256, 2**31 - 1]), min_size=1, max_size=6).map(
    lambda ids: tuple([7] * 14 + ids)
)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(IDS, max_size=12), st.sets(st.integers(0, 11)), IDS)
def test_the_longest_of_all_is_found_whatever_came_and_went(
    put: list[tuple[int, ...]], pinned: set[int], ids: tuple[int, ...]
) -> None:
    """Room for six pages, of which contexts may share some; some are pinned, and lose their handles again."""
    pool = HeldPool()
    cache = cache_with(room_for=6, pool=pool)
    handles = []
    for number, kept in enumerate(put):
        cache.put(CachedContext(kept, (1 + number // 2,)))
        if number in pinned and kept in cache._entries:
            handles.append(cache.open(kept, 60, pin=True))
        if len(handles) > 3:
            cache.release(handles.pop(0).id)
    there = list(cache._entries)
    pages = {page for entry in cache._entries.values() for page in entry.context.pages}
    assert cache.bytes == len(pages) * SIZE <= cache.budget
    assert list(cache._prefixes) == sorted(there)
    longest = max((common(ids, kept) for kept in there), default=0)
    nearest = cache.longest_prefix(ids)
    if longest < MIN_PREFIX_TOKENS and ids not in there:
        assert nearest is None
    else:
        assert nearest is not None
        assert nearest[1] == longest == common(ids, nearest[0].ids)
    cache.clear()
    pool.let_go(range(1, PAGES))
    assert pool.free == PAGES - 1, "every hold was let go"


def test_a_request_does_not_look_at_every_context_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand contexts that begin with the same words; looking at each would cost more than a small request."""
    same = tuple(range(100_000, 100_032))
    many = [CachedContext((*same, n, *range(30)), (1 + n,)) for n in range(1000)]
    cache = cache_with(*many, room_for=1000)
    looked, compare = [], prefix_index._common
    monkeypatch.setattr(prefix_index, "_common", lambda a, b: looked.append(1) or compare(a, b))
    assert cache.longest_prefix((*same, 500, *range(20), 77)) == (many[500], 53)
    assert cache.longest_prefix((*same, 2000)) is not None
    assert len(looked) <= 6


def test_a_beginning_too_short_to_matter_is_not_reused() -> None:
    cache = cache_with(A)
    assert cache.longest_prefix((*range(MIN_PREFIX_TOKENS - 1), 9, 9)) is None
    assert cache.longest_prefix((*range(MIN_PREFIX_TOKENS), 9, 9)) == (A, MIN_PREFIX_TOKENS)
    assert cache.longest_prefix((9, *range(60))) is None


def test_the_pages_of_a_context_that_is_used_outlive_its_eviction() -> None:
    pool = PagePool(4)
    cache = cache_with(room_for=3, pool=pool)
    pages = pool.allocate(2)
    assert pages is not None
    context = CachedContext(tuple(range(100)), tuple(pages))
    cache.put(context)
    pool.let_go(pages)
    assert pool.free == 1
    handle = cache.open(context.ids, 60, pin=False)
    used = [cache.hold(context.ids), cache.hold_handle(handle.id), cache.hold_prefix(tuple(range(70)))]
    cache.clear()
    assert pool.free == 1
    for one in (used[0], used[1], used[2][0]):  # type: ignore[index]
        pool.let_go(one.pages)  # type: ignore[union-attr]
    assert pool.free == 3


def test_a_held_beginning_is_as_many_pages_as_it_fills() -> None:
    cache = cache_with(CachedContext(tuple(range(200)), (5, 6, 7, 8)), room_for=4)
    for length, pages in ((64, (5,)), (65, (5, 6)), (128, (5, 6)), (200, (5, 6, 7, 8))):
        nearest = cache.hold_prefix((*range(length), 999))
        assert nearest is not None
        assert (nearest[0].pages, len(nearest[0].ids), nearest[1]) == (pages, length, length)


def test_pages_that_contexts_share_count_once() -> None:
    one, other = CachedContext((1,) * 130, (1, 2, 3)), CachedContext((1,) * 140, (1, 2, 4))
    cache = cache_with(one, other, room_for=4)
    assert cache.bytes == 4 * SIZE
    assert held(cache, one, other) == [True, True]
    cache.drop(other)
    assert cache.bytes == 3 * SIZE


def test_a_context_is_dropped_with_its_handles_unless_others_have_taken_its_place() -> None:
    cache = cache_with(A)
    handle = cache.open(A.ids, 60, pin=True)
    cache.drop(CachedContext(A.ids, (99,)))
    assert cache.get(handle.id)[1] is A
    cache.drop(A)
    with pytest.raises(ContextNotFound):
        cache.get(handle.id)


def test_pages_are_made_free_by_evicting_the_oldest_that_are_not_pinned() -> None:
    pool = PagePool(6)
    cache = cache_with(room_for=9, pool=pool)
    contexts = []
    for n in range(5):
        pages = pool.allocate(1)
        assert pages is not None
        contexts.append(CachedContext((n,), tuple(pages)))
        cache.put(contexts[-1])
        pool.let_go(pages)
    cache.open(contexts[0].ids, 60, pin=True)
    assert pool.free == 0
    assert cache.evict_for(2)
    assert held(cache, *contexts) == [True, False, False, True, True]
    assert not cache.evict_for(5), "one is pinned"
    assert held(cache, *contexts) == [True] + 4 * [False]
    assert cache.evictions == 4


def test_clear_forgets_contexts_and_handles() -> None:
    cache = cache_with(A)
    handle = cache.open(A.ids, 60, pin=True)
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)
    with pytest.raises(ContextNotFound):
        cache.get(handle.id)


def test_a_short_context_is_found_whole() -> None:
    short = CachedContext((7, 8, 9), (1,))
    cache = cache_with(short)
    assert cache.longest_prefix(short.ids) == (short, 3)
    assert cache.longest_prefix((7, 8, 9, 10)) is None
