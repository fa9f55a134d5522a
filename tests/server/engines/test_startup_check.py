"""Before a model is served: it scores alike by every road, and it has ranked."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onepass.errors import BadCheckpoint
from onepass.loading.rerankers.templates import Ranker, RankTemplate
from onepass.scorer import Scorer
from onepass.server.engines import startup_check
from onepass.server.engines.startup_check import self_test

BUNDLED = "smollm2-135m"


class Watched:
    """A scorer that notes what it was asked to rank, and may answer wrongly."""

    def __init__(self, scorer: Scorer, score: float | None = None) -> None:
        self._scorer, self._score = scorer, score
        self.ranked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def rank(self, *texts: Any) -> Any:
        self.ranked += 1
        ranking = self._scorer.rank(*texts)
        if self._score is None:
            return ranking
        return replace(ranking, items=[replace(item, score=self._score) for item in ranking])


def test_documents_have_been_ranked_before_the_first_request(tiny_scorer: Scorer) -> None:
    watched = Watched(tiny_scorer)
    self_test(watched)  # type: ignore[arg-type]
    assert watched.ranked == 1


def test_a_model_whose_ranking_is_not_finite_is_refused(tiny_scorer: Scorer) -> None:
    with pytest.raises(BadCheckpoint, match="finite rank scores"):
        self_test(Watched(tiny_scorer, float("nan")))  # type: ignore[arg-type]


def test_a_model_that_cannot_rank_is_served_with_a_warning(
    tiny_scorer: Scorer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = RankTemplate(context="{query}", item="{document}", labels=(" surely not one token", " no"))
    monkeypatch.setattr(tiny_scorer, "model", replace(tiny_scorer.model, ranker=Ranker("label", label=label)))
    with caplog.at_level(logging.WARNING, "onepass.engine"):
        self_test(tiny_scorer)
    assert "rerank requests will be refused: " in caplog.text


@pytest.fixture(scope="module")
def eight_bit_scorer(smollm2_gguf: Path) -> Iterator[Scorer]:
    with Scorer.load(BUNDLED, dtype="float32", quantize="int8") as scorer:
        yield scorer


def test_a_model_in_eight_bits_is_served(eight_bit_scorer: Scorer) -> None:
    """Its scores drift further than float32's may from the stored ones."""
    assert startup_check.KNOWN[eight_bit_scorer.model.name]
    self_test(eight_bit_scorer)


def test_another_model_in_eight_bits_is_refused(eight_bit_scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    france, italy, germany = startup_check.KNOWN[BUNDLED].scores
    other = startup_check.Known((italy, france, germany))
    monkeypatch.setitem(startup_check.KNOWN, BUNDLED, other)
    with pytest.raises(BadCheckpoint, match=r"its stored reference scores within 0\.15; they differ by 0\.[3-9]"):
        self_test(eight_bit_scorer)
