"""A benchmark's document is kept under the commit that it measured, or not at all."""

import json
from pathlib import Path

import pytest

from onepass.bench import document
from onepass.cli.main import main
from onepass.errors import ConfigError
from onepass.evidence import provenance

MADE = {
    "object": "benchmark",
    "model": "smollm2-135m",
    "date": "2026-11-17T02:00:00+00:00",
    "commit": "0123456789abcdef",
    "dirty": False,
    "hardware": {"device": "some CPU", "cores": 2},
    "settings": {"workload": "small"},
}


def test_a_document_is_named_by_its_commit_and_read_again(tmp_path: Path) -> None:
    path = document.write_json(MADE, tmp_path / "new")
    assert path.name == "bench-small-smollm2-135m-some-cpu-2-cores-20261117t020000-0123456789.json"
    assert document.read_json(path) == json.loads(path.read_text()) == MADE


@pytest.mark.parametrize("state", [None, ""])
def test_a_document_without_a_commit_is_not_written(state: str | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no git checkout"):
        document.write_json({**MADE, "commit": state}, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_refuses_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provenance, "commit", lambda: None)
    assert main(["bench", "no-such-model", "--out", str(tmp_path)]) == 2
    assert "--out needs the commit" in capsys.readouterr().err
