"""Cutting documents: only when asked, only the document, between its tokens, to fit, and told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from onepass.errors import TooLong
from onepass.loading.model import open_model
from onepass.loading.rerankers.templates import LIKELIHOOD, Ranker
from onepass.loading.tokenizer import TextTokenizer
from onepass.scorer import Scorer
from onepass.server import truncation
from onepass.server.engines.service import Served
from onepass.server.truncation import FIT_THE_MODEL, Cut, Question, Side, cut_documents, cut_text
from server.asking import RERANK, check_error

QUESTION = Question("the capital of Italy", None, "auto")


@pytest.fixture(scope="module")
def tokenizer(tiny_scorer: Scorer) -> TextTokenizer:
    return tiny_scorer.tokenizer


@pytest.fixture
def served(tokenizer: TextTokenizer) -> Served:
    return Served("qwen3", tokenizer, 600, 128, Ranker("likelihood"), 0, {})


def test_a_cut_falls_between_tokens(tokenizer: TextTokenizer) -> None:
    text = "The quick brown fox jumps over the lazy dog"
    ids = tokenizer.encode_item(text)
    assert cut_text(tokenizer, text, len(ids)) == text
    short = cut_text(tokenizer, text, 4)
    assert text.startswith(short)
    assert tokenizer.encode_item(short) == ids[:4]
    end = cut_text(tokenizer, text, 4, "left")
    assert text.endswith(end)
    assert tokenizer.encode_item(end) == ids[-4:]
    assert cut_text(tokenizer, text, 0) == ""


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60), limit=st.integers(0, 30), left=st.booleans())
def test_any_text_is_cut_to_the_limit_and_no_character_is_split(
    tokenizer: TextTokenizer, text: str, limit: int, left: bool
) -> None:
    short = cut_text(tokenizer, text, limit, "left" if left else "right")
    assert text.endswith(short) if left else text.startswith(short)
    assert len(tokenizer.encode_item(short)) <= limit
    if len(tokenizer.encode_item(text)) <= limit:
        assert short == text


def test_documents_are_cut_until_the_prompt_fits(served: Served, tokenizer: TextTokenizer) -> None:
    documents = ["short", "a very long passage " * 100, "Zürich 東京 " * 100]
    out, was_cut = cut_documents(documents, FIT_THE_MODEL, QUESTION, served)
    assert was_cut == [False, True, True]
    assert out[0] == "short"
    for one, whole in zip(out, documents, strict=True):
        assert whole.startswith(one)
        prompt = tokenizer.encode_query(LIKELIHOOD.context) + tokenizer.encode_item(
            LIKELIHOOD.item.replace("{document}", one)
        )
        tail = tokenizer.encode_item(" " + QUESTION.query)
        assert len(prompt) + len(tail) - 1 <= served.max_position
        assert one == whole or len(prompt) + len(tail) - 1 > served.max_position - 8, "no more than needed"


def test_a_number_of_tokens_a_document_or_a_prompt(served: Served, tokenizer: TextTokenizer) -> None:
    long = "one two three " * 30
    [by_document], _ = cut_documents([long], Cut(document_tokens=7), QUESTION, served)
    assert len(tokenizer.encode_item(by_document)) == 7
    [by_prompt], _ = cut_documents([long], Cut(prompt_tokens=60, to_fit=True), QUESTION, served)
    assert 0 < len(by_prompt) < len(long)
    [left], _ = cut_documents([long], Cut(document_tokens=7, side="left"), QUESTION, served)
    assert long.endswith(left)


def test_a_query_that_leaves_no_room_is_an_error(served: Served) -> None:
    with pytest.raises(TooLong, match="leave"):
        cut_documents(["x"], FIT_THE_MODEL, Question("many words " * 100, None, "auto"), served)


def test_nothing_is_cut_unless_asked(client: TestClient) -> None:
    long = {**RERANK, "documents": ["words " * 3000]}
    check_error(client.post("/rerank", json=long), 400, "too_long")


def test_what_was_cut_is_told(client: TestClient) -> None:
    documents = ["Paris " * 40, "Rome"]
    answer = client.post("/rerank", json={**RERANK, "documents": documents, "max_tokens_per_doc": 6}).json()
    told = {one["index"]: one for one in answer["results"]}
    assert told[0]["truncated"] is True
    assert "truncated" not in told[1]
    assert told[0]["document"]["text"] == documents[0], "the document comes back as it was sent"
    same = client.post("/rerank", json={**RERANK, "documents": documents, "max_tokens_per_doc": 200}).json()
    assert not any("truncated" in one for one in same["results"])


def cut_whole(tokenizer: TextTokenizer, text: str, limit: int, side: Side) -> str:
    """What `cut_text` must give: the same with the whole text tokenised."""
    spans, keep = tokenizer.spans(text), limit
    while len(spans) > limit:
        text = (text[: spans[keep - 1][1]] if side == "right" else text[spans[-keep][0] :]) if keep else ""
        spans = tokenizer.spans(text)
        keep = min(keep, len(spans)) - 1
    return text


PARTS = ["word", " word", "  ", "\n", "é", "e\u0301", "東京", "12345", " 7", "'s", "!", "<|im_start|>", " the", " I"]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=40),
    times=st.integers(1, 60),
    limit=st.integers(1, 60),
    left=st.booleans(),
)
def test_a_long_text_is_cut_as_if_all_of_it_were_tokenised(
    short_pieces: TextTokenizer, parts: list[str], times: int, limit: int, left: bool
) -> None:
    text, side = "".join(parts) * times, "left" if left else "right"
    part = truncation.sufficient_part(short_pieces, text, limit, side)
    has_boundary = short_pieces.bounds.boundary_from(text, 1) is not None
    if has_boundary or part == text:
        assert cut_text(short_pieces, text, limit, side) == cut_whole(short_pieces, text, limit, side)
    assert len(short_pieces.encode_item(cut_text(short_pieces, text, limit, side))) <= limit


@pytest.fixture(scope="module")
def short_pieces(smollm2_gguf: Path) -> Iterator[TextTokenizer]:
    """SmolLM2's tokenizer, with pieces so short that small texts are long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "PIECE_CHARS", 8)
        patch.setattr(truncation, "MIN_PART_CHARS", 8)
        patch.setattr(truncation, "GUESSED_CHARS", 1)
        yield open_model(str(smollm2_gguf)).tokenizer


def test_of_a_long_document_only_what_matters_is_tokenised(smollm2_gguf: Path) -> None:
    tokenizer = open_model(str(smollm2_gguf)).tokenizer
    calls: list[int] = []
    counted = tokenizer.checked(lambda: calls.append(1))
    for text in ("word " * 2_000_000, "a" * 10_000_000):
        for side in ("left", "right"):
            calls.clear()
            assert len(tokenizer.encode_item(cut_text(counted, text, 20, side))) == 20
            assert len(calls) <= 4
    served = Served("smollm2", counted, 49152, 2048, Ranker("likelihood"), 0, {})
    calls.clear()
    [text], [was_cut] = cut_documents(["word " * 2_000_000], FIT_THE_MODEL, QUESTION, served)
    assert was_cut
    assert len(tokenizer.encode_item(text)) > 1900
    assert len(calls) < 20  # of 300 pieces
    with pytest.raises(TooLong, match="the query, with the template, has 10,000,0"):
        cut_documents(["x"], FIT_THE_MODEL, Question("a" * 10_000_000, None, "auto"), served)
