"""A query's context is computed once and used again: whole, in part, by handle, or by several requests at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.tiny import FLOAT32, ITEMS, QUERY, Tiny, difference, tokens
from onepass.api import ScoreResult
from onepass.errors import ContextNotFound, DoesNotFit, RequestError
from onepass.scorer import Scorer

LONG = tokens(32, 30)


@pytest.fixture
def scorer(tiny: Tiny) -> Scorer:
    """The shared scorer with nothing cached."""
    scorer = tiny.scorer()
    scorer.engine.contexts.clear()
    return scorer


def extend(tiny: Tiny, scorer: Scorer, query: object = QUERY, **fields: object) -> ScoreResult:
    return scorer.score_many([tiny.request(query, ITEMS, mode="extend", **fields)])[0]  # type: ignore[arg-type]


def test_a_cached_context_gives_the_same_scores(tiny: Tiny, scorer: Scorer) -> None:
    cold, warm = extend(tiny, scorer), extend(tiny, scorer)
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, len(QUERY))
    assert cold.usage.computed_tokens == len(QUERY) + sum(map(len, ITEMS))
    assert warm.usage.computed_tokens == sum(map(len, ITEMS))
    assert warm.scores == cold.scores
    assert len(scorer.engine.contexts) == 1


def test_a_packed_request_leaves_its_context_for_later_ones(tiny: Tiny) -> None:
    scorer = tiny.scorer(mask="segment")
    scorer.engine.contexts.clear()
    packed = tiny.run("packed/segment", QUERY, ITEMS)
    later = extend(tiny, scorer)
    assert later.usage.cached_tokens == len(QUERY)
    assert difference(later.scores, packed.scores) <= FLOAT32


def test_the_reason_tells_what_is_cached_of_a_short_query(tiny: Tiny, scorer: Scorer) -> None:
    request = tiny.request(tokens(3, 7), ITEMS, mode="auto")
    cold, warm = scorer.score_many([request])[0], scorer.score_many([request])[0]
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 3)
    assert "context not cached" in cold.reason
    assert (warm.mode, warm.reason) == ("extend", "all 3 context tokens are cached")


def test_an_extended_query_computes_only_the_rest(tiny: Tiny, scorer: Scorer) -> None:
    extend(tiny, scorer, LONG[:20])
    partly = extend(tiny, scorer, LONG)
    assert partly.usage.cached_tokens == 20
    assert partly.usage.computed_tokens == 12 + sum(map(len, ITEMS))
    assert difference(partly.scores, tiny.serial(LONG, ITEMS)) <= FLOAT32


def test_a_query_that_differs_at_its_end_reuses_what_is_common(tiny: Tiny, scorer: Scorer) -> None:
    extend(tiny, scorer, LONG[:20])
    other = [*LONG[:18], *tokens(10, 31)]
    partly = extend(tiny, scorer, other)
    assert partly.usage.cached_tokens == 18
    assert difference(partly.scores, tiny.serial(other, ITEMS)) <= FLOAT32


def test_an_empty_item_computes_the_last_token_of_a_cached_query_anew(tiny: Tiny, scorer: Scorer) -> None:
    """It is read at the query's own last token, of which only the keys are kept."""
    extend(tiny, scorer, LONG)
    items = [[], *ITEMS[1:]]
    result = scorer.score_many([tiny.request(LONG[:20], items, mode="extend")])[0]
    assert result.usage.cached_tokens == 20
    assert result.usage.computed_tokens == 1 + sum(map(len, items))
    assert difference(result.scores, tiny.serial(LONG[:20], items)) <= FLOAT32


def test_tokens_that_were_kept_are_counted_once(tiny: Tiny, scorer: Scorer) -> None:
    """However often a waiting prefill is looked at before it starts."""
    extend(tiny, scorer, LONG[:20])
    before = scorer.engine.totals.hit_tokens
    queries = [[*LONG[:18], *tokens(10, seed)] for seed in range(40, 46)]
    results = scorer.score_many([tiny.request(query, ITEMS, mode="extend") for query in queries])
    assert [result.usage.cached_tokens for result in results] == [18] * 6
    assert scorer.engine.totals.hit_tokens - before == 6 * 18


def test_contexts_share_the_pages_of_their_beginning(tiny: Tiny, scorer: Scorer) -> None:
    """Whole pages; the one where they part is copied. A page is 64 tokens."""
    begin = tokens(150, 33)
    one, other = [*begin, *tokens(50, 34)], [*begin, *tokens(20, 35)]
    extend(tiny, scorer, one)
    second = extend(tiny, scorer, other)
    assert second.usage.cached_tokens == 150
    pages = [scorer.engine.contexts.find(tuple(ids)).pages for ids in (one, other)]  # type: ignore[union-attr]
    assert pages[0][:2] == pages[1][:2]
    assert not set(pages[0][2:]) & set(pages[1][2:])
    assert scorer.engine.contexts.bytes == 5 * scorer.engine.contexts.page_bytes, "four of one, one more of the other"
    for query in (one, other):
        again = extend(tiny, scorer, query)
        assert again.usage.cached_tokens == len(query)
        assert difference(again.scores, tiny.serial(query, ITEMS)) <= FLOAT32


def test_a_context_that_is_kept_already_gets_another_handle(tiny: Tiny, scorer: Scorer) -> None:
    """Also the beginning of one, which then has its pages."""
    handles = [scorer.prefill(query) for query in (LONG, LONG, LONG[:20])]
    assert len({handle.id for handle in handles}) == 3
    assert scorer.engine.contexts.bytes == handles[0].bytes
    result = extend(tiny, scorer, None, context=handles[2].id)
    assert difference(result.scores, tiny.serial(LONG[:20], ITEMS)) <= FLOAT32


def test_a_handle_stands_for_its_query(tiny: Tiny, scorer: Scorer) -> None:
    handle = scorer.prefill(QUERY)
    assert (handle.tokens, handle.pinned) == (len(QUERY), False)
    assert handle.bytes == scorer.engine.contexts.bytes
    result = extend(tiny, scorer, None, context=handle.id)
    assert result.usage.cached_tokens == len(QUERY)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    by_object = scorer.score(context=handle, items=ITEMS, label_token_ids=tiny.labels, mode="extend")
    assert by_object.scores == result.scores


def test_a_handle_works_with_text_items_and_a_delimiter(tiny: Tiny, scorer: Scorer) -> None:
    handle = scorer.prefill(QUERY)
    result = extend(tiny, scorer, None, context=handle.id, delimiter_token_id=9)
    assert difference(result.scores, tiny.serial([*QUERY, 9], ITEMS)) <= FLOAT32
    text = scorer.score(context=handle, items=[" yes", " no"], labels=[" yes"], mode="extend")
    ids = [scorer.tokenizer.encode_item(item) for item in (" yes", " no")]
    by_ids = scorer.score(QUERY, ids, label_token_ids=ids[0], mode="extend")
    assert difference(text.scores, by_ids.scores) <= FLOAT32


def test_a_released_handle_is_not_found(scorer: Scorer, tiny: Tiny) -> None:
    handle = scorer.prefill(QUERY)
    scorer.release(handle)
    with pytest.raises(ContextNotFound, match=handle.id):
        extend(tiny, scorer, None, context=handle.id)
    with pytest.raises(ContextNotFound):
        scorer.release(handle.id)


def test_an_expired_handle_is_not_found(scorer: Scorer, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = scorer.prefill(QUERY, ttl_seconds=5)
    monkeypatch.setattr(scorer.engine.contexts, "_clock", lambda: handle.expires_at)
    with pytest.raises(ContextNotFound, match="expired"):
        extend(tiny, scorer, None, context=handle.id)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "60", None, True])
def test_a_time_to_live_that_is_no_time_is_refused(scorer: Scorer, seconds: object) -> None:
    with pytest.raises(RequestError, match="ttl_seconds must be") as caught:
        scorer.prefill(QUERY, ttl_seconds=seconds)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_ttl"


def test_a_context_that_does_not_fit_the_cache_gets_no_handle_but_scores(tiny: Tiny) -> None:
    scorer = tiny.scorer(cache_bytes=0)
    with pytest.raises(DoesNotFit, match="the budget is 0 bytes"):
        scorer.prefill(QUERY)
    result = extend(tiny, scorer)
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    assert len(scorer.engine.contexts) == 0


def test_a_pinned_context_outlives_the_others(tiny: Tiny) -> None:
    size = tiny.scorer().prefill(QUERY).bytes
    scorer = tiny.scorer(cache_bytes=2 * size)
    pinned = scorer.prefill(QUERY, pin=True)
    loose = scorer.prefill(tokens(20, 32))
    for seed in range(33, 37):
        extend(tiny, scorer, tokens(20, seed))
        assert scorer.engine.contexts.bytes <= 2 * size
    assert extend(tiny, scorer, None, context=pinned.id).usage.cached_tokens == len(QUERY)
    with pytest.raises(ContextNotFound):
        extend(tiny, scorer, None, context=loose.id)


def test_requests_that_want_one_context_share_its_computation(tiny: Tiny, scorer: Scorer) -> None:
    together = scorer.score_many([tiny.request(QUERY, ITEMS, mode="extend") for _ in range(4)])
    assert sum(result.usage.computed_tokens for result in together) == len(QUERY) + 4 * sum(map(len, ITEMS))
    assert sorted(result.usage.cached_tokens for result in together) == [0, 20, 20, 20]
    for result in together:
        assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_several_threads_use_one_handle_at_once(tiny: Tiny, scorer: Scorer) -> None:
    handle = scorer.prefill(QUERY, pin=True)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: extend(tiny, scorer, None, context=handle.id), range(8)))
    for result in results:
        assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32
    scorer.release(handle)
