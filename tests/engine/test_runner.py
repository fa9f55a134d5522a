"""Programs and the pool: what is compiled once, what a step leaves in place, what padding to a rung may not change."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, items_of, tokens
from onepass.attention.base import StepShape
from onepass.engine.kernels import without_isolation
from onepass.engine.packing import Packed
from onepass.engine.programs.builder import COPIES, Program, ProgramBuilder
from onepass.engine.programs.compiled import Made
from onepass.engine.programs.ladder import Ladder
from onepass.engine.runner import Runner, StepOutput
from onepass.models.layer_ops import XlaLayerOps
from onepass.scorer import Scorer


def builder_of(tiny: Tiny, **options: Any) -> ProgramBuilder:
    return tiny.scorer(**options).engines[0].runner.builder


def temporaries(builder: ProgramBuilder, program: Program, pages: int) -> int:
    return replace(builder, pages=pages).lower(program).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("options", [{}, {"attention": "xla"}], ids=["own", "xla"])
@pytest.mark.parametrize("kind", ["step", "copy"])
def test_a_step_does_not_copy_the_pool(tiny: Tiny, kind: str, options: dict[str, Any]) -> None:
    """Its temporaries do not grow when the pool is ten times as large, and the pool is given away to be written."""
    builder = builder_of(tiny, **options)
    program = Program(kind, 64 if kind == "step" else 0)
    assert program in builder.programs()
    small, large = (temporaries(builder, program, pages) for pages in (200, 2000))
    pool = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(replace(builder, pages=2000).pool()))
    assert large - small < 0.01 * pool
    donated = replace(builder, pages=2000).lower(program).compile().memory_analysis().alias_size_in_bytes
    assert donated >= pool


class Outspoken(XlaLayerOps):
    """Operations that tell the compiler something of programs of up to 64 tokens that it does not know."""

    def compiler_options(self, tokens: int) -> dict[str, str]:
        return {"xla_of_no_such_name": "1"} if tokens <= 64 else {}


def test_the_compiler_is_told_what_a_layer_s_operations_want(tiny: Tiny) -> None:
    builder = builder_of(tiny, attention="xla")
    builder = replace(builder, network=replace(builder.network, ops=Outspoken()))
    builder.lower(Program("labels", 256)).compile()
    with pytest.raises(Exception, match="xla_of_no_such_name"):
        builder.lower(Program("labels", 64)).compile()


def test_the_programs_are_a_rung_each_and_one_for_copies(tiny: Tiny) -> None:
    """The one that can serve everything comes first."""
    builder = builder_of(tiny)
    names = [str(program) for program in builder.programs()]
    assert names == ["step-256", "vocabulary-256-64", "labels-256", "step-64", "vocabulary-64-64", "labels-64", "copy"]
    gpu, largest = replace(builder, many_vocabulary_sizes=True), builder.ladder.largest
    sizes = gpu.vocabulary_sizes(largest)
    assert len(sizes) > 1
    assert sizes == sorted(sizes)
    assert sizes[-1] == largest.readouts
    assert [p.size for p in gpu.programs() if p.kind == "vocabulary" and p.tokens == 256] == sizes


@pytest.mark.parametrize("rung", [0, 1])
def test_the_rung_does_not_change_scores(tiny: Tiny, rung: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard request in each rung: what is padding there is computed or not, and seen by nobody."""
    scorer = tiny.scorer()
    shape = scorer.engine.ladder.shapes[rung]
    monkeypatch.setattr(Ladder, "rung", lambda self, *needs: shape)
    for mode in ("packed", "extend"):
        scorer.engine.contexts.clear()
        result = scorer.score_many([tiny.request(QUERY, ITEMS, mode=mode)])[0]
        assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


@pytest.mark.parametrize("mode", ["packed", "extend"])
def test_a_small_pass_over_the_vocabulary_reads_the_same(tiny: Tiny, mode: str) -> None:
    """As on a GPU: the log-sum-exps of few read-outs are not computed for all."""
    with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as scorer:
        runner = scorer.engines[0].runner
        runner.builder = replace(runner.builder, many_vocabulary_sizes=True)
        for items in (ITEMS, items_of([2] * 30, 53)):
            result = scorer.score_many([tiny.request(QUERY, items, mode=mode)])[0]
            assert difference(result.scores, tiny.serial(QUERY, items)) <= FLOAT32
        ran = {program.size for program in runner._compiled if program.kind == "vocabulary"}
        sizes = runner.builder.vocabulary_sizes(scorer.engine.ladder.shapes[0])
    assert ran == {min(size for size in sizes if size >= count) for count in (8, 30)}
    assert max(ran) > min(ran)


def test_more_pages_are_copied_than_one_run_of_the_program_takes(tiny: Tiny) -> None:
    """Many contexts at once that begin like a kept one, in the middle of its page."""
    scorer = tiny.scorer(max_batch_tokens=512)
    scorer.engine.contexts.clear()
    begin = tokens(40, 54)
    scorer.prefill(begin)
    queries = [[*begin, *tokens(3, 55 + n)] for n in range(COPIES + 3)]
    results = scorer.score_many([tiny.request(query, ITEMS[:3]) for query in queries])
    for query, result in zip(queries, results, strict=True):
        assert result.usage.cached_tokens == 40
        assert difference(result.scores, tiny.serial(query, ITEMS[:3])) <= FLOAT32


def test_programs_write_what_they_read_out_to_the_host_where_they_are_told_to(tiny: Tiny) -> None:
    """As on a GPU; the CPU knows that memory, too."""
    with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as scorer:
        runner = scorer.engines[0].runner
        run, kinds = runner.run, []

        def watched_run(*given: Any) -> StepOutput:
            output = run(*given)
            kinds.append([read.sharding.memory_kind for read in (*output.logits, output.vocabulary)])  # type: ignore[union-attr]
            return output

        runner.run = watched_run  # type: ignore[method-assign]
        assert not runner.writes_to_host, "on the CPU there is nothing to gain"
        runner.builder = replace(runner.builder, writes_to_host=True)
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
        other.engines[0].runner.share_programs(one.engines[0].runner)
        request = tiny.request(QUERY, ITEMS, mode="packed")
        wanted = one.score_many([request])[0]
        got = other.score_many([request])[0]
        assert got.scores == wanted.scores
        assert one.engine.runner.compilations > 0
        assert other.engine.runner.compilations == 0
        large = tiny.request(QUERY, ITEMS * 4, mode="chunked")
        other.score_many([large])
        assert other.engine.runner.compilations > 0
        before = one.engine.runner.compilations
        one.score_many([large])
        assert one.engine.runner.compilations == before


def test_programs_are_not_shared_with_other_weights_or_kernels_or_late(tiny: Tiny) -> None:
    config = tiny.scorer().engine.config
    others = jax.tree.map(lambda array: array + 0, tiny.weights)
    with (
        Scorer(tiny.model, tiny.weights, config) as one,
        Scorer(tiny.model, others, config) as elsewhere,
        Scorer(tiny.model, tiny.weights, config, without_isolation(64)) as leaking,
    ):
        for scorer in (elsewhere, leaking):
            with pytest.raises(ValueError, match="same weights with the same kernels"):
                scorer.engines[0].runner.share_programs(one.engines[0].runner)
        one.score_many([tiny.request(QUERY, ITEMS, mode="packed")])
        with pytest.raises(ValueError, match="before the first is compiled; there are 2"):
            one.engines[0].runner.share_programs(one.engines[0].runner)


class Kept:
    """A store of one program, which loads and does not run."""

    def __init__(self) -> None:
        self.discarded: list[Program] = []
        self.saved: list[Program] = []

    def load(self, program: Program) -> Any | None:
        def broken(*_: object) -> None:
            raise RuntimeError("made for another machine")

        return broken if program.kind == "step" and program not in self.discarded else None

    def compile_ahead(self, programs: Sequence[Program]) -> list[Program]:
        return []

    def stop_compiling(self) -> None:
        pass

    def compile(self, program: Program, lower: Callable[[], jax.stages.Lowered]) -> Made:
        self.saved.append(program)
        return Made(lower().compile(), 8, read_back=False)

    def bytes(self, program: Program) -> int:
        return 7

    def discard(self, program: Program) -> None:
        self.discarded.append(program)


def test_a_kept_program_that_does_not_run_is_thrown_away_and_compiled_once(tiny: Tiny) -> None:
    with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as scorer:
        store, runner = Kept(), scorer.engines[0].runner
        runner._store = store
        for _ in range(2):
            result = scorer.score_many([tiny.request(QUERY, ITEMS, mode="chunked")])[0]
            assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
        assert [str(program) for program in store.discarded] == ["step-64"]
        assert sorted(map(str, store.saved)) == ["step-64", "vocabulary-64-64"]
        assert runner.compilations == 2


def test_a_lost_pool_is_noticed_and_replaced(tiny: Tiny) -> None:
    runner = Runner(replace(builder_of(tiny), pages=3))
    assert not runner.pool_lost(), "there is none yet"
    pool = runner.new_pool()
    assert not runner.pool_lost()
    pool.k.delete()
    assert runner.pool_lost()
    fresh = runner.new_pool()
    assert not runner.pool_lost()
    assert not np.asarray(fresh.k).any()


def test_what_a_step_needs_is_known_before_it_runs(tiny: Tiny) -> None:
    """Which is how several processes compile in step."""
    runner, shape = tiny.scorer().engines[0].runner, tiny.scorer().engine.ladder.shapes[0]
    none, some = np.zeros(0, np.int32), np.ones(3, np.int32)

    def needed(packed: Packed, copies: list[tuple[int, int]], whole: bool) -> list[str]:
        return [str(program) for program in runner.needed(shape, packed, copies, whole)]

    assert needed(Packed(none, 5, 1, [], none, none), [], False) == ["step-64"]
    every = needed(Packed(none, 5, 1, [], some, some), [(1, 2)], True)
    assert sorted(every) == ["copy", "labels-64", "step-64", "vocabulary-64-64"]
    assert isinstance(shape, StepShape)
