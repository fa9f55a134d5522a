"""The words to rank by: instructions find their place, and a user's own file is read strictly."""

from pathlib import Path

import pytest

from onepass.errors import ConfigError
from onepass.loading.templates import LABEL, QWEN3_RERANKER, ranker_from_file

GOOD = """
method = "label"
[label]
context = "Q: {query} ({instruction}) "
item = "D: {document} A:"
labels = [" yes", " no"]
instruction = "be strict"
"""


def test_a_file_gives_method_words_and_labels(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(GOOD)
    ranker = ranker_from_file(tmp_path / "t.toml")
    template = ranker.template(ranker.method)
    assert (ranker.method, template.labels) == ("label", (" yes", " no"))
    assert template.context_with(None) == "Q: {query} (be strict) "
    assert template.context_with("be kind") == "Q: {query} (be kind) "


def test_an_instruction_without_a_place_goes_in_front() -> None:
    assert LABEL.context_with("Find laws.") == "Find laws.\n" + LABEL.context
    assert LABEL.context_with(None) == LABEL.context
    assert "<Instruct>: Find laws." in QWEN3_RERANKER.context_with("Find laws.")
    assert "<Instruct>: Given a web search query" in QWEN3_RERANKER.context_with(None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("method", "metod"), "method must be"),
        (('"label"', '"votes"'), "method must be"),
        (("[label]", "[labels]"), "tables must be"),
        (('"label"', '"likelihood"'), "wants a table"),
        (("context =", "contexts ="), "wants context and item"),
        (("{document}", "{doc}"), "wants {document}"),
        (("labels = [", "# ["), "wants labels"),
        (('" no"', "7"), "list of strings"),
        (('"label"', "label"), "must be TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    (tmp_path / "t.toml").write_text(GOOD.replace(*change, 1))
    with pytest.raises(ConfigError, match=words):
        ranker_from_file(tmp_path / "t.toml")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        ranker_from_file(tmp_path / "none.toml")
