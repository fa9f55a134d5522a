"""`onepass decide`: questions from files, answers as bars or JSON, mistakes in one line."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onepass.cli.decide import read_document
from onepass.cli.main import main
from onepass.decisions.calibration import Calibration, TypeCalibration
from onepass.decisions.calibration_store import save_calibration
from onepass.decisions.question_format import questions_of
from onepass.errors import RequestError
from server.running import Server, serving

QUESTIONS = """\
urgent: {type: predicate, instructions: "Is this urgent?"}
team:
  type: choice
  instructions: Which team?
  choices: {shoes: sizes, coats: null}
tone: {type: score, levels: [calm, furious]}
"""


@pytest.fixture
def model(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("qwen3"))


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.yaml"
    path.write_text(QUESTIONS, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def server(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real one, with a calibration file."""
    file = tmp_path_factory.mktemp("calibration") / "mine.json"
    save_calibration(Calibration("mine", {"predicate": TypeCalibration(4.0)}), file)
    options = ("--dtype", "float32", "--max-batch-tokens", "256", "--calibration", str(file))
    with serving(str(checkpoint("qwen3")), *options) as running:
        yield running


def decide(*arguments: str) -> int:
    return main(["decide", *arguments, "--quiet", "--calibration", "none", "--dtype", "float32"])


def test_bars_show_every_option(model: str, questions: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert decide(model, "--state", "It was late.", "--questions", questions, "--permutations", "2") == 0
    shown = capsys.readouterr().out
    for text in ("urgent: Is this urgent?", "P(yes) = 0.", "coats", "furious", "spread 0.", "6 reads in one pass", "█"):
        assert text in shown
    assert "warning: urgent: the labels of its options hold" in shown


def test_json_is_one_document_with_a_row_per_candidate(
    model: str, questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps([{"role": "user", "content": "It was late."}]), encoding="utf-8")
    arguments = ("--state-file", str(state), "--questions", questions, "--json")
    assert decide(model, *arguments, "--candidates", "a coat", "a film") == 0
    document = json.loads(capsys.readouterr().out)
    assert [[answer["name"] for answer in row] for row in document["answers"]] == [["urgent", "team", "tone"]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--predicates", "Is it?"], "--state or --state-file is required"),
        (["--state", "x"], "--questions or --predicates is required"),
        (["--state", "x", "--questions", "no-such-file.yaml"], "cannot read no-such-file.yaml"),
        (["--state", "", "--predicates", "Is it?"], "state must not be empty"),
        (["--state", "word " * 600, "--predicates", "Is it?"], "the state has "),
        (["--state", "x", "--predicates", " "], "questions[0] asks nothing"),
        (["--state", "x", "--predicates", "Is it?", "--candidates", ""], "candidates must be texts that are not empty"),
        (["--state", "\udcff", "--predicates", "Is it?"], "--state must be UTF-8"),
        (["--state", "x", "--predicates", "\udcff"], "--predicates must be UTF-8"),
        (["--state", "x", "--predicates", "Is it?", "--candidates", "\udcff"], "--candidates must be UTF-8"),
    ],
)
def test_a_mistake_is_one_line(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decide(model, *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_words_of_yaml_1_1_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text(
        "late: {type: predicate, yes: it is, no: it is not}\n"
        "answer: {type: choice, choices: [yes, no, on, 2024-01-01, true]}\n"
        "no: {type: score, levels: {off: a, on: b}}\n"
    )
    late, answer, level = questions_of(read_document(str(path), "questions"))
    assert [option.description for option in late.options] == ["it is", "it is not"]
    assert [option.value for option in answer.options] == ["yes", "no", "on", "2024-01-01", True]
    assert (level.name, [option.value for option in level.options]) == ("no", ["off", "on"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {type: noul}\na: {type: noul}\n", "the key 'a' stands twice"),
        ('{"a": {"type": "noul"}, "a": {"type": "noul"}}', "the key 'a' stands twice"),
        ("[" * 100_000, "maximum recursion depth"),
    ],
)
def test_what_a_file_of_questions_may_not_hold(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        read_document(str(path), "questions")


def test_merged_keys_of_yaml_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text("a: &a {type: noul, instructions: late}\nb: {<<: *a, instructions: early}\n")
    assert [one.instructions for one in questions_of(read_document(str(path), "questions"))] == ["late", "early"]


def test_a_state_file_that_is_nested_too_deeply_is_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text("[" * 100_000)
    assert decide(model, "--state-file", str(path), "--predicates", "Is it?") == 2
    assert "state.json must be JSON" in capsys.readouterr().err


def test_a_file_that_is_no_yaml_is_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "questions.yaml"
    path.write_text("{a: [", encoding="utf-8")
    assert decide(model, "--state", "x", "--questions", str(path)) == 2
    assert "questions.yaml must be YAML or JSON" in capsys.readouterr().err


def test_a_server_answers_what_the_model_itself_does_and_names_its_calibration(
    model: str, questions: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--state", "It was late.", "--questions", questions, "--json")

    def answers(*arguments: str) -> dict[str, Any]:
        assert main(["decide", *arguments, *asked]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    def numbers(document: dict[str, Any]) -> list[float]:
        return [option["probability"] for answer in document["answers"] for option in answer["probabilities"]]

    here = answers(model, "--quiet", "--calibration", "none", "--dtype", "float32")
    there = answers("--url", server.url, "--calibration", "none")
    assert numbers(there) == pytest.approx(numbers(here), abs=1e-5)
    assert there["calibration"] is None
    calibrated = answers("--url", server.url)
    assert calibrated["calibration"] == "mine"
    assert abs(numbers(calibrated)[0] - 0.5) < abs(numbers(here)[0] - 0.5), "a temperature of 4 flattens"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["some-model"], "leave out MODEL"),
        (["--dtype", "float32"], "leave out --dtype"),
        (["--calibration", "mine.json"], "leave out --calibration"),
    ],
)
def test_options_of_a_model_are_refused_beside_a_server(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--state", "x", "--predicates", "Is it?", "--url", "http://127.0.0.1:9"]
    assert main(["decide", *arguments, *asked]) == 2
    assert message in capsys.readouterr().err
