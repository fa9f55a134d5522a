"""Chat templates are found wherever models keep them, and render to the letter as in transformers, within bounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from loading.chat.conversations import CONVERSATIONS, SPECIAL_TOKENS, TEMPLATES, VARIABLES
from onepass.errors import BadCheckpoint, RequestError
from onepass.loading.chat.template import (
    ChatTemplates,
    chat_templates_from_folder,
    chat_templates_from_gguf,
    render_template,
)
from onepass.loading.gguf.file import GgufFile
from reference.chat_oracle import VALUES, render

JOBS = [
    {"template": template, "messages": messages, "variables": {**SPECIAL_TOKENS, **variables}}
    for template in TEMPLATES.values()
    for messages in CONVERSATIONS.values()
    for variables in VARIABLES
]
USER = [{"role": "user", "content": "hello"}]


def rendered(job: dict[str, Any]) -> str | None:
    variables = dict(job["variables"])
    generation = variables.pop("add_generation_prompt", False)
    templates = ChatTemplates({"default": job["template"]}, SPECIAL_TOKENS)
    try:
        return templates.render(job["messages"], add_generation_prompt=generation, variables=variables)
    except RequestError:
        return None


def assert_equal(theirs: list[str | None]) -> None:
    for job, text in zip(JOBS, theirs, strict=True):
        assert rendered(job) == text, job


def test_templates_render_as_stored_from_transformers() -> None:
    stored = json.loads(VALUES.read_text(encoding="utf-8"))
    assert len(JOBS) > 500
    assert 20 < sum(text is None for text in stored) < len(stored) / 3, "some are refused by both, most are not"
    assert_equal(stored)


def test_templates_render_as_live_transformers(reference_python: Path | None) -> None:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    assert_equal(render(reference_python, JOBS))


def test_the_default_models_own_template_renders_as_in_transformers(
    smollm2_gguf: Path, reference_python: Path | None
) -> None:
    templates = chat_templates_from_gguf(GgufFile.open(smollm2_gguf).metadata)
    text = templates.render(USER, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    if reference_python is not None:
        variables = {**templates.special_tokens, "add_generation_prompt": True}
        job = {"template": templates.default, "messages": USER, "variables": variables}
        assert render(reference_python, [job]) == [text]


@pytest.mark.parametrize(
    "endless",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set text = 'a' * 60000 %}{% for a in text %}{% for b in text %}{% endfor %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** 99999999 }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_that_would_not_end_is_refused(endless: str) -> None:
    with pytest.raises(RequestError, match="the chat template does not take these messages"):
        render_template(endless, {"messages": USER})


def test_the_templates_own_refusal_is_passed_on() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as refused:
        ChatTemplates({"default": TEMPLATES["alternating"]}, SPECIAL_TOKENS).render(USER + USER)
    assert (refused.value.code, refused.value.param) == ("chat_template_failed", "messages")


def test_the_newer_file_wins_over_the_tokenizers_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None})
    )
    assert chat_templates_from_folder(tmp_path) == ChatTemplates(
        {"default": "old"}, {"bos_token": "<s>", "eos_token": "</s>"}
    )
    (tmp_path / "chat_template.jinja").write_text("new {{ bos_token }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rerank.jinja").write_text("rerank")
    templates = chat_templates_from_folder(tmp_path)
    assert templates.sources == {"default": "new {{ bos_token }}", "rerank": "rerank"}
    assert templates.render(USER) == "new <s>"
    assert templates.render(USER, name="rerank") == "rerank"


def test_a_named_list_is_read(tmp_path: Path) -> None:
    stored = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stored}))
    assert chat_templates_from_folder(tmp_path).sources == {"default": "a", "tool_use": "b"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [1]}))
    with pytest.raises(BadCheckpoint, match="a list of objects with name and template"):
        chat_templates_from_folder(tmp_path)


def test_gguf_metadata_has_named_templates_and_special_tokens() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}a",
        "tokenizer.chat_template.rerank": "b",
        "tokenizer.chat_templates": ["rerank"],
        "tokenizer.ggml.tokens": ["<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 99,
    }
    templates = chat_templates_from_gguf(metadata)
    assert templates.sources == {"default": "{{ bos_token }}a", "rerank": "b"}
    assert templates.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert templates.render(USER) == "<s>a"


def test_a_missing_template_says_which_there_are() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplates().render(USER)
    with pytest.raises(RequestError, match="must be one of default; got 'rerank'"):
        ChatTemplates({"default": "a"}).render(USER, name="rerank")
