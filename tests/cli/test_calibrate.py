"""`onepass calibrate`: labelled questions in, a stored fit and a page out; the fit is used and named afterwards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onepass.cli.main import main
from onepass.decisions.calibration import Calibration, TypeCalibration
from onepass.decisions.calibration_store import find_calibration, read_calibration, save_calibration, stored_path
from onepass.errors import ConfigError
from onepass.scorer import Scorer

TEAM = {"type": "choice", "instructions": "Which team?", "choices": ["shoes", "coats", "films"]}


def labelled(count: int) -> str:
    rows: list[dict[str, Any]] = []
    for i in range(count):
        state = f"Please recommend number {i}."
        rows.append({"state": state, "question": TEAM, "answer": TEAM["choices"][i % 3]})
        rows.append({"state": state, "question": {"type": "noul", "instructions": "Even?"}, "answer": i % 2 == 0})
    rows.append({"state": "x", "question": {"type": "score", "levels": ["low", "high"]}, "answer": 1})
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("qwen3"))


def test_a_fit_is_stored_reported_and_used(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "labelled.jsonl").write_text(labelled(24), encoding="utf-8")
    out, report = tmp_path / "fit.json", tmp_path / "report.html"
    arguments = [model, str(tmp_path / "labelled.jsonl"), "--out", str(out), "--report", str(report), "--quiet"]
    assert main(["calibrate", *arguments, "--dtype", "float32"]) == 0
    shown = capsys.readouterr().out
    assert "score: 1 questions are too few for a fit" in shown
    assert "→" in shown
    calibration = read_calibration(out)
    assert set(calibration.types) == {"choice", "predicate"}
    assert calibration.name in shown
    assert calibration.fitted["choice"]["after"]["log_loss"] < calibration.fitted["choice"]["before"]["log_loss"]
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert calibration.name in page
    with Scorer.load(model, dtype="float32", calibration=out, keep_programs=False) as scorer:
        result = scorer.decide("Please recommend number 3.", [TEAM])
        raw = scorer.decide("Please recommend number 3.", [TEAM], calibrated=False)
    assert (result.calibration, raw.calibration) == (calibration.name, None)
    assert result[0].probabilities != raw[0].probabilities


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: must be a JSON object"),
        ('{"state": "x"}', "line 1: must have state, question and answer"),
        (json.dumps({"state": "x", "question": {"type": "poem"}, "answer": 1}), "line 1: questions[0].type must be"),
        (json.dumps({"state": "x", "question": TEAM, "answer": "tea"}), "answer must be one of ['shoes'"),
        (json.dumps({"state": "x", "question": TEAM, "answer": "shoes"}), "needs at least 20 labelled questions"),
    ],
)
def test_a_wrong_line_is_named(
    model: str, tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labelled.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    assert main(["calibrate", model, str(path), "--out", str(tmp_path / "x.json"), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


MINE = Calibration("mine", {"choice": TypeCalibration(2.0, (0.5, -0.5))}, "org/name", {"choice": {}})


def test_a_stored_calibration_is_read_again(tmp_path: Path) -> None:
    path = stored_path("org/name", tmp_path)
    assert path == tmp_path / "org-name.json"
    save_calibration(MINE, path)
    assert find_calibration("org/name", None, tmp_path) == MINE
    assert find_calibration("org/other", None, tmp_path) is None


def test_a_models_own_temperatures_are_read_and_the_users_fit_goes_first(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "model"
    folder.mkdir()
    (folder / "decision_config.json").write_text(json.dumps({"format_version": 1, "temperature": 1.5}))
    found = find_calibration("m", folder, store)
    assert found is not None
    assert [found.of(kind).temperature for kind in ("predicate", "choice", "score")] == [1.5] * 3
    (folder / "temperatures.json").write_text(json.dumps({"noul": 2.0, "choice": 3.0, "other": "x"}))
    found = find_calibration("m", folder, store)
    assert found is not None
    assert found.name == "the model's temperatures.json"
    assert [found.of(kind).temperature for kind in ("predicate", "choice", "score")] == [2.0, 3.0, 1.0]
    save_calibration(MINE, stored_path("m", store))
    assert find_calibration("m", folder, store) == MINE


@pytest.mark.parametrize(
    "text", ["{", '{"format": "other"}', '{"format": "onepass-calibration-1", "name": "x", "types": {"poem": {}}}']
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json"):
        read_calibration(tmp_path / "x.json")


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), "2", True])
def test_a_temperature_is_a_number_above_0(temperature: Any) -> None:
    with pytest.raises(ConfigError):
        TypeCalibration(temperature)
