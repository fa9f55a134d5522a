"""Programs: a cold bucket is served by a larger compiled one while the right one compiles; padding changes nothing."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.attention.base import RowShape
from onepass.attention.registry import without_isolation
from onepass.engine.lowering import Program
from onepass.engine.pack import pack
from onepass.engine.runner import Runner
from onepass.scorer import Scorer

FEW = items_of([5, 4, 3], 50)  # 12 tokens: a smaller bucket than the standard 43


class Watched:
    """A scorer with background compilation that waits for `gate`, and a list of the programs it ran."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny = tiny
        self.scorer = Scorer(tiny.model, tiny.weights, replace(tiny.scorer().engine.config, background_compile=True))
        self.gate = threading.Event()
        self.ran: list[Program] = []
        runner = self.runner
        run, compile_ = runner.run, runner._compile

        def watched_run(program, *rest):  # type: ignore[no-untyped-def]
            self.ran.append(program)
            return run(program, *rest)

        def gated_compile(program: Program) -> None:
            if threading.current_thread().name.startswith("onepass-compile"):
                assert self.gate.wait(60)
            compile_(program)

        runner.run = watched_run  # type: ignore[method-assign]
        runner._compile = gated_compile  # type: ignore[method-assign]

    @property
    def runner(self) -> Runner:
        return self.scorer.engine.runner

    def score(self, items: list[list[int]]) -> Program:
        """Score in mode extend, check the scores, and say which program ran the items."""
        result = self.scorer.score_many([self.tiny.request(QUERY, items, mode="extend")])[0]
        assert difference(result.scores, self.tiny.serial(QUERY, items)) <= FLOAT32
        return self.ran[-1]


@pytest.fixture
def watched(tiny: Tiny) -> Iterator[Watched]:
    watched = Watched(tiny)
    yield watched
    watched.gate.set()
    watched.scorer.close()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_cold_bucket_borrows_a_larger_program_until_its_own_is_compiled(watched: Watched) -> None:
    large = watched.score(ITEMS)
    before = watched.runner.compilations
    assert watched.score(FEW) == large, "served at once by the larger program"
    assert watched.score(FEW) == large, "and again, with one compilation under way"
    assert watched.runner.compilations == before
    watched.gate.set()
    wait_until(lambda: watched.runner.compilations == before + 1)
    own = watched.score(FEW)
    assert own.shape.items < large.shape.items
    assert watched.runner.compilations == before + 1
    assert watched.score(ITEMS) == large


def test_a_failed_background_compilation_leaves_the_stand_in_serving(watched: Watched) -> None:
    large = watched.score(ITEMS)
    compiled = watched.runner._compile

    def failing(program: Program) -> None:
        if program.shape.items < large.shape.items:
            raise RuntimeError("no such register")
        compiled(program)

    watched.runner._compile = failing  # type: ignore[method-assign]
    for _ in range(3):
        assert watched.score(FEW) == large


def test_nothing_that_holds_it_means_waiting(watched: Watched) -> None:
    small = watched.score(FEW)
    large = watched.score(ITEMS)
    assert large.shape.items > small.shape.items


SHAPE = RowShape(rows=2, prefix=64, context=0, items=64, band=16, readouts=8, labels=4)
PROGRAM = Program("score", SHAPE, "cascade")


@pytest.mark.parametrize(
    ("wanted", "borrows"),
    [
        (PROGRAM, True),
        (replace(PROGRAM, shape=replace(SHAPE, rows=1)), True),
        (replace(PROGRAM, shape=replace(SHAPE, items=48, readouts=1)), True),
        (replace(PROGRAM, shape=replace(SHAPE, rows=4)), False),  # only a program of one row may run a part of them
        (replace(PROGRAM, shape=replace(SHAPE, items=80)), False),
        (replace(PROGRAM, shape=replace(SHAPE, band=32)), False),
        (replace(PROGRAM, shape=replace(SHAPE, readouts=16)), False),
        (replace(PROGRAM, shape=replace(SHAPE, labels=8)), False),
        (replace(PROGRAM, shape=replace(SHAPE, prefix=48)), True),  # a kept context is padded to a wider one
        (replace(PROGRAM, shape=replace(SHAPE, prefix=96)), False),
        (replace(PROGRAM, shape=replace(SHAPE, prefix=0)), False),
        (replace(PROGRAM, attention="dense"), False),
        (replace(PROGRAM, kind="prefill"), False),
        (replace(PROGRAM, keep=64), False),
        (replace(PROGRAM, shape=replace(SHAPE, rows=1, items=16)), False),  # more than four times the work
    ],
)
def test_only_a_program_that_holds_the_work_stands_in(tiny: Tiny, wanted: Program, borrows: bool) -> None:
    runner = Runner(tiny.model.config, tiny.weights, {}, background=True)
    runner._programs[PROGRAM] = object()
    runner._compile = lambda program: None  # type: ignore[method-assign]
    assert runner.choose(wanted) == (PROGRAM if borrows else wanted)
    runner.close()


def test_one_row_at_a_time_stands_in_for_several(tiny: Tiny) -> None:
    runner = Runner(tiny.model.config, tiny.weights, {}, background=True)
    one_row = replace(PROGRAM, shape=replace(SHAPE, rows=1))
    runner._programs[one_row] = object()
    runner._compile = lambda program: None  # type: ignore[method-assign]
    assert runner.choose(replace(PROGRAM, shape=replace(SHAPE, rows=8))) == one_row
    runner.close()


@pytest.mark.parametrize(
    ("mode", "larger"),
    [
        ("extend", {"rows": 2, "items": 80, "band": 32, "readouts": 16, "labels": 8}),
        ("extend", {"prefix": 192, "items": 48, "band": 16}),
        ("packed", {"rows": 2, "context": 48, "items": 80, "band": 32, "readouts": 32, "labels": 8}),
    ],
)
def test_padding_does_not_change_scores(tiny: Tiny, mode: str, larger: dict[str, int]) -> None:
    """The standard request in a bucket that is too large every way a bucket can be."""
    scorer = tiny.scorer(mask="segment")
    engine = scorer.engine
    request = tiny.request(QUERY, ITEMS, mode=mode)
    wanted = scorer.score_many([request])[0]
    encoded = engine.encoder.encode(request)
    (row,) = engine.planner.plan(encoded).rows
    context = engine.contexts.find(encoded.context) if row.prefix else None
    prefix = context.width if context else 0
    program = Program("score", replace(row.needs, **{"prefix": prefix, **larger}), "cascade")
    computed = engine.runner.run(program, pack([row], program.shape), [(context, row.prefix)], True)
    assert computed.logits is not None
    assert difference(computed.logits[0, : len(ITEMS), : len(tiny.labels)], wanted.logits) <= 1e-4


def test_a_program_that_keeps_contexts_wider_leaves_them_as_wide_as_wanted(tiny: Tiny, watched: Watched) -> None:
    """A longer context was computed before: its program stands in for the shorter one's."""
    watched.scorer.prefill(tokens(150, 51))
    before = watched.runner.compilations
    watched.scorer.prefill(tokens(100, 52))
    assert watched.ran[-1] == watched.ran[-2]
    assert watched.runner.compilations == before
    kept = watched.scorer.engine.contexts.find(tuple(tokens(100, 52)))
    assert kept is not None
    assert kept.width == 128 < watched.ran[-1].keep
    result = watched.scorer.score_many([tiny.request(tokens(100, 52), ITEMS, mode="extend")])[0]
    assert difference(result.scores, tiny.serial(tokens(100, 52), ITEMS)) <= FLOAT32


def test_programs_write_what_they_read_out_to_the_host_where_they_are_told_to(tiny: Tiny) -> None:
    """As on a GPU; the CPU knows that memory, too."""
    with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as scorer:
        runner = scorer.engine.runner
        run, kinds = runner.run, []

        def watched_run(program, *rest):  # type: ignore[no-untyped-def]
            computed = run(program, *rest)
            kinds.append([told.sharding.memory_kind for told in (computed.logits, computed.logsumexp)])
            return computed

        runner.run = watched_run  # type: ignore[method-assign]
        assert not runner.tells_host, "on the CPU there is nothing to gain"
        runner.lowering.tells_host = True
        result = scorer.score_many([tiny.request(QUERY, ITEMS, mode="packed")])[0]
    assert kinds == [["pinned_host"] * 2]
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_the_thread_that_feeds_the_device_gets_python_s_lock_soon(tiny: Tiny) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as scorer:
            scorer.score_many([tiny.request(QUERY, ITEMS, mode="packed")])
            assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before)


def test_scorers_of_one_model_can_share_what_they_compile(tiny: Tiny) -> None:
    config = tiny.scorer().engine.config
    with (
        Scorer(tiny.model, tiny.weights, config) as one,
        Scorer(tiny.model, tiny.weights, replace(config, chunk_size=2)) as other,
    ):
        other.engine.runner.share_programs(one.engine.runner)
        request = tiny.request(QUERY, ITEMS, mode="packed")
        wanted = one.score_many([request])[0]
        got = other.score_many([request])[0]
        assert got.scores == wanted.scores
        assert one.engine.runner.compilations > 0
        assert other.engine.runner.compilations == 0
        other.score_many([replace(request, mode="chunked")])
        assert other.engine.runner.compilations > 0
        before = one.engine.runner.compilations
        one.score_many([replace(request, mode="extend")])
        assert one.engine.runner.compilations > before
        before = other.engine.runner.compilations
        other.score_many([replace(request, mode="extend")])
        assert other.engine.runner.compilations == before


def test_programs_are_not_shared_with_other_weights_or_kernels_or_late(tiny: Tiny) -> None:
    config = tiny.scorer().engine.config
    others = jax.tree.map(lambda array: array + 0, tiny.weights)
    with (
        Scorer(tiny.model, tiny.weights, config) as one,
        Scorer(tiny.model, others, config) as elsewhere,
        Scorer(tiny.model, tiny.weights, config, without_isolation()) as leaking,
    ):
        for runner in (elsewhere.engine.runner, leaking.engine.runner):
            with pytest.raises(ValueError, match="same weights with the same kernels"):
                runner.share_programs(one.engine.runner)
        one.score_many([tiny.request(QUERY, ITEMS, mode="packed")])
        with pytest.raises(ValueError, match="before the first is compiled; there are 1"):
            one.engine.runner.share_programs(one.engine.runner)
