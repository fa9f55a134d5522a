"""The cache of tokenised items: the same tokens, fewer times computed, within its bytes, from any thread."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from onepass.loading.tokenizer import TextTokenizer
from onepass.scorer import Scorer
from onepass.server.engines.token_cache import TokenCache


@pytest.fixture
def plain(tiny_scorer: Scorer) -> TextTokenizer:
    return tiny_scorer.tokenizer


def test_tokens_are_those_of_the_tokenizer(plain: TextTokenizer) -> None:
    cache = TokenCache(plain, 1 << 20)
    texts = ["a river", "Paris", "", "a river", "東京 is a city"]
    for _ in range(2):
        assert cache.encode_items(texts) == plain.encode_items(texts)
    assert (cache.misses, cache.hits) == (5, 5)
    assert cache.encode_query("a river") == plain.encode_query("a river")
    assert cache.encode_item("Paris") == plain.encode_item("Paris")
    assert cache.vocab_size == plain.vocab_size


def test_what_is_returned_can_be_changed_without_harm(plain: TextTokenizer) -> None:
    cache = TokenCache(plain, 1 << 20)
    for _ in range(3):
        one, same = cache.encode_items(["Paris", "Paris"])
        one.append(1)
        assert same == plain.encode_item("Paris")


def test_it_stays_within_its_bytes_and_forgets_the_oldest(plain: TextTokenizer) -> None:
    cache = TokenCache(plain, 20_000)
    cache.encode_items(["kept because it is used"])
    for number in range(500):
        cache.encode_items([f"item number {number}", "kept because it is used"])
        assert 0 < cache.bytes <= 20_000
    assert 10 < len(cache) < 500
    assert cache.misses == 501, "what is used is never forgotten"
    hits = cache.hits
    cache.encode_items(["kept because it is used", "item number 499", "item number 0"])
    assert cache.hits == hits + 2


def test_an_item_larger_than_the_budget_is_not_kept(plain: TextTokenizer) -> None:
    cache = TokenCache(plain, 1000)
    cache.encode_items(["x" * 5000])
    assert (len(cache), cache.bytes) == (0, 0)
    assert TokenCache(plain, 0).encode_items(["Paris"]) == plain.encode_items(["Paris"])


def test_many_threads_get_the_right_tokens(plain: TextTokenizer) -> None:
    cache = TokenCache(plain, 5000)
    texts = [f"a film about {number}" for number in range(60)]
    right = dict(zip(texts, plain.encode_items(texts), strict=True))

    def ask(seed: int) -> bool:
        some = random.Random(seed).choices(texts, k=20)
        return cache.encode_items(some) == [right[text] for text in some]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(200)))
    assert cache.hits + cache.misses == 4000
    assert cache.bytes <= 5000
