"""Five modes, one answer: every way of running a request gives the serial numbers, whatever the request looks like."""

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest

from engine.tiny import (
    BFLOAT16,
    BFLOAT16_MEAN,
    FLOAT32,
    ITEMS,
    QUERY,
    WAYS,
    Tiny,
    difference,
    items_of,
    numbers,
    tokens,
)

EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def test_probabilities_of_the_whole_vocabulary_sum_to_one(tiny: Tiny) -> None:
    every = list(range(tiny.model.config.vocab_size))
    result = tiny.scorer().score(QUERY, ITEMS, label_token_ids=every, mode="serial")
    assert np.sum(result.scores, axis=1) == pytest.approx(1.0, abs=1e-4)
    assert result.label_mass == pytest.approx([1.0] * 8, abs=1e-4)


@EVERY_WAY
def test_scores_equal_serial_ones_in_float32(tiny: Tiny, way: str) -> None:
    assert difference(tiny.run(way, QUERY, ITEMS).scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


@EVERY_WAY
def test_scores_equal_serial_ones_in_bfloat16(tiny_of: Callable[[str, str], Tiny], way: str) -> None:
    tiny = tiny_of("llama3", "bfloat16")
    off = np.abs(np.array(tiny.run(way, QUERY, ITEMS).scores) - tiny.serial(QUERY, ITEMS))
    assert off.max() <= BFLOAT16
    assert off.mean() <= BFLOAT16_MEAN


def test_compared_labels_carry_probability(tiny: Tiny) -> None:
    """Equal zeros would prove nothing."""
    assert tiny.serial(QUERY, ITEMS).max(axis=1).min() > 10 * FLOAT32
    assert tiny.serial(QUERY, ITEMS).max() > 0.05


@EVERY_WAY
@pytest.mark.parametrize("places", [[0], [4], [7], [0, 2, 6, 7], range(8)], ids=str)
def test_an_empty_item_is_scored_at_the_querys_last_token(tiny: Tiny, way: str, places: list[int]) -> None:
    items = [[] if i in places else item for i, item in enumerate(ITEMS)]
    assert difference(tiny.run(way, QUERY, items).scores, tiny.serial(QUERY, items)) <= FLOAT32


@EVERY_WAY
def test_no_items_give_no_scores(tiny: Tiny, way: str) -> None:
    result = tiny.run(way, QUERY, [])
    assert (result.scores, result.logprobs, result.logits, result.label_mass) == ([], [], [], [])
    assert (result.labels, result.label_token_ids, result.continuations) == ([], [], None)
    assert result.usage.prompt_tokens == len(QUERY)


@EVERY_WAY
def test_item_first_scores_item_then_query(tiny: Tiny, way: str) -> None:
    items = ITEMS[:3]
    result = tiny.run(way, QUERY, items, item_first=True)
    joined = [tiny.serial(item, [QUERY])[0] for item in items]
    assert difference(result.scores, joined) <= FLOAT32
    assert difference(result.scores, tiny.serial(QUERY, items)) > 1e-3, "the order of item and query must show"


def test_item_first_is_honoured_in_serial_too(tiny: Tiny) -> None:
    result = tiny.scorer().score_many([tiny.request(QUERY, ITEMS[:3], item_first=True, mode="serial")])[0]
    assert difference(result.scores, [tiny.serial(item, [QUERY])[0] for item in ITEMS[:3]]) <= FLOAT32


@EVERY_WAY
def test_a_delimiter_is_part_of_the_shared_prefix(tiny: Tiny, way: str) -> None:
    """It also occurs in the query and in an item, where it is content."""
    delimiter = QUERY[5]
    items = [[delimiter, *ITEMS[0]], *ITEMS[1:]]
    result = tiny.run(way, QUERY, items, delimiter_token_id=delimiter)
    assert difference(result.scores, tiny.serial([*QUERY, delimiter], items)) <= FLOAT32
    assert result.usage.prompt_tokens == len(QUERY) + 1 + sum(map(len, items))


@EVERY_WAY
def test_items_may_have_label_sets_of_their_own(tiny: Tiny, way: str) -> None:
    sets = [tokens(1 + i % 4, 50 + i) for i in range(8)]
    result = tiny.run(way, QUERY, ITEMS, label_token_ids=sets)
    assert [len(row) for row in result.scores] == [1, 2, 3, 4] * 2
    assert result.label_token_ids == sets
    for i in range(8):
        alone = tiny.run(way, QUERY, ITEMS, label_token_ids=sets[i])
        assert difference(result.scores[i], alone.scores[i]) <= FLOAT32
        assert result.label_mass is not None
        assert result.label_mass[i] == pytest.approx(sum(result.scores[i]), abs=FLOAT32)


def test_softmax_is_over_the_labels_at_a_temperature(tiny: Tiny) -> None:
    plain = tiny.run("extend", QUERY, ITEMS)
    for temperature in (0.25, 1, 3.0):
        warm = tiny.run("extend", QUERY, ITEMS, apply_softmax=True, temperature=temperature)
        powers = np.exp(np.array(plain.logprobs) / temperature)
        assert difference(warm.scores, powers / powers.sum(axis=1, keepdims=True)) <= FLOAT32
        assert difference(warm.logprobs, plain.logprobs) <= FLOAT32


def test_without_label_mass_the_scores_are_the_same(tiny: Tiny) -> None:
    whole = tiny.run("extend", QUERY, ITEMS, apply_softmax=True)
    spared = tiny.run("extend", QUERY, ITEMS, apply_softmax=True, label_mass=False)
    assert (spared.logprobs, spared.label_mass) == (None, None)
    assert (spared.scores, spared.logits) == (whole.scores, whole.logits)


def test_without_softmax_label_mass_is_given_anyway(tiny: Tiny) -> None:
    """Full-vocabulary probabilities need the pass over the vocabulary; there is nothing to spare."""
    result = tiny.run("extend", QUERY, ITEMS, label_mass=False)
    assert result.label_mass == pytest.approx(np.sum(result.scores, axis=1), abs=FLOAT32)


def test_logits_logprobs_and_scores_say_the_same(tiny: Tiny) -> None:
    result = tiny.run("packed/segment", QUERY, ITEMS)
    assert difference(np.exp(np.array(result.logprobs)), result.scores) <= 1e-7
    shift = np.array(result.logits) - np.array(result.logprobs)
    assert np.ptp(shift, axis=1).max() <= 1e-4, "logits are log-probabilities up to a constant per item"


@pytest.mark.parametrize("size", [1, 5])
def test_chunk_size_does_not_matter(tiny: Tiny, size: int) -> None:
    scorer = tiny.scorer(chunk_size=size)
    result = scorer.score_many([tiny.request(QUERY, ITEMS, mode="chunked")])[0]
    items = "1 item" if size == 1 else f"{size} items"
    assert f"{-(-8 // size)} copies of the context, at most {items} each" in result.reason
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def test_extend_batch_size_does_not_matter(tiny: Tiny) -> None:
    scorer = tiny.scorer(extend_batch_size=3)
    result = scorer.score_many([tiny.request(QUERY, ITEMS, mode="extend")])[0]
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


@pytest.mark.parametrize("mode", ["packed", "chunked", "extend"])
@pytest.mark.parametrize("lengths", [[40, 3, 9, 2], [3, 40, 0, 70, 2, 0], [40, 70], [64, 0], [32, 0, 31]], ids=str)
@pytest.mark.parametrize("seed", [7, 8], ids=["cold", "cached"])
def test_items_longer_than_a_step_are_computed_over_several(
    tiny: Tiny, mode: str, lengths: list[int], seed: int
) -> None:
    """Beside short and empty ones; a step is 32 tokens, and one of exactly that fits with no token to spare."""
    items, query = items_of(lengths, 7), tokens(20, 700)
    scorer = tiny.scorer(max_batch_tokens=32)
    if seed == 7:
        scorer.engine.contexts.clear()
    result = scorer.score_many([tiny.request(query, items, mode=mode)])[0]
    assert difference(result.scores, tiny.serial(query, items)) <= FLOAT32


def test_a_context_longer_than_a_step_is_computed_in_parts(tiny: Tiny) -> None:
    query = tokens(90, 8)
    scorer = tiny.scorer(max_batch_tokens=32)
    before = scorer.engine.totals.steps
    result = scorer.score_many([tiny.request(query, ITEMS[:3], mode="extend")])[0]
    assert scorer.engine.totals.steps - before == 4, "three of the context, one of the items"
    assert difference(result.scores, tiny.serial(query, ITEMS[:3])) <= FLOAT32
    assert result.usage.computed_tokens == 90 + sum(map(len, ITEMS[:3]))


def test_a_model_of_one_layer_scores(tiny: Tiny) -> None:
    """The scan over all layers but the last is then empty."""
    config = replace(tiny.model.config, num_layers=1)
    weights = replace(tiny.weights, layers=jax.tree.map(lambda leaf: leaf[:1], tiny.weights.layers))
    shallow = Tiny(replace(tiny.model, config=config), weights, _labels=tiny.labels)
    packed = shallow.run("packed/dense", QUERY, ITEMS)
    assert difference(packed.scores, shallow.serial(QUERY, ITEMS)) <= FLOAT32
    assert difference(packed.scores, tiny.serial(QUERY, ITEMS)) > 1e-3, "the other layers must show"
    shallow.close()


def test_auto_runs_one_of_the_modes_and_says_why(tiny: Tiny) -> None:
    query = tokens(20, 9)
    cold, cached = (tiny.scorer().score_many([tiny.request(query, ITEMS)])[0] for _ in range(2))
    assert (cold.mode, cold.reason) == ("packed", "context and items in one pass (context not cached); mask segment")
    assert (cached.mode, cached.reason) == ("extend", "all 20 context tokens are cached")
    for result in (cold, cached):
        assert difference(result.scores, tiny.serial(query, ITEMS)) <= FLOAT32


@EVERY_WAY
def test_a_result_tells_what_it_cost(tiny: Tiny, way: str) -> None:
    first = [tiny.run(way, QUERY, ITEMS) for _ in ("cold", "cached")][1]
    result = tiny.run(way, QUERY, ITEMS)
    assert result.usage.prompt_tokens == result.usage.total_tokens == len(QUERY) + sum(map(len, ITEMS))
    assert result.timings.padding_ratio >= 1.0
    assert 0 < result.timings.device_ms <= result.timings.total_ms
    assert result.timings.compilations == 0
    assert numbers(result).tolist() == numbers(first).tolist(), "the same request gives the same bits"
