"""`onepass serve`: what its options become."""

from pathlib import Path

import pytest

from onepass.cli.main import build_parser
from onepass.cli.serve import options_of
from onepass.decisions.calibration import Calibration, TypeCalibration
from onepass.decisions.calibration_store import save_calibration
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


def test_a_calibration_is_read_before_an_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (options().engine.calibration, options("--calibration", "none").engine.calibration) == ("auto", "none")
    file = tmp_path / "mine.json"
    save_calibration(Calibration("mine", {"predicate": TypeCalibration(2.0)}), file)
    monkeypatch.chdir(tmp_path)
    assert options("--calibration", "mine.json").engine.calibration == str(file)
    with pytest.raises(ConfigError, match=r"there is no other\.json"):
        options("--calibration", "other.json")
    file.write_text("[]")
    with pytest.raises(ConfigError):
        options("--calibration", "mine.json")
