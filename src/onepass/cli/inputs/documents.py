"""Results as JSON documents: what the library says, with the caller's ids, texts and order beside it."""

from typing import Any

from onepass.api import ScoreRequest, ScoreResult, text_of
from onepass.cli.tables.score import best_first, continuation_texts, option_probabilities


def result_document(request: ScoreRequest, result: ScoreResult, ids: list[Any] | None = None) -> dict[str, Any]:
    """`ids` are the items'."""
    document = result.to_dict()
    if ids is not None:
        document["ids"] = ids
    if any(len(row) > 1 for row in result.labels):
        document["best"] = [result.best(i) for i in range(len(result))]
    if result.continuations is not None:
        for i, (row, entries) in enumerate(zip(result.continuations, document["continuations"], strict=True)):
            shares = option_probabilities(row)
            for text, share, entry in zip(continuation_texts(request, i), shares, entries, strict=True):
                entry |= {"text": text, "probability": share}
    return document


def ranking_entries(result: ScoreResult, column: int, top: int | None, ids: list[Any] | None) -> list[dict[str, Any]]:
    """The items in the order of one label, best first."""
    return [
        {"index": i, **({} if ids is None else {"id": ids[i]}), "item": text_of(result.items, i), "score": score}
        for i, score in best_first(result, column)[:top]
    ]
