"""A program's key is its bucket and nothing else: what a request may vary compiles nothing, by two counts.

One count is the engine's own, the other JAX's report of every backend compilation in the process, however small.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import pytest

from engine.tiny import ITEMS, QUERY, WAYS, Tiny, items_of, tokens
from onepass.engine.lowering import Program
from onepass.engine.warming import compile_for, warm_up_requests
from onepass.scorer import Scorer

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations(scorer: Scorer) -> Iterator[list[int]]:
    """Filled in at the end: [by the engine's count, by JAX's]."""
    events: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == COMPILED:
            events.append(event)

    before = scorer.engine.runner.compilations
    counts: list[int] = []
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    counts += [scorer.engine.runner.compilations - before, len(events)]


# All within the standard request's bucket: a query of 17 to 32 tokens, 8 items of 33 to 48 together, 1 to 4 labels.
VARIATIONS: dict[str, dict[str, Any]] = {
    "other tokens": {"query": tokens(20, 40), "items": items_of([len(item) for item in ITEMS], 40)},
    "another query length": {"query": tokens(29, 41)},
    "other item lengths": {"items": items_of([12, 1, 1, 16, 9, 0, 0, 3], 42)},
    "empty items first and last": {"items": [[], *items_of([10, 9, 8, 7, 3, 1], 44), []]},
    "other labels": {"label_token_ids": tokens(3, 45)},
    "one label": {"label_token_ids": [17]},
    "four labels": {"label_token_ids": [17, 18, 19, 20]},
    "labels of each item's own": {"label_token_ids": [[i + 1, i + 2][: 1 + i % 2] for i in range(8)]},
    "a delimiter": {"delimiter_token_id": 11},
    "softmax": {"apply_softmax": True},
    "softmax at a temperature": {"apply_softmax": True, "temperature": 0.7},
    "softmax without label mass": {"apply_softmax": True, "label_mass": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_request_may_vary_compiles_nothing(tiny: Tiny, way: str) -> None:
    mode, options = WAYS[way]
    scorer = tiny.scorer(**options)
    for _ in ("compiles", "finds its context cached"):
        tiny.run(way, QUERY, ITEMS)
    for name, fields in VARIATIONS.items():
        request = tiny.request(**{"query": QUERY, "items": ITEMS, "mode": mode, **fields})
        # A delimiter makes another context, whose beginning is cached; computing only its rest is another bucket.
        scorer.engine.contexts.clear()
        with compilations(scorer) as counts:
            result = scorer.score_many([request])[0]
        assert counts == [0, 0], name
        assert result.timings.compilations == 0


@pytest.mark.parametrize("way", ["packed/dense", "extend"])
@pytest.mark.parametrize("count", [3, 5, 7])
def test_how_many_items_there_are_compiles_nothing_within_a_bucket(tiny: Tiny, way: str, count: int) -> None:
    scorer = tiny.scorer(**WAYS[way][1])
    tiny.run(way, QUERY, ITEMS)
    with compilations(scorer) as counts:
        tiny.run(way, QUERY, items_of([34 // count + 1] * count, 43))
    assert counts == [0, 0]


def test_the_count_sees_a_compilation(tiny: Tiny) -> None:
    """The negative control: ten labels are another bucket, and both counts say so, and the result too."""
    scorer = tiny.scorer(mask="segment", dense_mask_tokens=7)  # options of its own: nothing is compiled in it yet
    scorer.score_many([tiny.request(QUERY, ITEMS, mode="serial")])
    with compilations(scorer) as counts:
        result = scorer.score_many([tiny.request(QUERY, ITEMS, mode="serial", label_token_ids=tokens(10, 46))])[0]
    assert counts[0] == result.timings.compilations == 1
    assert counts[1] >= 1


def test_how_many_requests_come_together_compiles_nothing_within_a_bucket(tiny: Tiny) -> None:
    """Four together have been seen, and so have two and one."""
    scorer = tiny.scorer()
    requests = [
        tiny.request(tokens(20, 60 + i), items_of([len(item) for item in ITEMS], 60 + i), mode="extend")
        for i in range(7)
    ]
    for count in (4, 2, 1):
        for _ in ("cold", "cached"):
            scorer.score_many(requests[:count])
        scorer.engine.contexts.clear()
        scorer.score_many(requests[:count])
    for count in range(1, 8):
        scorer.engine.contexts.clear()
        for _ in ("cold", "cached"):
            with compilations(scorer) as counts:
                scorer.score_many(requests[:count])
            assert counts == [0, 0], f"{count} requests"


def test_after_warm_up_requests_of_the_shape_compile_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the default mode, with background compilation on, cold and cached; and nothing goes on behind."""
    scorer = tiny.scorer(background_compile=True)
    compile_now = scorer.engine.runner._compile

    def slowly(program: Program) -> None:
        if threading.current_thread().name.startswith("onepass-compile"):
            time.sleep(0.5)
        compile_now(program)

    monkeypatch.setattr(scorer.engine.runner, "_compile", slowly)
    seen: list[tuple[str, int, int]] = []
    # The larger shape first: its programs could stand in for the smaller one's, which must be compiled all the same.
    scorer.warm_up([(30, 8, 6), (20, 8, 2)], lambda *progress: seen.append(progress))
    assert [one for one in seen if one[0] == "warm-up"] == [("warm-up", 1, 2), ("warm-up", 2, 2)]
    assert seen[0][:2] == ("compile", 1)
    assert len(scorer.engine.contexts) == 0
    for query, lengths in ((30, [6] * 8), (28, [5] * 7), (20, [2] * 8), (19, [1, 2, 2, 2, 1, 2])):
        request = tiny.request(tokens(query, 47), items_of(lengths, 47))
        for _ in ("cold", "cached"):
            with compilations(scorer) as counts:
                scorer.score_many([request])
                scorer.engine.runner.settle()
            assert counts == [0, 0]


@pytest.mark.parametrize("mode", ["auto", "packed", "chunked", "extend", "serial"])
@pytest.mark.parametrize("mask", ["dense", "segment"])
def test_what_requests_need_is_known_before_they_run(mode: str, mask: str, tiny: Tiny) -> None:
    config = replace(tiny.scorer().engine.config, mode=mode, mask=mask, chunk_size=8, background_compile=False)
    with Scorer(tiny.model, tiny.weights, config) as scorer:
        requests = warm_up_requests(scorer.engines[0], [(30, 8, 6), (20, 8, 2)])
        seen: list[tuple[str, int, int]] = []
        compile_for(scorer.engines[0], requests, lambda *told: seen.append(told))
        count = scorer.engine.runner.compilations
        assert count > 0
        assert seen == [("compile", done, count) for done in range(1, count + 1)]
        run, ran = scorer.engine.runner.run, set()

        def noted(program: Program, *rest: Any) -> Any:
            ran.add(program)
            return run(program, *rest)

        scorer.engine.runner.run = noted  # type: ignore[method-assign]
        for request in requests:
            for _ in ("cold", "cached"):
                result = scorer.score_many([request])[0]
                assert len(result.scores) == 8
        assert scorer.engine.runner.compilations == count
        assert ran == set(scorer.engine.runner._programs), "and nothing else is compiled"


def test_what_is_not_known_before_is_compiled_when_it_runs(tiny: Tiny) -> None:
    """How many rows of a request share a step, and how a long context is computed."""
    config = replace(tiny.scorer().engine.config, background_compile=False)
    for options in ({"mode": "chunked", "chunk_size": 3}, {"mode": "extend", "max_batch_tokens": 16}):
        with Scorer(tiny.model, tiny.weights, replace(config, **options)) as scorer:  # type: ignore[arg-type]
            scorer.warm_up([(30, 8, 6)])
            (request,) = warm_up_requests(scorer.engines[0], [(30, 8, 6)])
            for _ in ("cold", "cached"):
                with compilations(scorer) as counts:
                    scorer.score_many([request])
                assert counts == [0, 0]
