"""Chips are divided so that most items are scored, and the reason is told."""

import pytest

from capacity.deployments import BF16, work_of
from onepass.capacity.chips import Target
from onepass.capacity.parallelism import Candidate, candidates, choose
from onepass.engine.config import EngineConfig
from onepass.errors import ConfigError
from onepass.models.known import known_config


def divided(model: str, target: str) -> list[Candidate]:
    return candidates(Target.parse(target), known_config(model), BF16, EngineConfig(), work_of(model))


def test_a_model_that_fits_one_chip_is_copied_and_not_split() -> None:
    found = divided("qwen3-0.6b", "v6e:2x4")
    assert [(one.tp, one.deployment.dp) for one in found] == [(1, 8), (2, 4), (4, 2), (8, 1)]
    best, why = choose(found, Target.parse("v6e:2x4"), None)
    assert best.tp == 1
    assert "fits one device" in why
    assert "tp 8 would reach " in why
    assert "items/s" not in why, "the prediction says how fast"
    rates = [one.rate for one in found]
    assert rates == sorted(rates, reverse=True), "each further split costs more sums"


def test_splitting_shortens_a_request_where_links_are_fast() -> None:
    found = divided("qwen3-4b", "h100:4")
    seconds = [one.prediction.seconds for one in found]
    assert seconds == sorted(seconds, reverse=True)


def test_a_model_too_large_for_one_chip_is_split_as_little_as_it_can_be() -> None:
    """Weights of 15 GiB are nearly all of a chip of 16."""
    target = Target.parse("v5e:2x2")
    found = divided("qwen3-8b", "v5e:2x2")
    assert [one.fits for one in found] == [False, True, True]
    assert found[0].refusal is not None
    best, why = choose(found, target, None)
    assert best.tp == 2
    assert "2 devices are the fewest that hold the model" in why
    assert "tp 1 does not fit" in why


def test_a_model_that_fits_nowhere_is_told_as_such() -> None:
    found = divided("qwen3-8b", "l4")
    best, why = choose(found, Target.parse("l4"), None)
    assert not best.fits
    assert "no division fits" in why


def test_a_tp_that_was_asked_for_is_taken_or_refused() -> None:
    found, target = divided("qwen3-0.6b", "v6e:2x2"), Target.parse("v6e:2x2")
    chosen, why = choose(found, target, 4)
    assert chosen.tp == 4
    assert why.startswith("tp 4 was asked for")
    with pytest.raises(ConfigError, match="tp must be one of 1, 2, 4 on v6e:2x2; got 3"):
        choose(found, target, 3)


def test_a_split_that_the_heads_do_not_allow_is_not_offered() -> None:
    """SmolLM2-135M has nine query heads."""
    assert [one.tp for one in divided("smollm2-135m", "v5e:4x4")] == [1, 2, 4, 8]
