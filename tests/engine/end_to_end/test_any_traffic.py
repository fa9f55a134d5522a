"""After `compile` nothing is ever compiled, whatever comes: thousands of requests that differ in everything."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import batched
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from engine.end_to_end.compilations import compilations
from engine.tiny import FLOAT32, ITEMS, QUERY, Ids, Tiny, difference, items_of, tokens
from onepass.api import MODES, ScoreRequest, ScoreResult
from onepass.engine.programs.ladder import MAX_RUNGS
from onepass.scorer import Scorer

REQUESTS, THREADS, TOGETHER, SAMPLE = 3000, 4, 25, 100
VOCABULARY = 5000


def widened(tiny: Tiny) -> Tiny:
    """The tiny model with a vocabulary of 5,000, so that there can be as many labels, and as many positions."""
    copies = -(-VOCABULARY // tiny.model.config.vocab_size)
    noise = 1 + 0.1 * np.random.default_rng(0).standard_normal((VOCABULARY, 1)).astype(np.float32)

    def wide(leaf: Any) -> Any:
        return jnp.asarray(np.tile(np.asarray(leaf), (copies, 1))[:VOCABULARY] * noise)

    config = replace(tiny.model.config, vocab_size=VOCABULARY, max_position=4096)
    weights = replace(tiny.weights, embed=wide(tiny.weights.embed), head=wide(tiny.weights.unembed))
    return Tiny(replace(tiny.model, config=config), weights, _labels=tiny.labels)


@pytest.fixture(scope="module")
def wide(tiny: Tiny) -> Iterator[Tiny]:
    wide = widened(tiny)
    yield wide
    wide.close()


@pytest.fixture(scope="module")
def scorer(wide: Tiny) -> Scorer:
    scorer = wide.scorer()
    scorer.compile()
    return scorer


def drawn(rng: np.random.Generator, handles: list[str]) -> ScoreRequest:
    """Mostly small, some large in one way; a step has 256 tokens, 64 read-outs and 128 pairs."""
    kind = rng.integers(0, 40)
    query = rng.choice([1, 2, 15, 40, 70, 130]) + rng.integers(0, 20) if kind else rng.integers(256, 700)
    lengths = rng.integers(0, 12, rng.integers(0, 7))
    fields: dict[str, Any] = {}
    if kind == 1:
        lengths = np.array([*lengths, rng.integers(250, 300)])  # about a step, and more
    elif kind == 2:
        lengths = np.zeros(rng.integers(100, 3000), int)
    elif kind == 3:
        lengths = rng.integers(1, 4, rng.integers(60, 200))  # more read-outs than a step has
    elif kind == 4:
        fields["continuations"] = [_ids(rng, rng.integers(60, 280))]
        lengths = lengths[:2]
    elif kind < 12:
        fields["continuations"] = [_ids(rng, n) for n in rng.integers(1, 9, rng.integers(1, 4))]
    labels = rng.choice([1, 2, 3, 5, 20]) if kind != 13 else rng.integers(200, VOCABULARY + 1)
    if kind == 13:
        lengths = lengths[:3]
    softmax = bool(rng.integers(0, 2))
    context = handles[rng.integers(0, len(handles))] if kind in (14, 15, 16) else None
    return ScoreRequest(
        query=None if context is not None else _ids(rng, query, seeds=40),
        context=context,
        items=[_ids(rng, n) for n in lengths],
        label_token_ids=rng.permutation(VOCABULARY)[:labels].tolist(),
        mode=MODES[rng.choice(5, p=[0.4, 0.06, 0.18, 0.18, 0.18])] if len(lengths) < 20 else "auto",
        item_first=bool(kind in (17, 18)),
        delimiter_token_id=int(rng.integers(3, 500)) if kind in (19, 20) else None,
        apply_softmax=softmax,
        label_mass=not softmax or bool(rng.integers(0, 2)),
        **fields,
    )


def _ids(rng: np.random.Generator, count: int, seeds: int = 100_000) -> Ids:
    """Few seeds: many begin alike."""
    return tokens(int(count), int(rng.integers(0, seeds)))


def agree(found: ScoreResult, wanted: ScoreResult) -> bool:
    pairs = list(zip(found.scores, wanted.scores, strict=True))
    rows = zip(found.continuations or [], wanted.continuations or [], strict=True)
    texts = [(np.exp(a.token_logprobs), np.exp(b.token_logprobs)) for x, y in rows for a, b in zip(x, y, strict=True)]
    return all(difference(a, b) <= FLOAT32 for a, b in (*pairs, *texts))


def test_3000_requests_of_any_kind_compile_nothing_and_score_as_serial(wide: Tiny, scorer: Scorer) -> None:
    """Several threads, many requests each at a time; a sample is compared with serial scoring."""
    rng = np.random.default_rng(7)
    long = {length: tokens(length, 900 + length) for length in (30, 200, 400)}
    handles = {scorer.prefill(ids, pin=True).id: ids for ids in long.values()}
    requests = [drawn(rng, list(handles)) for _ in range(REQUESTS)]
    with compilations(scorer) as counts, ThreadPoolExecutor(THREADS) as pool:
        groups = list(pool.map(scorer.score_many, map(list, batched(requests, TOGETHER))))
    assert counts == [0, 0]
    results = [result for group in groups for result in group]
    assert {result.mode for result in results} == set(MODES) - {"auto"}
    assert [len(result.scores) for result in results] == [len(request.items) for request in requests]
    some = rng.permutation(REQUESTS)[:SAMPLE].tolist()
    few = [n for n in some if len(requests[n].items) < 20]
    for n in few:
        request = requests[n]
        if request.context is not None:
            request = replace(request, query=handles[request.context], context=None)
        assert agree(results[n], scorer.score_many([replace(request, mode="serial")])[0]), request
    for handle in handles:
        scorer.release(handle)
    scorer.engine.contexts.clear()
    assert scorer.engine.pages.free == scorer.engine.pages.pages - 1  # type: ignore[union-attr]


def test_the_set_of_programs_is_small_and_known(wide: Tiny, scorer: Scorer) -> None:
    programs = scorer.compile()
    assert [program.name for program in programs] == [str(p) for p in scorer.engine.runner.builder.programs()]
    rungs = {shape.tokens for shape in scorer.engine.ladder.shapes}
    assert len(rungs) <= MAX_RUNGS
    assert {program.tokens for program in programs} == rungs | {0}
    assert {program.name.partition("-")[0] for program in programs} == {"step", "vocabulary", "labels", "copy"}


def test_5000_labels_3000_empty_items_and_2000_tokens_of_text_take_no_new_program(wide: Tiny, scorer: Scorer) -> None:
    """Beyond a step in labels, items, tokens and read-outs, all at once in flight."""
    every = list(range(VOCABULARY))
    query = tokens(33, 5)
    asked = [
        ScoreRequest(query=query, items=ITEMS, label_token_ids=every),
        ScoreRequest(query=query, items=[[]] * 3000, label_token_ids=[5, 6, 7]),
        ScoreRequest(query=query, items=[[], [4, 5]], continuations=items_of([2000, 70], 6)),
        ScoreRequest(query=query, items=[[4]] * 300, label_token_ids=[5]),
    ]
    with compilations(scorer) as counts:
        labels, empty, texts, many = scorer.score_many(asked)
    assert counts == [0, 0]
    assert np.sum(labels.scores, axis=1) == pytest.approx(1.0, abs=1e-4)
    serial = [scorer.score_many([replace(one, mode="serial")])[0] for one in (asked[0], asked[2])]
    assert agree(labels, serial[0])
    assert agree(texts, serial[1])
    one = scorer.score_many([replace(asked[1], items=[[]], mode="serial")])[0].scores
    assert difference(empty.scores, one * 3000) <= FLOAT32
    one = scorer.score_many([replace(asked[3], items=[[4]], mode="serial")])[0].scores
    assert difference(many.scores, one * 300) <= FLOAT32


def test_the_count_sees_a_compilation(tiny: Tiny) -> None:
    """The negative control: a scorer that was not compiled compiles, by both counts, and says so in its result."""
    with Scorer(tiny.model, tiny.weights, tiny.scorer().engine.config) as fresh, compilations(fresh) as counts:
        result = fresh.score_many([tiny.request(QUERY, ITEMS)])[0]
    assert counts[0] == result.timings.compilations == 2, "the step, and the vocabulary"
    assert counts[1] >= 2
