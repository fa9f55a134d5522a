"""The table shows items best first, labels with their spaces, and users' texts untouched."""

import pytest

from onepass.api import Continuation, ScoreRequest, ScoreResult, Timings, Usage
from onepass.cli.score_table import best_first, print_result


def result(**changes: object) -> ScoreResult:
    usual: dict[str, object] = {
        "scores": [[0.2, 0.7], [0.9, 0.05], [0.2, 0.1]],
        "logprobs": None,
        "logits": [[0.0, 0.0]] * 3,
        "label_mass": [0.9, 0.95, 0.3],
        "labels": [[" yes", " no"]] * 3,
        "label_token_ids": [[1, 2]] * 3,
        "usage": Usage(prompt_tokens=1234, computed_tokens=2345),
        "timings": Timings(total_ms=56.7, device_ms=12.3),
        "mode": "serial",
        "reason": "asked for",
        "model": "tiny",
        "items": [" first [bold]item[/bold] :smile:", "second", ""],
    }
    return ScoreResult(**(usual | changes))  # type: ignore[arg-type]


def printed(capsys: pytest.CaptureFixture[str], shown: ScoreResult, top: int | None = None) -> list[str]:
    print_result(ScoreRequest(query="a query\nof two lines", items=shown.items), shown, top)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_items_are_ranked_by_their_first_label_and_ties_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert best_first(result()) == [(1, 0.9), (0, 0.2), (2, 0.2)]
    query, headings, _, *rows, how, why = printed(capsys, result())
    assert query == "query a query of two lines"
    assert headings == 'rank item " yes" " no" label mass'
    assert rows == [
        "1 second 0.9000 0.0500 0.9500",
        "2 first [bold]item[/bold] :smile: 0.2000 0.7000 0.9000",
        "3 (empty) 0.2000 0.1000 0.3000",
    ]
    assert how == "tiny · mode serial · 57 ms (device 12 ms) · 1,234 tokens, 2,345 computed"
    assert why == "why serial: asked for"


def test_top_hides_the_rest_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    *_, row, how, _ = printed(capsys, result(), top=1)
    assert row.startswith("1 second")
    assert how.startswith("2 more items · ")


def test_items_with_their_own_labels_show_them_in_their_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, result(labels=[[" yes", " no"], [" Paris", " Rome"], [" yes", "\n"]]))
    assert '1 second " Paris" 0.9000 " Rome" 0.0500 0.9500' in rows
    assert any('"\\n" 0.1000' in row for row in rows)


def test_continuations_alone_are_ranked_by_their_probability(capsys: pytest.CaptureFixture[str]) -> None:
    continuations = [[Continuation(value, (value,))] for value in (-3.0, -1.5, -2.0)]
    shown = result(scores=[[], [], []], labels=[[], [], []], label_token_ids=[[], [], []], continuations=continuations)
    _, headings, _, *rows, _, _ = printed(capsys, shown)
    assert headings == "rank item log P 1"
    assert rows[0] == "1 second -1.500"


def test_no_items_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    empty = result(scores=[], labels=[], label_token_ids=[], label_mass=[], items=[], logits=[])
    assert printed(capsys, empty)[-2].startswith("tiny · mode serial")


def test_a_small_probability_is_not_shown_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, result(scores=[[6.2e-06, 0.7], [0.9, 0.0], [0.2, 0.1]]))
    assert any("6.2e-06 0.7000" in row for row in rows)
    assert "1 second 0.9000 0.0000 0.9500" in rows
