"""`onepass compile` keeps every program of a model, says which were there, and refuses an unsafe folder."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onepass.cli.main import build_parser, main
from onepass.cli.parser import engine_options


class StandIn:
    """In place of `Scorer`: notes what it is loaded with, and has two programs of one rung and one of none."""

    loaded: dict[str, Any]

    @classmethod
    def load(cls, model: str, **options: Any) -> "StandIn":
        cls.loaded = {"model": model, **options}
        return cls()

    def compile(self, progress: Any) -> list[Any]:
        progress("compile", 1, 2)
        return [program("step-2048", 2048, 1.5, 934_000, "compiled"), program("copy", 0, 0.02, 12_000, "disk")]

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def program(name: str, tokens: int, seconds: float, size: int, source: str) -> Any:
    from onepass.engine.programs.compiled import CompiledProgram

    return CompiledProgram(name, tokens, seconds, size, source)  # type: ignore[arg-type]


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    monkeypatch.setitem(sys.modules, "onepass.scorer", SimpleNamespace(Scorer=StandIn))
    return StandIn


def test_table_says_what_was_compiled_and_what_was_there(
    scorer: type[StandIn], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "some-model", "--programs-dir", str(tmp_path / "new")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "step-2048 2,048 934 kB 1.50 compiled" in lines
    assert "copy 12 kB 0.02 already there" in lines
    assert lines[-1] == f"2 programs, 946 kB, 1.5 s; kept in {tmp_path / 'new'}"


def test_json_holds_every_program(scorer: type[StandIn], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "some-model", "--programs-dir", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["object"], document["model"], document["folder"]) == ("programs", "some-model", str(tmp_path))
    assert document["programs"][1] == {
        "name": "copy", "tokens": 0, "seconds": 0.02, "bytes": 12_000, "source": "disk",
    }  # fmt: skip


def test_engine_options_reach_the_scorer_as_those_of_serve(scorer: type[StandIn], tmp_path: Path) -> None:
    options = ["--dtype", "float32", "--tp", "2", "--cache-bytes", "0", "--max-batch-tokens", "64", "--offline"]
    assert main(["compile", "m", "--programs-dir", str(tmp_path), "--quiet", *options]) == 0
    loaded = scorer.loaded
    assert (loaded["model"], loaded["dtype"], loaded["offline"], loaded["warm_up"]) == ("m", "float32", True, False)
    assert (loaded["tp"], loaded["cache_bytes"], loaded["max_batch_tokens"]) == (2, 0, 64)
    assert loaded["programs_dir"] == tmp_path
    of_serve = build_parser().parse_args(["serve", "m", *options])
    of_compile = build_parser().parse_args(["compile", "m", *options])
    assert engine_options(of_serve) == engine_options(of_compile) == {"tp": 2, "cache_bytes": 0, "max_batch_tokens": 64}


def test_program_that_is_not_kept_is_status_1(
    scorer: type[StandIn], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer, "compile", lambda *_: [program("step-64", 64, 1.0, 0, "compiled")])
    assert main(["compile", "m", "--programs-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "not kept" in printed.out
    assert printed.err == f"onepass: not kept in {tmp_path}: step-64\n"


def test_folder_that_others_may_write_to_is_refused_before_anything_is_loaded(
    scorer: type[StandIn], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer, "load", None)
    tmp_path.chmod(0o777)
    assert main(["compile", "m", "--programs-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"chmod 700 {tmp_path}" in error
    assert error.count("\n") == 1
