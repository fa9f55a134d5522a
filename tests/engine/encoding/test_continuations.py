"""Texts of several tokens after `query + item`: their log-probabilities are those of teacher forcing, in every mode."""

from typing import Any

import numpy as np
import pytest

from engine.tiny import FLOAT32, QUERY, WAYS, Ids, Tiny, difference, items_of, tokens
from onepass.api import Continuation, ScoreResult
from onepass.engine.encoding.segments import LONG_FAMILY

EVERY_WAY = pytest.mark.parametrize("way", WAYS)
ITEMS = items_of([3, 0, 6, 2], 20)
TEXTS = items_of([1, 4, 7], 21)
LOG_TOLERANCE = 1e-4  # log-probabilities here go down to about -20


def continued(result: ScoreResult) -> list[list[Continuation]]:
    assert result.continuations is not None
    return result.continuations


def token_logprobs(result: ScoreResult) -> np.ndarray:
    """[items · tokens] in order."""
    return np.array([x for row in continued(result) for c in row for x in c.token_logprobs])


def serial(tiny: Tiny, items: list[Ids], **fields: Any) -> ScoreResult:
    result = tiny.scorer().score_many([tiny.request(QUERY, items, mode="serial", **fields)])[0]
    assert result.mode == "serial"
    return result


def forced(tiny: Tiny, item: Ids, text: Ids) -> list[float]:
    """Each token's log-probability as a label after everything before it, joined by hand."""
    joined = [item + text[:j] for j in range(len(text))]
    result = serial(tiny, joined, label_token_ids=[[token] for token in text])
    assert result.logprobs is not None
    return [row[0] for row in result.logprobs]


def test_serial_continuations_are_teacher_forcing(tiny: Tiny) -> None:
    result = continued(serial(tiny, ITEMS, continuations=TEXTS))
    assert [len(row) for row in result] == [3] * 4
    for item, row in zip(ITEMS, result, strict=True):
        for text, continuation in zip(TEXTS, row, strict=True):
            assert difference(continuation.token_logprobs, forced(tiny, item, text)) <= LOG_TOLERANCE
            assert continuation.logprob == pytest.approx(sum(continuation.token_logprobs))
            assert continuation.mean_logprob == pytest.approx(np.mean(continuation.token_logprobs))


@EVERY_WAY
def test_texts_of_each_item_are_scored_after_that_item_alone(tiny: Tiny, way: str) -> None:
    own = [TEXTS[:2], TEXTS[2:], TEXTS, TEXTS[1:2]]
    every = continued(serial(tiny, ITEMS, continuations=TEXTS))
    result = continued(tiny.run(way, QUERY, ITEMS, continuations=own))
    assert [len(row) for row in result] == [2, 1, 3, 1]
    for texts, row, wanted in zip(own, result, every, strict=True):
        for text, continuation in zip(texts, row, strict=True):
            expected = wanted[TEXTS.index(text)].token_logprobs
            assert difference(continuation.token_logprobs, expected) <= LOG_TOLERANCE


@EVERY_WAY
def test_continuations_equal_serial_ones(tiny: Tiny, way: str) -> None:
    result = tiny.run(way, QUERY, ITEMS, continuations=TEXTS)
    wanted = serial(tiny, ITEMS, continuations=TEXTS)
    assert difference(token_logprobs(result), token_logprobs(wanted)) <= LOG_TOLERANCE
    assert difference(np.exp(token_logprobs(result)), np.exp(token_logprobs(wanted))) <= FLOAT32
    assert difference(result.scores, wanted.scores) <= FLOAT32
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32, "labels are read beside continuations"


def test_branches_of_an_item_do_not_see_one_another(tiny: Tiny) -> None:
    """Every continuation is exchanged in turn for another of its length; the others keep every bit."""
    before = continued(tiny.run("extend", QUERY, ITEMS, continuations=TEXTS))
    for index, text in enumerate(TEXTS):
        changed = [tokens(len(text), 700) if i == index else other for i, other in enumerate(TEXTS)]
        after = continued(tiny.run("extend", QUERY, ITEMS, continuations=changed))
        for row_before, row_after in zip(before, after, strict=True):
            assert row_before[index] != row_after[index]
            assert [c for i, c in enumerate(row_before) if i != index] == [
                c for i, c in enumerate(row_after) if i != index
            ]


def test_without_isolation_branches_see_one_another(tiny: Tiny) -> None:
    """The negative control."""
    leaking = token_logprobs(tiny.run("extend", QUERY, ITEMS, leaking=True, continuations=TEXTS))
    assert difference(leaking, token_logprobs(serial(tiny, ITEMS, continuations=TEXTS))) > 0.1


def test_all_items_and_texts_at_once_equal_one_request_each(tiny: Tiny) -> None:
    together = continued(tiny.run("extend", QUERY, ITEMS, continuations=TEXTS))
    for i, item in enumerate(ITEMS):
        for j, text in enumerate(TEXTS):
            alone = continued(tiny.run("extend", QUERY, [item], continuations=[text]))
            assert difference(together[i][j].token_logprobs, alone[0][0].token_logprobs) <= LOG_TOLERANCE


def test_continuations_need_no_labels(tiny: Tiny) -> None:
    result = tiny.run("extend", QUERY, ITEMS, continuations=TEXTS, label_token_ids=None)
    assert (result.scores, result.labels, result.label_mass) == ([[]] * 4, [[]] * 4, [0.0] * 4)
    wanted = serial(tiny, ITEMS, continuations=TEXTS)
    assert difference(token_logprobs(result), token_logprobs(wanted)) <= LOG_TOLERANCE


def test_a_single_token_continuation_is_a_label(tiny: Tiny) -> None:
    result = tiny.run("extend", QUERY, ITEMS, continuations=[[label] for label in tiny.labels])
    assert result.logprobs is not None
    assert [[c.logprob for c in row] for row in continued(result)] == result.logprobs


def test_items_may_have_label_sets_of_their_own_beside_continuations(tiny: Tiny) -> None:
    sets = [tokens(1 + i, 90 + i) for i in range(4)]
    result = tiny.run("extend", QUERY, ITEMS, continuations=TEXTS, label_token_ids=sets, apply_softmax=True)
    wanted = serial(tiny, ITEMS, label_token_ids=sets, apply_softmax=True)
    assert [len(row) for row in result.scores] == [1, 2, 3, 4]
    for row, row_wanted in zip(result.scores, wanted.scores, strict=True):
        assert difference(row, row_wanted) <= FLOAT32


@pytest.mark.parametrize("fields", [{}, {"label_token_ids": None}], ids=["labels", "no labels"])
def test_continuations_of_no_items_are_none(tiny: Tiny, fields: dict[str, Any]) -> None:
    result = tiny.run("extend", QUERY, [], continuations=TEXTS, **fields)
    assert (result.continuations, result.scores) == ([], [])


def test_item_first_continues_after_the_query(tiny: Tiny) -> None:
    result = tiny.run("extend", QUERY, ITEMS[:1], continuations=TEXTS, item_first=True)
    scorer = tiny.scorer()
    wanted = scorer.score(ITEMS[0], [QUERY], continuations=TEXTS, mode="serial")
    assert difference(token_logprobs(result), token_logprobs(wanted)) <= LOG_TOLERANCE


def test_many_long_continuations_are_split_over_families(tiny: Tiny) -> None:
    """An item with more branch tokens than a family may hold is repeated, an empty one too; results stay in order."""
    items = [ITEMS[0], []]
    texts = items_of([40] * 12, 22)
    assert LONG_FAMILY < 12 * 39
    result = tiny.run("extend", QUERY, items, continuations=texts)
    wanted = serial(tiny, items, continuations=texts)
    assert difference(token_logprobs(result), token_logprobs(wanted)) <= LOG_TOLERANCE
    assert difference(result.scores, tiny.serial(QUERY, items)) <= FLOAT32
    assert result.usage.computed_tokens <= 20 + 12 * (39 * 2 + len(ITEMS[0]) + 1)


@EVERY_WAY
@pytest.mark.parametrize("length", [65, 66, 200, 300])
def test_a_continuation_of_more_tokens_than_a_step_reads_out_is_read_over_several(
    tiny: Tiny, way: str, length: int
) -> None:
    """A step has 256 tokens and 64 read-outs."""
    texts = items_of([length, 3], 23)
    result = tiny.run(way, QUERY, ITEMS, continuations=texts)
    wanted = serial(tiny, ITEMS, continuations=texts)
    assert difference(np.exp(token_logprobs(result)), np.exp(token_logprobs(wanted))) <= FLOAT32
    assert difference(token_logprobs(result), token_logprobs(wanted)) <= 10 * LOG_TOLERANCE
    assert difference(result.scores, tiny.serial(QUERY, ITEMS)) <= FLOAT32


def most_likely(tiny: Tiny, prompt: Ids, count: int) -> tuple[Ids, list[float]]:
    """The most likely tokens after a prompt, one after another, by reading every label of the vocabulary."""
    every = list(range(tiny.model.config.vocab_size))
    out: Ids = []
    logprobs = []
    for _ in range(count):
        result = serial(tiny, [prompt + out], label_token_ids=every)
        assert result.logprobs is not None
        out.append(int(np.argmax(result.logits[0])))
        logprobs.append(result.logprobs[0][out[-1]])
    return out, logprobs


@EVERY_WAY
def test_a_continuation_of_the_most_likely_tokens_is_greedy(tiny: Tiny, way: str) -> None:
    items = ITEMS[:2]
    greedy = [most_likely(tiny, item, 3) for item in items]
    texts = [text for text, _ in greedy]
    changed = [[*text[:2], (text[2] + 1) % 500] for text in texts]
    own = [[text, other, text[:1]] for text, other in zip(texts, changed, strict=True)]
    result = continued(tiny.run(way, QUERY, items, continuations=own))
    for (text, logprobs), row in zip(greedy, result, strict=True):
        assert [c.is_greedy for c in row] == [True, False, True]
        assert [c.best_token_ids for c in row] == [tuple(text), tuple(text), tuple(text[:1])]
        assert difference(row[0].best_logprobs, logprobs) <= LOG_TOLERANCE
        assert difference(row[0].best_logprobs, row[0].token_logprobs) <= LOG_TOLERANCE
        assert row[1].token_logprobs[2] < row[1].best_logprobs[2]
