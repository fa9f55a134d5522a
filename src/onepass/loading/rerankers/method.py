"""How a model ranks, decided from what it ships: its own files, then the registry of names, else a reason why not.

    sentence-transformers' files        `sentence_transformers`
    a chat template for pairs           roles query and document, or GGUF's text named rerank; read by the model's
                                        head, or by the tokens yes and no
    a known name                        `registry.KNOWN_RERANKERS`
    a name that says reranker           refused: nothing tells how it is read

All other models rank by likelihood. A template file that the user gives comes before all of this.
"""

import re
from dataclasses import replace
from pathlib import Path

from onepass.errors import UnsupportedModel
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.pair_prompt import PairFormat, pair_template, placeholder_template, prints_pairs
from onepass.loading.rerankers.readouts import Activation, ClassHead, LogitDifference, class_readout
from onepass.loading.rerankers.registry import ranker_for
from onepass.loading.rerankers.sentence_transformers import cross_encoder_ranker
from onepass.loading.rerankers.templates import Ranker, RankTemplate
from onepass.loading.tokenizer import TextTokenizer

SAYS_RERANKER = re.compile(r"re-?rank|cross-?encoder|text-ranking", re.IGNORECASE)
GIVE = (
    "give the words and labels with --template FILE (docs/rerankers.md), or insist with --rank-by likelihood "
    "(of one request: method likelihood)"
)


def ranker_of_model(
    name: str, folder: Path | None, chat: ChatTemplates, tokenizer: TextTokenizer, head: ClassHead | None
) -> Ranker:
    try:
        own = None if folder is None else cross_encoder_ranker(folder, chat, tokenizer, head)
        own = own or _by_chat_template(chat, tokenizer, head)
    except UnsupportedModel as error:
        return Ranker("label", problem=f"{error}; {GIVE}")
    if own is not None:
        return own
    known = ranker_for(name)
    if known.method == "label" and head is None:
        return known
    reason = "no file of it tells how a query and a document are put, and what is read"
    if head is not None:
        asked = f"{name} has a classification head, but {reason}; {GIVE.partition(', or')[0]}"
        return _by_head(known.label, head, "" if known.method == "label" else asked)
    if says_reranker(name, folder):
        return Ranker("likelihood", problem=f"{name} is a reranker by its name or its card, but {reason}; {GIVE}")
    return known


def _by_head(words: RankTemplate, head: ClassHead, problem: str) -> Ranker:
    """With a `problem` the words are nobody's, but messages can be ranked: what is read after them is the head."""
    try:
        activation: Activation = head.activation if problem else "sigmoid"
        return Ranker("label", label=_read_by_head(words, head, activation), problem=problem)
    except UnsupportedModel as error:
        return Ranker("label", problem=problem or f"{error}; {GIVE.partition(', or')[0]}")


def _by_chat_template(chat: ChatTemplates, tokenizer: TextTokenizer, head: ClassHead | None) -> Ranker | None:
    """llama.cpp's text named rerank, or a template that was written for the roles query and document."""
    stored = chat.sources.get("rerank", "")
    if "{query}" in stored and "{document}" in stored and "{%" not in stored and "{{" not in stored:
        return Ranker("label", label=_pair_reading(placeholder_template(stored, tokenizer), tokenizer, head))
    for template in ("rerank", None):
        form = PairFormat(template)
        if prints_pairs(chat, form):
            return Ranker("label", label=_pair_reading(pair_template(chat, tokenizer, form), tokenizer, head))
    return None


def says_reranker(name: str, folder: Path | None) -> bool:
    """By the model's name, or the tags at the head of its card."""
    if SAYS_RERANKER.search(name):
        return True
    card = None if folder is None else folder / "README.md"
    if card is None or not card.is_file():
        return False
    text = card.read_text(encoding="utf-8", errors="replace")
    front = text.split("\n---", 1)[0] if text.startswith("---") else ""
    return bool(SAYS_RERANKER.search(front))


def _pair_reading(template: RankTemplate, tokenizer: TextTokenizer, head: ClassHead | None) -> RankTemplate:
    if head is not None:
        return _read_by_head(template, head)
    ids = [tokenizer.encode_item(label) for label in ("yes", "no")]
    if any(len(label) != 1 for label in ids):
        raise UnsupportedModel(
            f"the chat template takes a query and a document, but yes and no are not single tokens here; {GIVE}"
        )
    return replace(template, label_token_ids=tuple(label[0] for label in ids), readout=LogitDifference("sigmoid"))


def _read_by_head(template: RankTemplate, head: ClassHead, activation: Activation = "sigmoid") -> RankTemplate:
    """The same words, read by the head."""
    return replace(template, labels=(), label_token_ids=(), readout=class_readout(head, activation))
