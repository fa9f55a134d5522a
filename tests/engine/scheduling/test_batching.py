"""Steps are filled from the queue: any requests side by side, within every limit, and nobody is left out for ever."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawn_requests import requests
from engine.fake_device import LARGE, Broken, FakeEngine, is_right
from onepass.api import ScoreRequest
from onepass.engine.job import Job
from onepass.engine.scheduling import scheduler
from onepass.errors import ContextNotFound, DoesNotFit

LONG = list(range(200, 290))


def request(query: int | list[int] | None, lengths: list[int], **fields: Any) -> ScoreRequest:
    ids = list(range(query)) if isinstance(query, int) else query
    items = [[40 * place + n for n in range(length)] for place, length in enumerate(lengths)]
    return ScoreRequest(**{"query": ids, "items": items, "label_token_ids": [1, 2], **fields})


def tokens_of(engine: FakeEngine) -> list[int]:
    """Real tokens of each step."""
    return [step.num_tokens for _, step in engine.device.steps]


def run(*asked: ScoreRequest, **options: Any) -> FakeEngine:
    engine = FakeEngine(**options)
    jobs = [engine.submit(one) for one in asked]
    engine.drive()
    assert all(map(is_right, jobs))
    assert engine.all_pages_are_free()
    return engine


def test_requests_of_any_kind_share_a_step() -> None:
    engine = run(
        request(5, [3, 2], mode="packed"),
        request([90, 91], [1], mode="chunked"),
        request([80], [0, 1], continuations=[[7, 8]]),
        request(4, [2], item_first=True),
    )
    assert len(engine.device.steps) == 1


def test_a_step_is_filled_to_its_last_token() -> None:
    engine = run(request(5, [3] * 60))
    assert len(engine.device.steps) == -(-185 // 40) + 1, "items are not divided: a step may end two tokens early"


@pytest.mark.parametrize(
    ("least", "tokens"), [(4, [8, 16, 8]), (scheduler.LEAST_EVEN_TOKENS, [8, 24])], ids=["even", "small"]
)
def test_behind_another_step_half_of_what_is_there_is_taken(
    least: int, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 tokens on the device and 24 that wait: 16, and then what is left; but a small step is not made smaller."""
    monkeypatch.setattr(scheduler, "LEAST_EVEN_TOKENS", least)
    engine = FakeEngine(in_flight=2)
    jobs = [engine.submit(request([100 + n], [3])) for n in range(2)]
    engine.turn()
    jobs += [engine.submit(request([200 + n], [3])) for n in range(6)]
    engine.drive()
    assert all(map(is_right, jobs))
    assert tokens_of(engine) == tokens


def test_serial_has_one_sequence_a_step() -> None:
    engine = run(request(5, [3, 0, 2], mode="serial"), request([70, 71], [1]))
    assert sorted(tokens_of(engine)) == [3, 5, 7, 8]


def test_extend_computes_its_context_in_steps_of_its_own() -> None:
    assert tokens_of(run(request(5, [3, 2], mode="extend"))) == [5, 5]
    assert tokens_of(run(request(5, [3, 2], mode="packed"))) == [10]


def test_extend_batch_size_bounds_the_items_of_a_step() -> None:
    engine = run(request(5, [1] * 7, mode="extend"), options={"extend_batch_size": 3})
    assert tokens_of(engine) == [5, 3, 3, 1]


def test_the_rung_is_as_small_as_the_step_allows() -> None:
    engine = run(request(5, [3, 2]))
    assert engine.device.steps[0][0].tokens == 16
    engine = run(request(5, [1] * 8))
    assert engine.device.steps[0][0].tokens == 40, "13 tokens, but more read-outs than the small one has"


def test_more_read_outs_than_a_step_has_take_several() -> None:
    engine = run(request(5, [1] * 35))
    assert [step.num_readouts for _, step in engine.device.steps] == [10, 10, 10, 5]


def test_a_wide_label_set_takes_no_step_more() -> None:
    engine = run(request(5, [1, 2], label_token_ids=list(range(500))))
    ((_, step),) = engine.device.steps
    assert len(step.labels) == 1000 - 8, "beyond those that the step itself reads"


def test_thousands_of_empty_items_are_one_read_out() -> None:
    engine = run(request(5, [0] * 3000))
    assert [(step.num_tokens, step.num_readouts) for _, step in engine.device.steps] == [(5, 1)]


def test_an_item_that_fills_a_step_waits_for_one_of_its_own_beside_an_empty_one() -> None:
    """The empty one needs a token more, which the full step has not."""
    for lengths in ([40, 0], [0, 40], [40, 0, 40, 0]):
        engine = run(request(9, lengths, mode="extend"))
        assert max(tokens_of(engine)) == 40


def test_a_family_that_reads_all_that_a_step_can_goes_beside_an_empty_item() -> None:
    texts = [list(range(500, 510))]
    run(request(9, [3, 0, 3], continuations=texts, mode="extend"))
    run(request(9, [3, 0, 3], continuations=texts, mode="packed"))


def test_a_sequence_that_needs_every_entry_of_the_table_still_runs() -> None:
    """Beside many that want a page each."""
    many = [request([300 + n], [1]) for n in range(40)]
    engine = run(request(list(range(150)), [1], mode="extend"), *many, pages=90)
    for shape, step in engine.device.steps:
        assert step.num_tokens <= shape.tokens
    assert LARGE.entries < 150 // 8 + 40


def test_others_run_between_the_parts_of_a_long_context() -> None:
    engine = FakeEngine()
    long = engine.submit(request(LONG, [2], mode="extend"))
    engine.turn()
    assert (long.sequences[0].done, long.done) == (40, False)
    small = engine.submit(request(3, [2]))
    engine.turn()
    assert is_right(small)
    assert not long.done
    engine.drive()
    assert is_right(long)


def test_a_long_context_that_is_cancelled_halfway_gives_its_pages_back() -> None:
    engine = FakeEngine(in_flight=2)
    long = engine.submit(request(LONG, [2], mode="extend"))
    engine.turn()
    assert long.sequences[0].done == 40
    assert long.future.cancel()
    engine.drive()
    assert engine.pool.free == engine.pages - 1
    assert engine.contexts.find(tuple(LONG)) is None
    assert is_right(run_one(engine, request(LONG, [2])))


def run_one(engine: FakeEngine, one: ScoreRequest) -> Job:
    job = engine.submit(one)
    engine.drive()
    return job


def test_who_waits_for_a_context_that_is_cancelled_computes_it() -> None:
    engine = FakeEngine()
    first, second = (engine.submit(request(LONG, [2], mode="extend")) for _ in range(2))
    engine.turn()
    assert first.future.cancel()
    engine.drive()
    assert is_right(second)


def test_requests_with_one_context_compute_it_once() -> None:
    engine = run(*[request(LONG, [n]) for n in range(1, 6)])
    assert sum(tokens_of(engine)) == 90 + 15


def test_a_context_that_begins_like_a_kept_one_copies_the_page_where_they_part() -> None:
    engine = FakeEngine()
    for query in (LONG[:43], LONG[:70], [*LONG[:20], 1, 2, 3], LONG[:30]):
        assert is_right(run_one(engine, request(query, [2, 0])))
    assert engine.device.copied == 2, "the last is the beginning of another, page by page"
    assert sum(tokens_of(engine)) == 43 + 27 + 3 + 4 * 2 + 1
    assert engine.all_pages_are_free()


def test_eviction_makes_room_while_two_steps_are_in_flight() -> None:
    """Contexts fill the pool; every new one needs pages of an old one."""
    engine = FakeEngine(in_flight=2, pages=20, budget_pages=18)
    jobs = [engine.submit(request([n, *range(50 + n % 7)], [2, 0, 1])) for n in range(30)]
    engine.drive()
    assert all(map(is_right, jobs))
    assert engine.contexts.evictions > 10
    assert engine.all_pages_are_free()


def test_a_pinned_context_is_not_evicted_and_who_finds_no_room_is_told() -> None:
    engine = FakeEngine(pages=14, budget_pages=12)
    engine.prefill(LONG)
    engine.drive()
    handle = engine.contexts.open(tuple(LONG), 60, pin=True)
    refused = engine.submit(request(30, [2]))
    fits = engine.submit(request(5, [2]))
    engine.drive()
    with pytest.raises(DoesNotFit, match=r"found no room among .*13 pages"):
        refused.future.result(0)
    assert is_right(fits)
    assert is_right(run_one(engine, request(None, [2], context=handle.id)))
    engine.contexts.release(handle.id)
    assert is_right(run_one(engine, request(30, [2])))
    assert engine.all_pages_are_free()


def test_a_request_by_handle_keeps_its_pages_through_expiry_and_eviction() -> None:
    engine = FakeEngine()
    engine.prefill(LONG)
    engine.drive()
    handle = engine.contexts.open(tuple(LONG), 60, pin=False)
    job = engine.submit(request(None, [2, 0], context=handle.id))
    engine.now = 61.0
    engine.contexts.clear()
    engine.drive()
    assert is_right(job)
    assert sum(tokens_of(engine)) == 90 + 3
    assert engine.all_pages_are_free()


@pytest.mark.parametrize("how", ["launch", "device", "launch pool", "device pool"])
def test_a_failing_step_fails_its_own_requests_only(how: str) -> None:
    """Where the pool is lost with it, the others begin again, also one that has a kept context by handle, one halfway
    through its context, and one with long items after a context that is done."""
    broken: set[int] = set()
    engine = FakeEngine(fails=lambda n: how if n in broken else "")
    engine.prefill(QUERY_KEPT)
    engine.drive()
    handle = engine.contexts.open(tuple(QUERY_KEPT), 60, pin=True)
    long = engine.submit(request(LONG, [2, 50, 60], mode="extend"))
    engine.turn()
    assert 0 < long.sequences[0].done < 90
    broken.add(len(engine.device.steps))
    alone = engine.submit(request(7, [3], mode="serial"))
    by_handle = engine.submit(request(None, [2, 0, 45], context=handle.id))
    engine.drive()  # the smallest goes first: the serial one, with nothing beside it
    with pytest.raises(Broken):
        alone.future.result(0)
    assert is_right(long)
    assert is_right(by_handle)
    assert is_right(run_one(engine, request(7, [3], mode="serial")))
    assert engine.all_pages_are_free()


QUERY_KEPT = list(range(600, 630))


@pytest.mark.parametrize("turns", range(1, 8))
def test_what_is_told_as_it_is_read_is_told_once_even_when_the_pool_is_lost(turns: int) -> None:
    told: list[tuple[int, int]] = []
    broken: set[int] = set()
    engine = FakeEngine(fails=lambda n: "device pool" if n in broken else "")
    texts = [list(range(500, 530))]
    job = engine.submit(
        request(5, [0, 3, 1], continuations=texts), on_items=lambda first, last, read: told.append((first, last))
    )
    for _ in range(turns):
        engine.turn()
    broken.add(len(engine.device.steps))
    other = engine.submit(request(2, [1], mode="serial"))
    assert not job.done
    engine.drive()
    with pytest.raises(Broken):
        other.future.result(0)
    assert is_right(job)
    assert sorted(n for first, last in told for n in range(first, last)) == [0, 1, 2]


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[str, Any]]:
    return draw(
        st.lists(
            st.one_of(
                requests().map(lambda one: ("submit", one)),
                requests().map(lambda one: ("submit", one)),
                st.sampled_from([17, 45, 70]).map(lambda n: ("prefill", n)),
                st.integers(0, 20).map(lambda n: ("by handle", n)),
                st.integers(0, 20).map(lambda n: ("cancel", n)),
                st.integers(0, 20).map(lambda n: ("release", n)),
                st.sampled_from([1, 100]).map(lambda n: ("pass time", n)),
                st.integers(1, 4).map(lambda n: ("turn", n)),
                st.just(("clear", 0)),
            ),
            max_size=25,
        )
    )


FAILURES = st.dictionaries(
    st.integers(0, 30), st.sampled_from(["launch", "device", "launch pool", "device pool"]), max_size=3
)


@settings(max_examples=80, deadline=None)
@given(moves(), FAILURES, st.integers(1, 2), st.sampled_from([(30, 10), (60, 20), (60, 0)]))
def test_whatever_happens_answers_are_right_and_pages_come_back(
    happens: list[tuple[str, Any]], failures: dict[int, str], in_flight: int, sizes: tuple[int, int]
) -> None:
    """Requests, cancels, failing steps, lost pools, handles that are released, expire or are evicted."""
    engine = FakeEngine(in_flight=in_flight, pages=sizes[0], budget_pages=sizes[1], fails=lambda n: failures.get(n, ""))
    jobs: list[Job] = []
    handles: list[str] = []
    act: dict[str, Callable[[Any], None]] = {
        "submit": lambda one: jobs.append(engine.submit(one)),
        "cancel": lambda n: jobs[n % len(jobs)].future.cancel() and None if jobs else None,
        "pass time": lambda n: setattr(engine, "now", engine.now + n),
        "turn": lambda n: [engine.turn() for _ in range(n)] and None,
        "clear": lambda _: engine.contexts.clear(),
    }
    for kind, what in happens:
        if kind == "prefill":
            engine.prefill(range(100, 100 + what))
            engine.drive()
            if engine.contexts.find(tuple(range(100, 100 + what))) is not None:
                handles.append(engine.contexts.open(tuple(range(100, 100 + what)), 60, pin=what == 45).id)
        elif kind in ("by handle", "release") and handles:
            name = handles[what % len(handles)]
            if name not in engine.contexts._named:
                continue
            with suppress(ContextNotFound):  # it may have expired, too
                if kind == "release":
                    engine.contexts.release(name)
                else:
                    jobs.append(engine.submit(request(None, [what, 0, 2], context=name)))
        elif kind in act:
            act[kind](what)
    engine.drive()
    for job in jobs:
        error = None if job.future.cancelled() else job.future.exception(0)
        assert isinstance(error, Broken | DoesNotFit | None)
        assert error is not None or job.future.cancelled() or is_right(job)
    if not failures and sizes[0] == 60:
        assert not any(not job.future.cancelled() and job.future.exception(0) for job in jobs)
    assert engine.all_pages_are_free()
