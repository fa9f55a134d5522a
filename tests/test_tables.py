"""Results as rows, DataFrames and notebook cells."""

import sys
from html.parser import HTMLParser
from typing import Any

import pandas
import pytest

from onepass import ConfigError, Continuation, RankedItem, Ranking, ScoreResult, Timings, Usage


def result(**changed: Any) -> ScoreResult:
    fields: dict[str, Any] = {
        "scores": [[0.25, 0.7], [0.1, 0.02]],
        "logprobs": None,
        "logits": [[], []],
        "label_mass": [0.95, 0.12],
        "labels": [[" yes", "<no>"]] * 2,
        "label_token_ids": [[1, 2]] * 2,
        "usage": Usage(10),
        "timings": Timings(total_ms=3.0),
        "mode": "packed",
        "reason": "",
        "model": "tiny & small",
        "items": ["a <b>", "b"],
    }
    return ScoreResult(**{**fields, **changed})


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.styles: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.styles.append(dict(attrs).get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def cells(text: str) -> Cells:
    parser = Cells()
    parser.feed(text)
    parser.close()
    return parser


def test_a_row_per_item_names_each_label_and_the_best() -> None:
    rows = result().to_rows()
    assert rows[0] == {"item": "a <b>", " yes": 0.25, "<no>": 0.7, "best": "<no>", "label_mass": 0.95}
    assert rows[1]["best"] == " yes"
    assert len(result()) == 2


def test_continuations_are_columns_in_their_order() -> None:
    two = [[Continuation(-1.0, (-1.0,)), Continuation(-2.0, (-2.0,))]] * 2
    rows = result(scores=[[], []], labels=[[], []], label_mass=None, continuations=two).to_rows()
    assert rows[0] == {"item": "a <b>", "logprob 0": -1.0, "logprob 1": -2.0}


def test_a_notebook_shows_shaded_cells_and_nothing_unescaped() -> None:
    shown = cells(result()._repr_html_())
    assert shown.rows[0] == ["item", " yes", "<no>", "best", "label_mass"]
    assert shown.rows[1] == ["a <b>", "0.2500", "0.7000", "<no>", "0.9500"]
    assert "b" not in shown.tags, "an item's text is text"
    bold = [style for style in shown.styles if "bold" in style]
    assert bold[0].startswith("background: rgba") and len(bold) == 2, "the best of each row"  # noqa: PT018


def test_a_long_result_is_cut_and_says_so() -> None:
    many = result(
        scores=[[0.5, 0.5]] * 300,
        label_mass=[1.0] * 300,
        labels=[[" yes", " no"]] * 300,
        items=["x"] * 300,
    )
    text = many._repr_html_()
    assert len(cells(text).rows) == 201
    assert "and 100 more" in text


def test_a_ranking_as_a_dict_and_as_html() -> None:
    ranking = Ranking([RankedItem(1, 0.9, "b"), RankedItem(0, 0.1, "a <b>")], "label", result())
    made = ranking.to_dict()
    assert made["results"] == [{"index": 1, "score": 0.9, "item": "b"}, {"index": 0, "score": 0.1, "item": "a <b>"}]
    assert (made["method"], made["model"], made["usage"]["prompt_tokens"]) == ("label", "tiny & small", 10)
    assert cells(ranking._repr_html_()).rows[2] == ["2", "0", "0.1000", "a <b>"]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        result().to_pandas()


def test_with_pandas_it_is_a_data_frame() -> None:
    frame = result().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["best"]) == ["<no>", " yes"]
