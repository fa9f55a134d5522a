"""The words of a prompt, with a chat template and without one, and the labels that can answer it."""

from pathlib import Path

import pytest

from checkpoints import CHAT_TEMPLATE
from onepass.decisions.labels import AnswerLabels
from onepass.decisions.prompt import MARKER, decision_prompt, question_text
from onepass.decisions.questions import Question
from onepass.decisions.state import State
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.model import open_model
from onepass.loading.tokenizer import TextTokenizer

CHAT = ChatTemplates({"default": CHAT_TEMPLATE})
TONE = Question.score("How calm?", {"low": "shouting", "high": None})


def test_a_chat_template_surrounds_the_state_and_the_question() -> None:
    prompt = decision_prompt(CHAT, State("Be strict.", "It rains."))
    assert prompt.head == "<|im_start|>system\nBe strict.<|im_end|>\n<|im_start|>user\nIt rains.\n\n"
    assert prompt.tail == "<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.from_template


def test_a_base_model_is_asked_in_plain_text() -> None:
    prompt = decision_prompt(ChatTemplates(), State("Be strict.", "It rains."))
    assert (prompt.head, prompt.tail) == ("Be strict.\n\nIt rains.\n\n", "\nAnswer:")
    assert not prompt.from_template


def test_a_template_without_a_system_role_gets_it_in_the_user_message() -> None:
    refusing = "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    source = "{% for m in messages %}" + refusing + "{{ m.content }}{% endfor %}>"
    prompt = decision_prompt(ChatTemplates({"default": source}), State("Be strict.", "It rains."))
    assert (prompt.head, prompt.tail) == ("Be strict.\n\nIt rains.\n\n", ">")


@pytest.mark.parametrize(
    "opening", ["<think>\n", "{% if enable_thinking %}{% else %}<think>\n\n</think>\n\n{% endif %}"]
)
def test_thinking_is_over_before_the_answer(opening: str) -> None:
    prompt = decision_prompt(ChatTemplates({"default": CHAT_TEMPLATE + opening}), State("", "It rains."))
    assert prompt.tail.endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_state_may_hold_the_marker() -> None:
    assert MARKER in decision_prompt(CHAT, State("", f"a {MARKER} b")).head


def test_a_template_that_drops_the_message_is_refused() -> None:
    with pytest.raises(RequestError, match="must write a user message once"):
        decision_prompt(ChatTemplates({"default": "hello"}), State("", "x"))


def test_options_stand_under_their_labels_in_the_order_of_a_rotation() -> None:
    assert question_text(TONE, (1, 0), ("A", "B")) == (
        "Question: How calm?\nA. high\nB. low: shouting\nAnswer with the label of one level only."
    )


def test_a_predicate_is_answered_with_words_and_its_order_can_change() -> None:
    question = Question.predicate("Is it spam?", true="an advert")
    assert question_text(question, (0, 1), ("Yes", "No")) == (
        "Question: Is it spam?\nYes: an advert\nAnswer with Yes or No only."
    )
    assert question_text(question, (1, 0), ("No", "Yes")).endswith("Answer with No or Yes only.")
    assert "A. Yes: an advert\nB. No\n" in question_text(question, (0, 1), ("A", "B"))


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> TextTokenizer:
    tokenizer = open_model(str(smollm2_gguf)).tokenizer
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("tail", ["<|im_end|>\n<|im_start|>assistant\n", "\nAnswer:"])
def test_255_labels_are_distinct_single_tokens_in_their_place(smollm2: TextTokenizer, tail: str) -> None:
    labels = AnswerLabels(smollm2, tail).first(255)
    space = " " if tail.endswith(":") else ""
    assert [label.text for label in labels[:26]] == list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert len({label.text for label in labels}) == len({label.token for label in labels}) == 255
    for label in labels:
        assert smollm2.encode_item(tail + space + label.text) == [*smollm2.encode_item(tail), label.token]


def test_yes_and_no_are_words_where_they_are_tokens(smollm2: TextTokenizer) -> None:
    assert [label.text for label in AnswerLabels(smollm2, "\nAnswer:").yes_no()] == ["Yes", "No"]


def test_more_options_than_labels_are_refused_and_never_hidden(checkpoint_tokenizer: TextTokenizer) -> None:
    labels = AnswerLabels(checkpoint_tokenizer, "\n")
    assert len({label.token for label in labels.first(62)}) == 62
    with pytest.raises(RequestError, match=r"has \d+ labels of one token; a question has 5000 options"):
        labels.first(5000)


def test_a_predicate_falls_back_to_letters(checkpoint_tokenizer: TextTokenizer) -> None:
    assert checkpoint_tokenizer.encode_item("Yes") != checkpoint_tokenizer.encode_item("Yes")[:1]
    assert [label.text for label in AnswerLabels(checkpoint_tokenizer, "\n").yes_no()] == ["A", "B"]
