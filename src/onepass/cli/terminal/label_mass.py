"""A warning where the labels hold next to no probability: the model never meant to answer with them.

The likely cause is a space too few or too many between text and label, which the tokenizer can tell.
"""

import statistics
from typing import TYPE_CHECKING, Any

from onepass.api import ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from onepass.loading.tokenizer import TextTokenizer

LOW_MASS = 0.01  # less, and what is compared are answers that the model would give one time in a hundred


def low_mass_warning(request: ScoreRequest, result: ScoreResult, tokenizer: "TextTokenizer | None") -> str | None:
    """One line for a person, where more than half of the items are affected."""
    if not result.label_mass or not any(result.scores):
        return None
    low = sum(mass < LOW_MASS for mass in result.label_mass)
    if 2 * low <= len(result.label_mass):
        return None
    median = statistics.median(result.label_mass)
    return (
        f"the labels hold {median:.1e} of the probability (median of {count(len(result.label_mass), 'item')}): "
        f"the model would hardly answer with them; {_cause(request, tokenizer)}"
    )


def _cause(request: ScoreRequest, tokenizer: "TextTokenizer | None") -> str:
    labels = list(request.labels or ())
    before = _texts_before(request)
    if labels and before:
        bare = next((label for label in labels if not label[:1].isspace()), None)
        if bare is not None and not any(text[-1:].isspace() for text in before) and _one_token(f" {bare}", tokenizer):
            return f'the label {bare!r} has no leading space and the text before it ends in none: try " {bare}"'
        spaced = next((label for label in labels if label[:1].isspace()), None)
        if spaced is not None and all(text[-1:].isspace() for text in before):
            return f"the text before the label {spaced!r} ends in a space already: leave one of the two out"
    alone = "" if request.apply_softmax else ", or compare them alone with --apply-softmax"
    return f"let the query ask for one of them, in the model's own format{alone}"


def _texts_before(request: ScoreRequest) -> list[str]:
    """What stands right before the label, where it is text: each item, or the query."""
    items: Any = [request.items] if isinstance(request.items, str) else request.items
    texts = [request.query if request.item_first or item == "" else item for item in items]
    return [text for text in texts if isinstance(text, str)] if request.messages is None else []


def _one_token(text: str, tokenizer: "TextTokenizer | None") -> bool:
    return tokenizer is not None and len(tokenizer.encode_item(text)) == 1


def count(number: int, noun: str) -> str:
    """`1 item`, `2,000 items`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
