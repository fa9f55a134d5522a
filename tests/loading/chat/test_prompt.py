"""Where the item goes in a conversation, and where the prompt is cut so that tokens stay those of the whole text."""

from pathlib import Path
from typing import Any

import pytest

from loading.chat.conversations import SPECIAL_TOKENS, TEMPLATES
from onepass.api import ChatOptions
from onepass.errors import RequestError
from onepass.loading.chat.prompt import checked_messages, conversation_text, split_prompt
from onepass.loading.chat.template import ChatTemplates
from reference.chat_oracle import render

CHATML = ChatTemplates({"default": TEMPLATES["chatml"], "other": "<{{ messages[-1].content }}>"}, SPECIAL_TOKENS)
TRIMMED = ChatTemplates({"default": TEMPLATES["trimmed headers"]}, SPECIAL_TOKENS)
JUDGE = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "Is it good? "}]
SYSTEM = "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>"


def split(messages: Any, templates: ChatTemplates = CHATML, complete: bool = False, **options: Any) -> tuple[str, str]:
    prompt = split_prompt(templates, messages, ChatOptions(**options), complete=complete)
    return prompt.before, prompt.after


def test_the_item_ends_the_last_user_turn_and_the_generation_prompt_follows() -> None:
    assert split(JUDGE) == (SYSTEM + "user\nIs it good? ", "<|im_end|>\n<|im_start|>assistant\n")


def test_the_item_stands_where_a_message_says() -> None:
    placed = [JUDGE[0], {"role": "user", "content": "Review: {item}. Good?"}]
    assert split(placed) == (SYSTEM + "user\nReview: ", ". Good?<|im_end|>\n<|im_start|>assistant\n")


def test_an_item_after_another_role_is_a_message_of_its_own() -> None:
    assert split(JUDGE[:1]) == (SYSTEM + "user\n", "<|im_end|>\n<|im_start|>assistant\n")


def test_an_assistants_item_is_left_open_or_finished() -> None:
    answer = SYSTEM + "user\nIs it good? <|im_end|>\n<|im_start|>assistant\n"
    assert split(JUDGE, item_role="assistant") == (answer, "")
    assert split(JUDGE, item_role="assistant", continue_final_message=False) == (answer, "<|im_end|>\n")
    assert split(JUDGE, complete=True, item_role="assistant") == (answer, "<|im_end|>\n")
    begun = [*JUDGE, {"role": "assistant", "content": "It is "}]
    assert split(begun, item_role="assistant") == (answer + "It is ", "")


def test_the_assistants_words_may_end_the_prompt() -> None:
    """A guard's answer begins with words of its own: labels are read after them."""
    begun = [{"role": "user", "content": "{item}"}, {"role": "assistant", "content": "Safety:"}]
    after = "<|im_end|>\n<|im_start|>assistant\nSafety:"
    assert split(begun) == ("<|im_start|>user\n", after)
    assert split(begun, continue_final_message=False)[1] == after + "<|im_end|>\n"
    around = [{"role": "user", "content": "Rate."}, {"role": "assistant", "content": "I give {item} of 7:"}]
    assert split(around, item_role="assistant")[1] == " of 7:"


@pytest.mark.parametrize("last", ["It is", "It is ", " It is", "It is\n\n", ""])
def test_an_open_message_ends_as_in_transformers(reference_python: Path | None, last: str) -> None:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    messages = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": last}]
    jobs = [
        {"template": source, "messages": messages, "variables": {**SPECIAL_TOKENS, "continue_final_message": True}}
        for source in TEMPLATES.values()
    ]
    compared = 0
    for source, theirs in zip(TEMPLATES.values(), render(reference_python, jobs), strict=True):
        if theirs is not None:
            ours = conversation_text(
                ChatTemplates({"default": source}, SPECIAL_TOKENS), messages, ChatOptions(), complete=False
            )
            assert ours == theirs, source
            compared += 1
    assert compared > 8


def test_a_classifier_reads_the_finished_conversation() -> None:
    assert split(JUDGE, complete=True)[1] == "<|im_end|>\n"
    assert split(JUDGE, complete=True, add_generation_prompt=True)[1] == "<|im_end|>\n<|im_start|>assistant\n"


def test_a_named_template_and_its_variables() -> None:
    assert split(JUDGE, template="other") == ("<Is it good? ", ">")
    thinking = ChatTemplates({"default": TEMPLATES["thoughts cut"]})
    assert split(JUDGE, thinking, template_kwargs={"enable_thinking": False})[1].endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("content", ["", "Review:\n{item}\nGood?", "Item: "])
@pytest.mark.parametrize("item", ["plain", "  blanks ", "\nlines\n"])
@pytest.mark.parametrize("templates", [CHATML, TRIMMED], ids=["as it is", "trimmed"])
def test_a_filled_prompt_is_what_the_template_renders(templates: ChatTemplates, content: str, item: str) -> None:
    """Also where the template strips white space: the item is stripped as the template would."""
    prompt = split_prompt(templates, [{"role": "user", "content": content}], ChatOptions(), complete=False)
    filled = content.replace("{item}", item) if "{item}" in content else content + item
    whole = templates.render([{"role": "user", "content": filled}], add_generation_prompt=True)
    assert prompt.before + prompt.item(item) + prompt.after == whole


def test_content_may_be_blocks_of_text() -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert checked_messages([{"role": "user", "content": blocks}]) == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        ("hello", {}, "must be a list of objects"),
        ([], {}, "at least one message"),
        ([["user", "hi"]], {}, r"messages\[0\] must be an object"),
        ([{"role": "user", "content": "a", "name": "b"}], {}, r"messages\[0\] must be an object with role and content"),
        ([{"role": "critic", "content": "a"}], {}, "must be system, user, assistant; got 'critic'"),
        ([{"role": "user", "content": None}], {}, "content must be a string; got null"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "text or text blocks"),
        ([{"role": "user", "content": "{item} {item}"}], {}, "once; they hold it 2 times"),
        (JUDGE, {"item_role": "judge"}, "item_role must be user or assistant; got 'judge'"),
        (JUDGE, {"template_kwargs": [1]}, "chat_template_kwargs must be an object"),
        (JUDGE, {"template": 7}, "chat_template must be a name; got 7"),
        (JUDGE, {"add_generation_prompt": "yes"}, "add_generation_prompt must be true or false; got 'yes'"),
        (JUDGE, {"continue_final_message": True}, "wants the last message to be the assistant's"),
        (JUDGE, {"template": "rerank"}, "must be one of default, other; got 'rerank'"),
        (JUDGE, {"item_role": "assistant", "add_generation_prompt": True}, "exclude each other"),
    ],
)
def test_what_is_wrong_with_messages_is_said(messages: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        split(messages, **options)


def test_a_template_that_does_not_print_the_item_is_refused() -> None:
    with pytest.raises(RequestError, match="must print the item once; it printed it 0 times"):
        split(JUDGE, ChatTemplates({"default": "{{ messages[0].content }}"}))
