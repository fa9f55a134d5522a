"""`benchmarks/start_times.py`: what a start has kept is found by the next, and what was compiled again is told."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_scripts import benchmark_script

MODEL = "random:smollm2-135m?layers=1&seed=1"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with benchmark_script("start_times") as module:
        yield module


@pytest.fixture
def told(script: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(script, "commit", lambda: "0123456789abcdef")

    def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(script.sys, "argv", ["start_times.py", MODEL, "--dtype", "float32", *words])
        status = script.main()
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.extended
def test_a_second_start_and_one_after_compile_compile_nothing(
    told: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = told(capsys, "--again", "1", "--out", str(tmp_path))
    assert (status, result["passed"]) == (0, True)
    assert result["first_start"]["compiled"] > 0
    later = [*result["second_start"], result["start_after_compile"]]
    assert [one["compiled"] + one["compiled_after"] for one in later] == [0, 0]
    assert all(0 < one["ready_seconds"] < one["answer_seconds"] for one in [result["first_start"], *later])
    (file,) = tmp_path.iterdir()
    assert (
        json.loads(file.read_text())["command"] == f"python benchmarks/start_times.py {MODEL} --dtype float32 --again 1"
    )


def test_a_start_that_compiles_again_is_told(
    script: Any, told: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The negative control: programs that the next start does not find."""
    started = {"ready_seconds": 1.0, "answer_seconds": 1.1, "compiled": 10, "compiled_after": 0}
    monkeypatch.setattr(script, "start", lambda *_, **__: started)
    monkeypatch.setattr(script, "compile_ahead", lambda *_: 1.0)
    status, result = told(capsys)
    assert (status, result["passed"]) == (1, False)


def test_folders_of_its_own_stand_for_the_users_cache(script: Any, tmp_path: Path) -> None:
    given = script.environment(tmp_path)
    assert given["XDG_CACHE_HOME"] == str(tmp_path)
    assert given["PATH"] == os.environ["PATH"]
