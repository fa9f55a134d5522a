"""The table shows items in their order with their best label, labels with their spaces, and users' texts untouched."""

from typing import Any

import pytest

from onepass.api import Continuation, ScoreRequest, ScoreResult, Timings, Usage
from onepass.cli.tables.score import (
    TableOptions,
    best_first,
    continuation_texts,
    option_probabilities,
    print_result,
)


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


def printed(capsys: pytest.CaptureFixture[str], shown: ScoreResult, **options: Any) -> list[str]:
    request = ScoreRequest(query="a query\nof two lines", items=shown.items, continuations=options.pop("texts", None))
    print_result(request, shown, TableOptions(**options))
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_items_keep_their_order_and_the_best_label_of_each_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    query, headings, _, *rows, how = printed(capsys, result())
    assert query == "query a query of two lines"
    assert headings == 'item " yes" " no" best label mass'
    assert rows == [
        'first [bold]item[/bold] :smile: 0.2000 0.7000 " no" 0.9000',
        'second 0.9000 0.0500 " yes" 0.9500',
        '(empty) 0.2000 0.1000 " yes" 0.3000',
    ]
    assert how == "tiny · mode serial · 57 ms (device 12 ms) · 1,234 tokens, 2,345 computed"


def test_a_sorted_table_says_by_which_label_and_ties_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert best_first(result()) == [(1, 0.9), (0, 0.2), (2, 0.2)]
    _, by, headings, _, *rows, _ = printed(capsys, result(), sort=1)
    assert by == 'sorted by " no"'
    assert headings.startswith("rank item")
    assert [row.split()[:2] for row in rows] == [["1", "first"], ["2", "(empty)"], ["3", "second"]]


def test_the_reason_of_a_mode_is_for_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, result(), verbose=True)[-1] == "why serial: asked for"


@pytest.mark.parametrize(("top", "more"), [(1, "2 more items · "), (2, "1 more item · "), (3, "tiny · ")])
def test_top_hides_the_rest_and_says_how_many(capsys: pytest.CaptureFixture[str], top: int, more: str) -> None:
    _, by, _, _, row, *_, how = printed(capsys, result(), top=top)
    assert by == 'sorted by " yes"'
    assert row.startswith("1 second")
    assert how.startswith(more)


def test_ids_stand_before_their_items(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, result(), ids=["x1", "x2", 3])
    assert rows[1].startswith("id item")
    assert any(row.startswith("x2 second") for row in rows)


def test_items_with_their_own_labels_show_them_in_their_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, result(labels=[[" yes", " no"], [" Paris", " Rome"], [" yes", "\n"]]))
    assert 'second " Paris" 0.9000 " Rome" 0.0500 " Paris" 0.9500' in rows
    assert any('"\\n" 0.1000' in row for row in rows)


def without_labels(continuations: list[list[Continuation]]) -> ScoreResult:
    none: list[list[Any]] = [[] for _ in continuations]
    return result(scores=none, labels=none, label_token_ids=none, continuations=continuations)


def test_continuations_are_shown_with_their_texts_and_shares(capsys: pytest.CaptureFixture[str]) -> None:
    row = [Continuation(-3.0, (-1.0, -2.0)), Continuation(-1.5, (-1.5,))]
    _, headings, _, *rows, _ = printed(capsys, without_labels([row] * 3), texts=[" on the mat", " x"])
    assert headings == "item continuation log P mean P among them best"
    assert rows[2:4] == ['second " on the mat" -3.000 -1.500 0.1824', '" x" -1.500 -1.500 0.8176 *']


def test_items_with_their_own_continuations_show_those(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[Continuation(-value, (-value,)) for value in values] for values in ([1.0], [2.0, 3.0], [1.0])]
    shown = printed(capsys, without_labels(rows), texts=[[" a"], [" b", " c"], [" d"]], sort=0)
    assert shown[1] == 'sorted by log P of " a"'
    assert '3 second " b" -2.000 -2.000 0.7311 *' in shown
    assert '" c" -3.000 -3.000 0.2689' in shown
    assert option_probabilities(rows[1]) == [pytest.approx(0.7311, abs=1e-4), pytest.approx(0.2689, abs=1e-4)]


def test_continuations_of_token_ids_are_counted() -> None:
    shared = ScoreRequest(query=[1], items=[[2], [3]], continuations=[[4, 5], [6]])
    own = ScoreRequest(query=[1], items=[[2], [3]], continuations=[[[4, 5]], [[6], [7]]])
    assert continuation_texts(shared, 1) == ["<2 tokens>", "<1 tokens>"]
    assert [continuation_texts(own, i) for i in (0, 1)] == [["<2 tokens>"], ["<1 tokens>", "<1 tokens>"]]


def test_no_items_are_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    empty = result(scores=[], labels=[], label_token_ids=[], label_mass=[], items=[], logits=[])
    assert printed(capsys, empty)[-1].startswith("tiny · mode serial")


def test_a_small_probability_is_not_shown_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, result(scores=[[6.2e-06, 0.7], [0.9, 0.0], [0.2, 0.1]]))
    assert any("6.2e-06 0.7000" in row for row in rows)
    assert any("second 0.9000 0.0000" in row for row in rows)
