"""The public calls show every parameter, and the three faces show the same: an editor and `help()` see them."""

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest

from onepass import AsyncClient, Client, Scorer, ScoreRequest
from onepass.engine.config import EngineConfig, EngineOptions
from onepass.engine.ranking import RankRequest


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(function).parameters.items())[1:])


@pytest.mark.parametrize("face", [Scorer, Client, AsyncClient])
def test_score_takes_the_fields_of_a_request(face: Any) -> None:
    there = parameters(face.score)
    fields = {field.name: field for field in dataclasses.fields(ScoreRequest)}
    assert list(there) == list(fields)
    assert {name: parameter.default for name, parameter in there.items()} == {
        name: field.default for name, field in fields.items()
    }
    positional = [name for name, one in there.items() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["query", "items", "labels"]


@pytest.mark.parametrize("name", ["score", "rank", "decide", "prefill"])
def test_the_clients_have_the_scorers_signatures(name: str) -> None:
    first = inspect.signature(getattr(Scorer, name))
    for other in (Client, AsyncClient):
        assert inspect.signature(getattr(other, name)).parameters == first.parameters


@pytest.mark.parametrize("face", [Scorer, Client, AsyncClient])
def test_rank_takes_the_fields_of_a_rank_request(face: Any) -> None:
    there = parameters(face.rank)
    assert there.pop("documents").default is None
    assert list(there) == [field.name for field in dataclasses.fields(RankRequest)]


def test_engine_options_are_the_engines_config() -> None:
    options, config = get_type_hints(EngineOptions), get_type_hints(EngineConfig)
    assert options == config
