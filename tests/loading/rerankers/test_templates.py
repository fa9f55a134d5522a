"""The words to rank by: instructions find their place, and a user's own file is read strictly."""

from pathlib import Path

import pytest

from onepass.errors import ConfigError
from onepass.loading.rerankers.registry import QWEN3_RERANKER, ranker_for
from onepass.loading.rerankers.templates import LABEL, ranker_from_file

EXAMPLES = Path(__file__).parents[3] / "examples" / "templates"

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


def test_qwen3_reranker_is_asked_with_one_newline_as_its_repository_does() -> None:
    """Letter for letter the text that the chat template in Qwen3-Reranker's repository makes."""
    template = ranker_for("Qwen/Qwen3-Reranker-0.6B").label
    prompt = template.context_with(None).replace("{query}", "Q") + template.item.replace("{document}", "D")
    assert prompt == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: Q\n<Document>: D<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_the_form_with_two_newlines_is_a_template_file() -> None:
    two = ranker_from_file(EXAMPLES / "qwen3-reranker-two-newlines.toml").label
    assert two.context != QWEN3_RERANKER.context
    assert two.context.replace("\n\n<Query>", "\n<Query>").replace("{query}\n\n", "{query}\n") == QWEN3_RERANKER.context
    assert (two.item, two.labels, two.instruction) == (
        QWEN3_RERANKER.item,
        QWEN3_RERANKER.labels,
        QWEN3_RERANKER.instruction,
    )


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
        (('labels = [" yes", " no"]', 'labels = [" yes"]'), "label_probability wants two labels or more; it has 1"),
        (("instruction =", "label_token_ids = [1]\ninstruction ="), "labels or label_token_ids, not both"),
        (("instruction =", 'readout = "votes"\ninstruction ='), "readout must be one of"),
        (("instruction =", 'readout = "logit_difference"\nscale = 2\ninstruction ='), "takes activation; got scale"),
        (('labels = [" yes", " no"]', "label_token_ids = [-1, 2]"), "must be a list of token ids"),
        (("instruction =", "strip = 1\ninstruction ="), "strip must be true or false"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    (tmp_path / "t.toml").write_text(GOOD.replace(*change, 1))
    with pytest.raises(ConfigError, match=words):
        ranker_from_file(tmp_path / "t.toml")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        ranker_from_file(tmp_path / "none.toml")
