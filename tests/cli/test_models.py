"""`onepass models` in both its forms."""

import json
from pathlib import Path

import pytest

from onepass.cli.main import main
from onepass.loading.catalogue import SUGGESTIONS
from onepass.models.published import PUBLISHED


def test_the_list_as_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "--cache-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    models = {model["name"]: model for model in json.loads(out)["models"]}
    assert err == ""
    assert models["smollm2-135m"] == {
        "name": "smollm2-135m",
        "kind": "bundled",
        "parameters": 134_515_008,
        "cached": False,
        "size_bytes": None,
        "licence": "Apache-2.0",
        "note": None,
        "use": "onepass score smollm2-135m",
    }
    assert models["random:qwen3-8b"]["licence"] is None


def test_the_list_as_a_table_has_a_row_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--all", "--cache-dir", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["smollm2-135m", "bundled", "135", "M", "not", "yet", "Apache-2.0"] in [row[:7] for row in rows]
    assert ["random:qwen3-1.7b", "random", "1.72", "B", "-", "none"] in [row[:6] for row in rows]


def test_random_shapes_are_one_line_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--cache-dir", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "random:" in line]
    assert len(lines) == 1
    assert "135 M to 8.19 B" in lines[0]


def test_every_task_has_a_model_on_one_line_of_100_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onepass.cli.terminal.output.WIDTH_WITHOUT_TERMINAL", 100)
    assert main(["models", "--cache-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    for suggestion in SUGGESTIONS:
        row = next(line for line in lines if line.split()[: len(suggestion.task.split())] == suggestion.task.split())
        assert suggestion.name in row
        assert suggestion.how in row


def test_suggested_models_are_ones_that_onepass_computes() -> None:
    known = {s.name: s.parameters for s in SUGGESTIONS if s.name in PUBLISHED}
    assert known == {name: PUBLISHED[name].num_parameters for name in known}
    assert len(known) >= 3
    assert {s.task for s in SUGGESTIONS} == {"classify, judge", "rerank", "multiple choice", "guard"}
