"""`onepass serve`: what its options become."""

import pytest

from onepass.cli.main import build_parser
from onepass.cli.serve import options_of
from onepass.errors import ConfigError
from onepass.server.config import ServerOptions


def options(*words: str) -> ServerOptions:
    return options_of(build_parser().parse_args(["serve", *words]), "")


def test_served_names_keep_their_order_and_stand_once() -> None:
    names = ("--served-model-name", "b", "--served-model-name", "a", "--served-model-name", "b")
    assert options(*names).served_names == ("b", "a")
    assert options().served_names == ()


def test_a_served_name_is_not_empty() -> None:
    with pytest.raises(ConfigError, match="--served-model-name must not be empty"):
        options("--served-model-name", " ")


def test_spans_are_made_where_they_are_asked_for() -> None:
    assert options("--tracing").tracing
    assert not options().tracing
