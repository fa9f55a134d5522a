"""Three requests to begin with, for the model that is served: score, classify, rerank. Each runs as it is copied."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from onepass.server.engines.service import Served

KEY_HEADER = '-H "Authorization: Bearer $ONEPASS_API_KEY"'


@dataclass(frozen=True)
class Example:
    title: str
    explanation: str  # with Markdown's backticks
    path: str
    body: dict[str, Any]

    def arguments(self, keys: bool) -> str:
        """What follows the URL in a call of curl."""
        headers = ["-H 'Content-Type: application/json'", *([KEY_HEADER] if keys else [])]
        members = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in self.body.items())
        body = "{" + ",\n       ".join(members) + "}"
        return " \\\n  ".join([*headers, f"-d {shlex.quote(body)}"])


def examples(served: Served | None) -> list[Example]:
    """Of a server that is not ready yet, what most models take."""
    model = "default" if served is None else served.model
    if served is not None and served.tokenizer is None:
        return [_of_ids(model)]
    return [_score(model, served), _classify(model, served), _rerank(model)]


def _score(model: str, served: Served | None) -> Example:
    body = {"model": model, "query": "The capital of", "items": [" France is", " Italy is"]}
    return Example(
        "Score",
        "How probable each label is after `query` + item. Texts are joined as they are: mind the leading spaces.",
        "/v1/score",
        body | _choices(served, [" Paris", " Rome"]),
    )


def _classify(model: str, served: Served | None) -> Example:
    items = [" I loved every minute of it. Sentiment:", " A complete waste of time. Sentiment:"]
    query = (
        "Review: The food was delicious. Sentiment: positive. Review: The room was cold. Sentiment: negative. Review:"
    )
    choices = _choices(served, [" positive", " negative"])
    return Example(
        "Classify",
        "Many texts against one prompt, which is computed once; `apply_softmax` shares the whole among the labels.",
        "/v1/score",
        {"model": model, "query": query, "items": items, **choices}
        | ({"apply_softmax": True} if "labels" in choices else {}),
    )


def _choices(served: Served | None, texts: list[str]) -> dict[str, Any]:
    """As labels where each is one token of this model, else as continuations."""
    tokenizer = None if served is None else served.tokenizer
    single = tokenizer is None or all(len(tokenizer.encode_item(text)) == 1 for text in texts)
    return {"labels" if single else "continuations": texts}


def _rerank(model: str) -> Example:
    documents = [
        "Yeast eats sugar and gives off carbon dioxide, so that dough rises.",
        "Iron combines with oxygen and turns into rust.",
    ]
    body = {"model": model, "query": "why does bread dough get bigger", "documents": documents, "top_n": 2}
    explanation = (
        "Documents by how well they answer the query, best first; Cohere's, Jina's and vLLM's clients send this."
    )
    return Example("Rerank", explanation, "/v1/rerank", body)


def _of_ids(model: str) -> Example:
    body = {"model": model, "query": [1, 2, 3], "items": [[4], [5]], "label_token_ids": [6, 7]}
    return Example("Score", "This model has no tokenizer: it takes token ids.", "/v1/score", body)
