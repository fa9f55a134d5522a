"""What voids a row: a compilation in the timed window, a wrong score, an error. All on a real engine."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.api import ScoreRequest, ScoreResult
from onepass.bench.ceilings import Ceilings
from onepass.bench.offline.cases import BASE_CACHE_BYTES, Case, Way
from onepass.bench.offline.counters import counting_compiles
from onepass.bench.offline.measure import Measurement, Timing, measure, requests_in
from onepass.bench.offline.reference import Reference, SerialSample
from onepass.bench.offline.row import row_of, serial_row
from onepass.bench.offline.run import cache_bytes
from onepass.bench.roofline import Work, needed
from onepass.bench.row import Row, Setting
from onepass.bench.workloads import Shape, TokenRequest, Workload, make_workload
from onepass.engine.backends import CPU_PAGE
from onepass.engine.cost_model import CostModel
from onepass.engine.kernels import without_isolation
from onepass.evidence.tolerance import BETWEEN_MODES
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer

LoadedModel = tuple[Model, Weights]
EXTEND = Way.named("extend")
CONFIG = replace(EXTEND.config, keep_programs=False, max_batch_tokens=256, cache_bytes=1 << 24)
SETTING = Setting("float32", Ceilings("float32", 1e11, 1e10, 1, 1), BETWEEN_MODES["float32"], among_labels=True)


@pytest.fixture(scope="module")
def reference(loaded: LoadedModel, workload: Workload) -> SerialSample:
    made = Reference.open(*loaded)
    made.among_labels = True
    sampled = made.sample(workload, 4)
    made.close()
    return sampled


@pytest.fixture(scope="module")
def extend(loaded: LoadedModel) -> Iterator[Scorer]:
    """Compiling is what these tests cost, so they share what is compiled; the one about compilations has its own."""
    with Scorer(*loaded, CONFIG) as scorer:
        yield scorer


def work_of(loaded: LoadedModel, workload: Workload) -> Work:
    return needed(CostModel(loaded[0].config, 4), workload)


def run(loaded: LoadedModel, workload: Workload, reference: SerialSample, scorer: Scorer, timing: Timing) -> Row:
    timed = measure(scorer, requests_in(workload, "extend"), timing, cached=False)
    return row_of(Case(EXTEND, None), workload, timed, reference, work_of(loaded, workload), SETTING)


def test_a_sound_row_has_every_figure(
    extend: Scorer, loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    row = run(loaded, workload, reference, extend, Timing())
    assert row.void == []
    assert (row.repeats, row.compilations, row.backend_compilations, row.checked_items) == (10, 0, 0, 4)
    assert row.items_per_second == pytest.approx(8e3 / row.request_ms)
    assert row.latency_ms["min"] <= row.latency_ms["p50"] <= row.latency_ms["p95"] <= row.latency_ms["p99"]
    assert row.request_ms == pytest.approx(np.median(row.times_ms), rel=1e-3)
    assert row.speedup_over_serial == pytest.approx(row.items_per_second * reference.seconds_per_item)
    assert row.max_difference is not None
    assert 0 < row.max_difference < 1e-5
    assert 0 < row.reached["fraction"] < 1
    assert row.padding_ratio is not None
    assert row.padding_ratio >= 1
    assert row.peak_memory_bytes > 50_000_000
    assert row.split_ms.keys() == {"encode", "device", "host"}
    assert row.ran_as == "extend"


def test_a_compilation_in_the_timed_window_voids_the_row(
    loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    """As if a request needed a program that is not among those compiled before."""
    with Scorer(*loaded, CONFIG) as scorer:
        scorer.compile = lambda progress=None: []  # type: ignore[method-assign]
        row = run(loaded, workload, reference, scorer, Timing(repeats=2, warm_up=0))
    assert row.compilations == 2  # the step, and the pass over the vocabulary
    assert row.backend_compilations >= 2
    (why,) = row.void
    assert why.startswith("compiled in the timed window: 2 programs of the engine")


def test_a_compilation_that_the_engine_does_not_know_of_is_seen_too() -> None:
    def compile_something(size: int) -> None:
        jax.block_until_ready(jax.jit(lambda x: x * 3 + size)(jnp.zeros(size)))

    compile_something(17)
    with counting_compiles() as inside:
        compile_something(18)
    assert inside.count >= 1
    before = inside.count
    compile_something(19)
    assert inside.count == before


def test_a_wrong_score_voids_the_row(loaded: LoadedModel, workload: Workload, reference: SerialSample) -> None:
    """Items see one another: the engine is fast and wrong."""
    with Scorer(*loaded, CONFIG, without_isolation(CPU_PAGE)) as scorer:
        row = run(loaded, workload, reference, scorer, Timing(repeats=2))
    assert row.items_per_second is not None
    (why,) = row.void
    assert why.startswith("scores differ from serial by ")
    assert "allowed are 1e-05" in why


def test_scores_that_are_no_numbers_void_the_row(
    extend: Scorer, loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    unknown = replace(reference, scores=np.full_like(reference.scores, np.nan))
    row = run(loaded, workload, unknown, extend, Timing(repeats=2))
    assert row.void
    assert row.max_difference is None


def test_an_error_voids_the_row(loaded: LoadedModel, workload: Workload, reference: SerialSample) -> None:
    with Scorer(*loaded, CONFIG) as scorer:
        scorer.close()
        row = run(loaded, workload, reference, scorer, Timing(repeats=2))
    assert row.items_per_second is None
    (why,) = row.void
    assert why.startswith("error: OnepassError: the scorer is closed")


def test_a_row_that_compared_nothing_is_void(
    extend: Scorer, loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    nothing = SerialSample([], [], Measurement(), np.zeros((0, 0)))
    row = run(loaded, workload, nothing, extend, Timing(repeats=2))
    assert row.void == ["no score was compared with the serial reference"]


def test_every_timed_call_computes_its_query_unless_cached(extend: Scorer, workload: Workload) -> None:
    for cached in (False, True):
        timed = measure(extend, requests_in(workload, "extend"), Timing(3, 1), cached)
        found = {results[0].usage.cached_tokens for results in timed.results}
        assert found == ({40} if cached else {0})


def test_a_context_that_was_to_be_kept_and_was_computed_voids_the_row(
    extend: Scorer, loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    kept = replace(workload, cached=True)
    for cached in (True, False):
        timed = measure(extend, requests_in(kept, "extend"), Timing(2, 1), cached)
        row = row_of(Case(EXTEND, None), kept, timed, reference, work_of(loaded, kept), SETTING)
        assert row.void == ([] if cached else ["2 of 2 calls computed a context that was to be kept"])


def test_a_workload_whose_contexts_are_kept_has_room_for_all_of_them(loaded: LoadedModel) -> None:
    """16 contexts of 2,000 tokens did not fit what a scorer has otherwise, and were computed again and again."""
    query = (1,) * (BASE_CACHE_BYTES // loaded[0].config.kv_bytes_per_token(4))
    workload = Workload("kept", (TokenRequest(ScoreRequest(), query, (), ()),) * 3)
    needed_bytes = 3 * len(query) * loaded[0].config.kv_bytes_per_token(4)
    assert cache_bytes(workload, loaded[0]) == BASE_CACHE_BYTES
    assert cache_bytes(replace(workload, cached=True), loaded[0]) >= needed_bytes


def test_the_serial_row_says_that_it_is_a_sample(
    loaded: LoadedModel, workload: Workload, reference: SerialSample
) -> None:
    row = serial_row(Case(Way.named("serial"), None), workload, reference, work_of(loaded, workload), SETTING)
    assert row.void == []
    assert (row.sampled_items, row.speedup_over_serial) == (4, 1.0)
    assert row.items_per_second == pytest.approx(1 / reference.seconds_per_item)
    assert row.notes[0].startswith("4 of 8 items timed")
    assert row.notes[1] == "only 4 timed calls; a figure to keep needs 10"


def test_the_contract_needs_the_arithmetic_that_was_published() -> None:
    """figures of others: 15.6 TFLOP for products and attention of Qwen3-0.6B; the read-out adds 0.16."""
    from onepass.bench.workloads import make_workload, shape_named
    from onepass.models.known import known_config

    config = known_config("qwen3-0.6b")
    cold = make_workload("contract", shape_named("contract"), config.vocab_size)
    found = needed(CostModel(config, 2), cold)
    head = 2.0 * config.hidden_size * config.vocab_size * 500
    assert (found.flops - head) / 1e12 == pytest.approx(15.6, abs=0.1)
    assert needed(CostModel(config, 2), replace(cold, cached=True)).flops < 0.9 * found.flops


def test_requests_in_flight_together_are_timed_by_the_clock_and_checked_each(loaded: LoadedModel) -> None:
    shape = Shape(12, 4, 2, 5)
    workload = make_workload("tiny", shape, loaded[0].config.vocab_size, in_flight=3).with_labels([5, 6, 7])
    assert len({one.query for one in workload.requests}) == 3
    made = Reference.open(*loaded)
    made.among_labels = True
    sampled = made.sample(workload, 12)
    made.close()
    with Scorer(*loaded, EXTEND.config) as scorer:
        timed = measure(scorer, requests_in(workload, "extend"), Timing(4, 1), False, together=True)
    row = row_of(Case(EXTEND, None), workload, timed, sampled, work_of(loaded, workload), SETTING)
    assert row.void == []
    assert any("kept in flight" in note for note in row.notes), "files of before are of rounds sent at once"
    assert (row.in_flight, row.num_items, row.checked_items) == (3, 12, 12)
    assert (len(timed.calls), len(timed.rounds), len(timed.results)) == (12, 4, 4)
    assert sum(timed.rounds) < sum(timed.calls), "together, not one after the other"
    assert row.request_ms == pytest.approx(1e3 * sum(timed.rounds) / 4), "no time between rounds is left out"


def test_a_request_in_flight_is_sent_again_as_soon_as_it_is_answered(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the round to end, and every call computes its own query."""
    workload = make_workload("tiny", Shape(12, 4, 2, 5), loaded[0].config.vocab_size, in_flight=3)
    requests = requests_in(workload.with_labels([5, 6, 7]), "extend")
    with Scorer(*loaded, EXTEND.config) as scorer:
        submit, others_are_done, sent = scorer.submit, threading.Event(), []

        def first_is_slow(request: ScoreRequest) -> "Future[ScoreResult]":
            sent.append(requests.index(request))
            if len(sent) == 9:
                others_are_done.set()
            future = submit(request)
            if len(sent) > 1:
                return future
            late: Future[ScoreResult] = Future()
            threading.Thread(target=lambda: (others_are_done.wait(20), late.set_result(future.result(20)))).start()
            return late

        monkeypatch.setattr(scorer, "submit", first_is_slow)
        timed = measure(scorer, requests, Timing(4, 0), False, together=True)
    assert timed.errors == []
    assert sorted(sent) == [0] * 4 + [1] * 4 + [2] * 4
    assert 0 not in sent[1:9], "the others went on without it"
    assert all(result.usage.cached_tokens == 0 for results in timed.results for result in results)
