"""Reranking by a tiny real model: the library's own raw scores, in the queries' order, from a server too."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bulk.served import served
from evaluate.small_collection import DOCUMENTS, QUERIES, text_of
from onepass import Scorer
from onepass.client.blocking import Client
from onepass.errors import RequestError, TooLong
from onepass.evaluate import reranker as reranking
from onepass.evaluate.evaluation import cut_words
from onepass.evaluate.reranker import Candidates, RankOptions, Reranker


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path]) -> Iterator[Scorer]:
    options = {"dtype": "float32", "keep_programs": False, "max_batch_tokens": 256, "cache_bytes": 1 << 24}
    with Scorer.load(str(checkpoint("qwen3")), **options) as scorer:  # type: ignore[arg-type]
        yield scorer


def tasks() -> list[Candidates]:
    texts = {ident: text_of(ident) for ident in DOCUMENTS}
    return [Candidates(ident, query, texts) for ident, query in QUERIES.items()]


def test_documents_are_ordered_by_the_librarys_raw_scores(scorer: Scorer) -> None:
    results = dict(Reranker.of_scorer(scorer).rerank(tasks()))
    assert list(results) == list(QUERIES)
    for query, documents in results.items():
        raw = scorer.predict([(QUERIES[query], text_of(ident)) for ident in DOCUMENTS], raw=True)
        assert {d.id: d.score for d in documents} == {
            ident: pytest.approx(score, abs=1e-3) for ident, score in zip(DOCUMENTS, raw, strict=True)
        }
        assert documents == sorted(documents, key=lambda d: -d.score)


def test_a_server_gives_the_same_order(scorer: Scorer) -> None:
    options = RankOptions("label", "Judge by the colour")
    with served(scorer) as url, Client(url) as client:
        remote = list(Reranker.of_client(client, options).rerank(tasks()))
    local = list(Reranker.of_scorer(scorer, options).rerank(tasks()))
    assert [(query, [d.id for d in found]) for query, found in remote] == [
        (query, [d.id for d in found]) for query, found in local
    ]
    plain = dict(Reranker.of_scorer(scorer, RankOptions("label")).rerank(tasks()))
    assert plain["q1"] != local[0][1], "the instruction reaches the model"


def test_queries_come_one_after_another_however_few_are_in_flight(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(Reranker.of_scorer(scorer).rerank(tasks()))
    submitted: list[str] = []
    monkeypatch.setattr(reranking, "QUERIES_IN_FLIGHT", 2)

    def given() -> Iterator[Candidates]:
        for task in tasks():
            submitted.append(task.query_id)
            yield task

    results = Reranker.of_scorer(scorer).rerank(given())
    assert next(results)[0] == "q1"
    assert submitted == ["q1", "q2"]
    assert [query for query, _ in results] == [query for query, _ in whole[1:]]


def test_a_query_without_candidates_has_no_documents(scorer: Scorer) -> None:
    empty = Candidates("q0", "anything", {})
    assert next(Reranker.of_scorer(scorer).rerank([empty, *tasks()[:1]])) == ("q0", [])


def test_errors_name_the_query_and_the_cure(scorer: Scorer) -> None:
    long = Candidates("q7", "anything", {"d": "fox " * 3000})
    finished = []
    with pytest.raises(TooLong, match=r"query 'q7': .*; --max-document-words cuts documents"):
        finished.extend(query for query, _ in Reranker.of_scorer(scorer).rerank([*tasks(), long]))
    assert finished == list(QUERIES), "those before it"
    with pytest.raises(RequestError, match="query 'q8': ranking needs a query"):
        list(Reranker.of_scorer(scorer).rerank([Candidates("q8", "", {"d": "fox"})]))
    cut = Candidates("q7", "anything", {"d": cut_words("fox " * 3000, 50)})
    assert len(list(Reranker.of_scorer(scorer).rerank([cut]))) == 1


def test_cut_words() -> None:
    assert cut_words("a  b\nc d", 3) == "a b c"
    assert cut_words("a  b", 2) == "a  b", "left as it is"
    assert cut_words(" a  b ", None) == " a  b "
