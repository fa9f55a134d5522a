"""BM25 candidates: Lucene's formula done by hand, stems, ties by id, and only documents that share a word."""

import math

import pytest

from onepass.evaluate.bm25 import Bm25, Bm25Options

DOCUMENTS = {
    "a": "river river bank",
    "b": "river stone",
    "c": "stones and banks banks",
    "d": "cloud",
    "e": "bank river river",
}


def by_hand(query: list[str], document: list[str], corpus: list[list[str]], k1: float, b: float) -> float:
    average = sum(map(len, corpus)) / len(corpus)
    total = 0.0
    for word in query:
        having = sum(word in other for other in corpus)
        idf = math.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
        tf = document.count(word)
        total += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
    return total


def test_scores_are_lucenes() -> None:
    stems = {"stones": "stone", "banks": "bank"}
    corpus = [[stems.get(word, word) for word in text.split() if word != "and"] for text in DOCUMENTS.values()]
    found = Bm25(DOCUMENTS, Bm25Options(1.2, 0.6)).search("Rivers, stones", 10)
    wanted = {
        name: by_hand(["river", "stone"], words, corpus, 1.2, 0.6)
        for name, words in zip(DOCUMENTS, corpus, strict=True)
    }
    assert {document.id: document.score for document in found} == {
        name: pytest.approx(score, rel=1e-5) for name, score in wanted.items() if score
    }
    assert found[0].id == "b"


def test_depth_cuts_ties_by_falling_id() -> None:
    index = Bm25(DOCUMENTS, Bm25Options())
    assert [document.id for document in index.search("river bank", 10)][:2] == ["e", "a"], (
        "the same words, the same score"
    )
    assert [document.id for document in index.search("river bank", 1)] == ["e"]


def test_a_query_without_known_words_has_no_candidates() -> None:
    index = Bm25(DOCUMENTS, Bm25Options())
    assert index.search("zebra", 10) == []
    assert index.search("the and of", 10) == []
    assert [document.id for document in index.search("zebra cloud", 10)] == ["d"]
