"""What is scored and mutated covers what the checks claim: every pair of items, every length, nothing by accident."""

import numpy as np
import pytest

from onepass.validate.prose import prose
from onepass.validate.settings import Settings
from onepass.validate.workload import make_workload, mutated_sets, with_other_lengths, with_other_tokens


@pytest.mark.parametrize("count", [2, 3, 8, 9, 33, 128, 500])
def test_every_item_is_mutated_while_every_other_is_observed(count: int) -> None:
    changed = np.zeros((len(mutated_sets(count)), count), bool)
    for request, indexes in enumerate(mutated_sets(count)):
        changed[request, sorted(indexes)] = True
    seen = (changed[:, :, None] & ~changed[:, None, :]).any(axis=0)
    assert (seen | np.eye(count, dtype=bool)).all()


def test_few_requests_prove_many_items() -> None:
    assert [len(mutated_sets(count)) for count in (8, 33, 128, 500)] == [8, 7, 10, 12]


def test_small_counts_are_the_beginning_of_large_ones_and_lengths_vary() -> None:
    work = make_workload(1000, Settings())
    lengths = [len(item) for item in work.items]
    assert (min(lengths), max(lengths)) == (0, 24)
    assert lengths[2] == 0
    assert all(lengths[:2])
    assert work.first(8) == work.first(500)[:8]
    assert make_workload(1000, Settings()) == work
    assert make_workload(1000, Settings(seed=1)) != work


def test_a_model_with_a_tokenizer_gets_prose_cut_into_a_query_and_items() -> None:
    def by_words(text: str) -> list[int]:
        return [sum(word.encode()) % 1000 for word in text.split()]

    work = make_workload(1000, Settings(), by_words)
    cut = [*work.query, *(token for item in work.items for token in item)]
    assert cut == by_words(prose(len(cut), seed=0))[: len(cut)]
    assert [len(item) for item in work.items] == [len(item) for item in make_workload(1000, Settings()).items]


def test_a_tokenizer_that_knows_no_english_is_given_random_ids() -> None:
    assert make_workload(1000, Settings(), lambda text: [0] * len(text)) == make_workload(1000, Settings())


def test_prose_is_sentences() -> None:
    told = prose(50, seed=1)
    assert told.count(". ") == 49
    assert not any(wrong in told for wrong in ("  ", " ,", ",,", " ."))
    assert all(sentence[0].isupper() for sentence in told.split(". "))


def test_a_serial_sample_has_the_first_the_last_an_empty_and_a_longest_item() -> None:
    work = make_workload(1000, Settings())
    sample = work.sample(500, 24)
    assert len(sample) == len(set(sample)) <= 24
    assert {0, 499} <= set(sample)
    assert {0, 24} <= {len(work.items[i]) for i in sample}
    assert work.sample(8, 24) == list(range(8))


def test_mutations_change_every_token_or_every_length_and_nothing_else() -> None:
    items = make_workload(1000, Settings()).first(33)
    for changed in mutated_sets(33):
        other = with_other_tokens(items, changed, 1000, 0)
        longer = with_other_lengths(items, changed, 1000, 0)
        for i, item in enumerate(items):
            assert len(other[i]) == len(item)
            assert (len(longer[i]) != len(item)) == (i in changed)
            if i in changed:
                assert all(a != b for a, b in zip(other[i], item, strict=True))
            else:
                assert other[i] == longer[i] == item
