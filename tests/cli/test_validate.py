"""`onepass validate`: the table, the verdict, the JSON on the last line, the files, and the exit status."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.cli.main import main
from onepass.engine.backends import CPU_PAGE
from onepass.engine.kernels import without_isolation
from onepass.validate import harness as rig
from onepass.validate import suite
from onepass.validate.check import Case, Outcome, skipped
from onepass.validate.matrix import matrix_models

SMALL = ["--items", "8", "--query-tokens", "40", "--item-tokens", "8", "--modes", "packed/segment", "--quiet"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Programs of one test serve the next, and none of the user's."""
    return [*SMALL, "--programs-dir", str(tmp_path_factory.mktemp("programs"))]


def test_a_sound_model_gets_a_table_a_verdict_and_files(
    checkpoint: Callable[[str], Path], small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either spelling of a mode is read, and one is printed."""
    model = str(checkpoint("qwen3"))
    status = main(["validate", model, *small, "--dtype", "float32", "--torch", "off", "--json", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert status == 0, lines
    document = json.loads(lines[-1])
    assert lines[-2].startswith("PASSED qwen3 float32: ")
    (run,) = document["runs"]
    assert document["passed"] is run["passed"] is True
    assert {"onepass", "jax", "jaxlib", "numpy", "python"} <= run["versions"].keys()
    assert run["settings"]["counts"] == [8]
    assert run["hardware"]["platform"]
    isolation = [o for o in run["outcomes"] if o["name"] == "same-length isolation"]
    assert [o["case"] for o in isolation] == ["packed-segment, 8 items, 8 mutations"]
    assert {o["max_difference"] for o in isolation} == {0.0}
    (written,) = tmp_path.glob("validate-qwen3-float32-*.json")
    assert json.loads(written.read_text())["outcomes"] == run["outcomes"]
    page = written.with_suffix(".md").read_text()
    assert page.startswith("# PASSED qwen3 float32")
    assert page.count("\n| ") == len(run["outcomes"]) + 1


@pytest.mark.parametrize(
    ("checks", "some"),
    [
        ("isolation", "same-length isolation"),
        ("modes", "mode against serial"),
        ("continuations", "items × branches against sequences"),
    ],
)
def test_only_the_checks_that_are_asked_for_are_run(
    checkpoint: Callable[[str], Path],
    small: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    checks: str,
    some: str,
) -> None:
    """Which ones it is; what they compute is in the whole run above."""

    def only_named(case: Case, *rigs: object) -> Outcome:
        return skipped(case.name, f"{case.way}, {case.detail}", case.tolerance, "not computed")

    monkeypatch.setattr(suite, "run_case", only_named)
    model = str(checkpoint("qwen3"))
    assert main(["validate", model, *small, "--dtype", "float32", "--checks", checks, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    names = {o["name"] for o in run["outcomes"]}
    known = {"against PyTorch", "same-length isolation", "mode against serial", "items × branches against sequences"}
    assert names & known == {some}


def test_pytorch_alone_is_compared_or_the_command_fails(
    checkpoint: Callable[[str], Path],
    small: list[str],
    reference_python: Path | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that checks nothing must not pass."""
    alone = ["validate", str(checkpoint("qwen3")), *small, "--dtype", "float32", "--checks", "torch"]
    assert main([*alone, "--torch", "off"]) == 2
    assert "got torch alone, and torch is off" in capsys.readouterr().err
    monkeypatch.setattr(suite, "find_torch_python", lambda settings: None)
    assert main(alone) == 2
    assert "PyTorch is required and was not found" in capsys.readouterr().err
    monkeypatch.undo()
    if reference_python is None:
        pytest.skip("no PyTorch here")
    assert main([*alone, "--torch-python", str(reference_python), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert [(o["name"], o["status"]) for o in run["outcomes"]] == [("against PyTorch", "passed")] * 2


def test_leaking_attention_is_exit_status_1(
    checkpoint: Callable[[str], Path],
    small: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine itself is broken: what should be sound is built with a plain causal mask."""

    def build(*arguments: object) -> object:
        return Scorer(*arguments[:3], without_isolation(CPU_PAGE))  # type: ignore[arg-type, call-arg]

    Scorer = rig.Scorer
    monkeypatch.setattr(rig, "Scorer", build)
    assert main(["validate", str(checkpoint("qwen3")), *small, "--dtype", "float32", "--checks", "isolation"]) == 1
    out = capsys.readouterr().out
    assert "failed: same-length isolation (packed-segment, 8 items, 8 mutations): the largest difference" in out
    assert out.splitlines()[-1].startswith("FAILED qwen3 float32: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["some/model", "--matrix"], "give MODEL or --matrix, not both"),
        (["--layers", "2"], "--layers goes with --matrix"),
        (["--query-tokens", "5"], "query tokens must be at least 32"),
        (["--quick", "--torch-python", "no-such-python", "--offline", "--cache-dir", "nowhere"], "offline"),
    ],
)
def test_mistakes_are_status_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_check_that_is_unknown_is_told_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["validate", "--checks", "torch,speed"])
    said = capsys.readouterr().err
    assert "--checks: must be some of modes,isolation,continuations,torch; got 'speed'" in said
    assert "(see `onepass validate --help`)" in said


def test_the_matrix_has_the_shapes_and_the_real_model() -> None:
    assert matrix_models(2) == [
        "random:qwen3-0.6b?layers=2",
        "random:qwen3-1.7b?layers=2",
        "random:qwen3-4b?layers=2",
        "random:qwen2.5-1.5b?layers=2",
        "random:qwen2.5-3b?layers=2",
        "smollm2-135m",
    ]
    assert matrix_models(None)[0] == "random:qwen3-0.6b"
