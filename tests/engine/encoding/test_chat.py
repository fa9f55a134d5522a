"""Messages as token ids: those of the whole rendered text, split so that all items share the beginning."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from loading.chat.conversations import SPECIAL_TOKENS, TEMPLATES
from onepass import ChatOptions, RequestError, Scorer, ScoreRequest
from onepass.engine.encoding.chat import chat_token_ids
from onepass.engine.encoding.encode import Encoder
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.model import open_model
from onepass.loading.tokenizer import TextTokenizer

ITEMS = ["Paris", " Rome", "7", "\n\nnew", "", "the <|im_end|> trick", "'s", "東京 ", "  spaces", "a" * 50]
MESSAGES = [
    {"role": "system", "content": "You judge."},
    {"role": "user", "content": "Is this the capital? Answer yes or no.\nCity: "},
]


def whole_ids(tokenizer: TextTokenizer, templates: ChatTemplates, item: str) -> tuple[int, ...]:
    last = {"role": "user", "content": MESSAGES[1]["content"] + item}
    return tuple(tokenizer.encode_item(templates.render([MESSAGES[0], last], add_generation_prompt=True)))


def sentencepiece_like() -> TextTokenizer:
    """Puts a blank before every text it is given, as Llama 2's does: no cut in the text is exact."""
    letters = sorted(set("▁" + "".join(ITEMS) + "".join(TEMPLATES.values()) + "".join(m["content"] for m in MESSAGES)))
    tokenizer = Tokenizer(
        models.BPE({letter: n for n, letter in enumerate([*letters, "<unk>"])}, [], unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Replace("▁", " ")
    return TextTokenizer(tokenizer)


@pytest.fixture(params=["smollm2", "qwen3", "llama3", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> TextTokenizer:
    if request.param == "sentencepiece":
        return sentencepiece_like()
    return TextTokenizer.from_file(checkpoint(request.param) / "tokenizer.json")


@pytest.mark.parametrize("template", ["chatml", "trimmed headers", "turn of model", "system inside user"])
def test_ids_are_those_of_the_whole_text(tokenizer: TextTokenizer, template: str) -> None:
    templates = ChatTemplates({"default": TEMPLATES[template]}, SPECIAL_TOKENS)
    # Templates that strip their content would strip the blank before an empty item, too.
    items = [item for item in ITEMS if item.strip() or template == "chatml"]
    ids = chat_token_ids(tokenizer, templates, ScoreRequest(messages=MESSAGES, items=items))
    assert [ids.shared + item for item in ids.items] == [whole_ids(tokenizer, templates, item) for item in items]
    assert len(ids.shared) > 10


def test_a_cut_right_before_the_item_would_be_wrong(checkpoint: Callable[[str], Path]) -> None:
    """The control: a blank that ends a message belongs to the item's first token."""
    tokenizer = TextTokenizer.from_file(checkpoint("smollm2") / "tokenizer.json")
    templates = ChatTemplates({"default": TEMPLATES["chatml"]}, SPECIAL_TOKENS)
    whole = whole_ids(tokenizer, templates, "Paris")
    text = templates.render(MESSAGES)
    before = text[: text.rindex("City: ") + len("City: ")]
    apart = tokenizer.encode_item(before) + tokenizer.encode_item("Paris<|im_end|>\n<|im_start|>assistant\n")
    assert tuple(apart) != whole


def test_bos_is_not_added_to_a_template_that_writes_it(checkpoint: Callable[[str], Path]) -> None:
    tokenizer = TextTokenizer.from_file(checkpoint("llama3") / "tokenizer.json")
    bos = tokenizer.encode_query("a")[0]
    source = "<|begin_of_text|>{% for m in messages %}{{ m.content }}{% endfor %}"
    encoder = Encoder(tokenizer, 600, 1024, ChatTemplates({"default": source}))
    request = ScoreRequest(messages=[{"role": "user", "content": "a "}], items=["b"], label_token_ids=[1])
    assert encoder.encode(request).context.count(bos) == 1
    query = ScoreRequest(query="a", items=["b"], label_token_ids=[1], add_special_tokens=False)
    assert bos not in encoder.encode(query).context


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": "a"}, "give messages or query, not both"),
        ({"context": "c"}, "give messages or context, not both"),
        ({"delimiter_token_id": 1}, "messages or delimiter_token_id"),
        ({"item_first": True}, "exclude each other"),
        ({"items": [[1, 2]]}, "items must be strings"),
        ({"chat": ChatOptions(template="x")}, "chat_template must be one of default"),
    ],
)
def test_conflicts_are_refused(checkpoint: Callable[[str], Path], fields: dict[str, object], words: str) -> None:
    model = open_model(str(checkpoint("smollm2")))
    encoder = Encoder(model.tokenizer, 600, 1024, model.chat)
    given = {"messages": MESSAGES, "items": ["a"], "label_token_ids": [1], **fields}
    with pytest.raises(RequestError, match=words):
        encoder.encode(ScoreRequest(**given))  # type: ignore[arg-type]


def test_scores_of_messages_are_those_of_the_rendered_prompt(checkpoint: Callable[[str], Path]) -> None:
    with Scorer.load(str(checkpoint("smollm2")), dtype="float32") as scorer:
        rendered = scorer.model.chat.render(MESSAGES, add_generation_prompt=True)
        head, _, tail = rendered.rpartition("<|im_end|>")
        plain = [
            scorer.score(head + item + "<|im_end|>" + tail, [""], [" yes", " no"], mode="serial").scores[0]
            for item in ITEMS[:4]
        ]
        for mode in ("serial", "packed", "extend", "auto"):
            result = scorer.score(
                messages=MESSAGES, items=ITEMS[:4], labels=[" yes", " no"], mode=mode, return_prompt=True
            )
            for ours, theirs in zip(result.scores, plain, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-4)
        again = scorer.score(messages=MESSAGES, items=["Oslo"], labels=[" yes"])
        assert again.usage.cached_tokens == len(result.prompt.shared.token_ids), "the shared part was kept"
    assert result.items == ITEMS[:4]
    assert result.prompt is not None
    assert result.prompt.shared.text + result.prompt.items[0].text == head + "Paris" + "<|im_end|>" + tail
    assert result.prompt.readout_positions[0] == len(scorer.tokenizer.encode_item(head + "Paris<|im_end|>" + tail)) - 1
    assert result.to_dict()["prompt"]["items"][0]["readout_position"] == result.prompt.readout_positions[0]
