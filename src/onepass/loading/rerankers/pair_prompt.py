"""A chat template for a query and a document as a `RankTemplate`: rendered once with markers, and split around them.

sentence-transformers renders a pair as two messages with the roles query and document, after a system message with the
instruction where there is one. What is read at the prompt's end is the caller's to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onepass.errors import RequestError, UnsupportedModel
from onepass.loading.chat.prompt import exact_cut
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.templates import RankTemplate
from onepass.loading.tokenizer import TextTokenizer

QUERY, DOCUMENT, INSTRUCTION = "onepassQUERYmarker7Q", "onepassDOCUMENTmarker7Q", "onepassINSTRUCTIONmarker7Q"
# Texts of every kind that a cut next to them must be right for.
PROBES = ("what is it?", "two words ", "line\n", "東京", "7", "'quoted'")


@dataclass(frozen=True)
class PairFormat:
    """How a model's template is called. `prompt` is the instruction where a caller gives none; None leaves the system
    message out. `structured`: content is a list of text blocks."""

    template: str | None = None
    prompt: str | None = None
    structured: bool = False
    add_generation_prompt: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


def prints_pairs(templates: ChatTemplates, form: PairFormat) -> bool:
    """Whether a template prints messages of the roles query and document, each once or more, and tells them apart: not
    every template that prints any role was written for pairs."""
    if form.template not in (None, *templates.sources) or not templates.sources:
        return False
    source = templates.sources.get(form.template or "default", "")
    try:
        text = _rendered(templates, form, form.prompt, QUERY, DOCUMENT)
    except RequestError:
        return False
    named = all(f'"{role}"' in source or f"'{role}'" in source for role in ("query", "document"))
    return named and text.count(DOCUMENT) == 1 and QUERY in text


def pair_template(templates: ChatTemplates, tokenizer: TextTokenizer, form: PairFormat) -> RankTemplate:
    """Without labels. Raises UnsupportedModel where the template does not print both texts or cannot be split."""
    try:
        plain = _rendered(templates, form, form.prompt, QUERY, DOCUMENT)
        given = _rendered(templates, form, INSTRUCTION, QUERY, DOCUMENT)
        padded = _rendered(templates, form, form.prompt, f" {QUERY} ", f" {DOCUMENT} ")
    except RequestError as error:
        raise UnsupportedModel(f"the chat template does not take the roles query and document: {error}") from error
    for text, name in ((QUERY, "query"), (DOCUMENT, "document")):
        if plain.count(text) != 1:
            times = plain.count(text)
            raise UnsupportedModel(f"the chat template must print the {name} once; it prints it {times} times")
    before, instruction, after = given.partition(INSTRUCTION)
    placed = bool(instruction) and INSTRUCTION not in after
    around = placed and len(plain) >= len(before + after) and plain.startswith(before) and plain.endswith(after)
    template = _split(tokenizer, given if around else plain)
    if around:
        template = replace(template, instruction=plain[len(before) : len(plain) - len(after)])
    elif placed:
        template = replace(template, instructed=replace(_split(tokenizer, given), strip=padded == plain))
    return replace(template, strip=padded == plain)


def placeholder_template(source: str, tokenizer: TextTokenizer) -> RankTemplate:
    """A text with {query} and {document}, as llama.cpp's converter stores it under the name rerank."""
    text = source.replace("{query}", QUERY).replace("{document}", DOCUMENT)
    return replace(_split(tokenizer, text), add_special_tokens=True)


def _rendered(templates: ChatTemplates, form: PairFormat, prompt: str | None, query: str, document: str) -> str:
    system = [] if prompt is None else [("system", prompt)]
    messages = [
        {"role": role, "content": [{"type": "text", "text": text}] if form.structured else text}
        for role, text in (*system, ("query", query), ("document", document))
    ]
    return templates.render(
        messages, name=form.template, add_generation_prompt=form.add_generation_prompt, variables=form.variables
    )


def _split(tokenizer: TextTokenizer, text: str) -> RankTemplate:
    before, _, after = text.partition(DOCUMENT)

    def with_query(probe: str) -> Any:
        return lambda part: part.replace(QUERY, probe).replace(INSTRUCTION, "Find it")

    cut = exact_cut(tokenizer, before, after, (), tuple(map(with_query, PROBES)))
    if not cut:
        raise UnsupportedModel("the chat template cannot be split before the document without changing its tokens")
    return RankTemplate(
        context=_named(before[:cut]), item=_named(before[cut:]) + "{document}" + _named(after), add_special_tokens=False
    )


def _named(text: str) -> str:
    return text.replace(QUERY, "{query}").replace(INSTRUCTION, "{instruction}")
