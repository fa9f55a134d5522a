"""Pages: every one is free or held, never both, and free again when the last holder lets go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.engine.contexts.pages import PagePool


def test_page_zero_is_nobodys() -> None:
    pool = PagePool(5)
    assert pool.free == 4
    assert sorted(pool.allocate(4) or []) == [1, 2, 3, 4]


def test_more_than_there_is_gives_nothing_and_takes_nothing() -> None:
    pool = PagePool(5)
    assert pool.allocate(5) is None
    assert pool.free == 4
    assert pool.allocate(0) == []


def test_a_page_is_free_when_its_last_holder_lets_go() -> None:
    pool = PagePool(3)
    pages = pool.allocate(2)
    assert pages is not None
    pool.hold(pages)
    pool.let_go(pages)
    assert pool.allocate(1) is None
    pool.let_go(pages[:1])
    assert pool.allocate(1) == pages[:1]


@pytest.mark.parametrize("use", [PagePool.hold, PagePool.let_go])
def test_a_free_page_cannot_be_held_or_let_go(use: object) -> None:
    pool = PagePool(3)
    with pytest.raises(AssertionError, match="page 2 is free"):
        use(pool, [2])  # type: ignore[operator]


@given(st.lists(st.tuples(st.sampled_from(["allocate", "hold", "let go"]), st.integers(0, 4)), max_size=60))
def test_whatever_comes_and_goes_the_count_is_right(moves: list[tuple[str, int]]) -> None:
    pool, held, seen = PagePool(10), Counter[int](), set[int]()
    for kind, count in moves:
        if kind == "allocate":
            there = 9 - len(held)
            pages = pool.allocate(count)
            assert (pages is None) == (count > there)
            assert not set(pages or ()) & set(held)
            held.update(pages or ())
            seen.update(pages or ())
        else:
            some = list(held)[:count]
            pool.hold(some) if kind == "hold" else pool.let_go(some)
            held.update(some) if kind == "hold" else held.subtract(some)
            held = +held
        assert pool.free == 9 - len(held)
        assert pool.peak == len(seen)
