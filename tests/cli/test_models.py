"""`onepass models` in both its forms."""

import json
from pathlib import Path

import pytest

from onepass.cli.main import main


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
    assert main(["models", "--cache-dir", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["smollm2-135m", "bundled", "135", "M", "not", "yet", "Apache-2.0"] in [row[:7] for row in rows]
    assert ["random:qwen3-1.7b", "random", "1.72", "B", "-", "none"] in [row[:6] for row in rows]
