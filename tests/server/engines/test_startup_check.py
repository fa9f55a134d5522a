"""Before a model is served: it scores alike by every road, and it has ranked."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from onepass.errors import BadCheckpoint
from onepass.loading.rerankers.templates import Ranker, RankTemplate
from onepass.scorer import Scorer
from onepass.server.engines.startup_check import self_test


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
