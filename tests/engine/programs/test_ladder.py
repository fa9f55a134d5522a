"""The rungs: few, known before the first request, and the largest holds anything that a step can be filled with."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onepass.engine.parts import HALVES, RUNGS
from onepass.engine.programs.ladder import MAX_RUNGS, ladder


@given(
    most=st.integers(16, 20_000),
    page=st.sampled_from([16, 64, 128]),
    position=st.integers(1, 50_000),
    multiple=st.sampled_from([1, 16, 128]),
    rungs=st.sampled_from([*RUNGS.values(), HALVES]),
)
def test_rungs_are_few_and_ascend_to_what_was_asked_for(
    most: int, page: int, position: int, multiple: int, rungs: tuple[int, ...]
) -> None:
    shapes = ladder(most, rungs, multiple, page, position).shapes
    sizes = [shape.tokens for shape in shapes]
    assert 1 <= len(shapes) <= MAX_RUNGS
    assert sizes == sorted(set(sizes))
    assert most <= sizes[-1] < most + multiple
    assert all(size % multiple == 0 for size in sizes)
    for shape in shapes:
        assert shape.page == page
        assert shape.entries * page >= position, "any rung has room for the longest context"
        assert shape.readouts >= min(64, shape.tokens)
        assert shape.pairs >= 64


def test_rungs_are_those_given_below_the_largest_in_multiples_that_kernels_take() -> None:
    def tokens(*given: Any) -> list[int]:
        return [shape.tokens for shape in ladder(*given, page=64, max_position=4096).shapes]

    assert tokens(8192, (512, 2048), 128) == [512, 2048, 8192]
    assert tokens(1000, HALVES, 128) == [128, 256, 512, 1024]
    assert tokens(50, (64, 256), 1) == [50]
    assert tokens(300, (100, 250), 128) == [128, 256, 384]


@given(tokens=st.integers(0, 1024), readouts=st.integers(0, 256), entries=st.integers(0, 192))
def test_the_rung_is_the_smallest_that_holds_the_step(tokens: int, readouts: int, entries: int) -> None:
    rungs = ladder(1024, HALVES, 1, 64, 4096)

    def holds(shape: object) -> bool:
        needs = {"tokens": tokens, "readouts": readouts, "entries": entries}
        return all(getattr(shape, name) >= count for name, count in needs.items())

    chosen = rungs.rung(tokens, readouts, entries)
    assert holds(chosen)
    assert not any(holds(shape) for shape in rungs.shapes if shape.tokens < chosen.tokens)
