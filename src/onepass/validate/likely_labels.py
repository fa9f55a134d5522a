"""Labels worth comparing: tokens that a model finds likely after the items of a workload, and none that is sharp."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onepass.evidence.tolerance import SHARP, fair_labels
from onepass.validate.harness import Harness, LikelyLabels
from onepass.validate.workload import Workload

NEGLIGIBLE = 1e-2  # of the vocabulary's probability
TEXT_TOKENS = 4
CANDIDATES = 1024
ATTEMPTS = 16  # to find an item after which no label is


def find_likely(
    rig: Harness, query: Sequence[int], items: Sequence[Sequence[int]], count: int, seed: int
) -> LikelyLabels:
    """The best of a thousand candidates: what occurs in the text, low ids, which are common tokens in most
    vocabularies, and some others. None that is SHARP after any of these items."""
    vocab = rig.model.config.vocab_size
    drawn = np.random.default_rng(seed).permutation(vocab)[:512].tolist()
    said = [token for part in (query, *items) for token in part][: len(query) + 512]
    candidates = list(dict.fromkeys([*said, *range(min(vocab, 512)), *drawn]))[:CANDIDATES]
    asking = replace(rig, likely=LikelyLabels(candidates))

    def probabilities(after: Sequence[Sequence[int]]) -> np.ndarray:
        return np.exp(np.array(asking.score("extend", query, after).logprobs))

    after_items = probabilities(items)
    common, largest = after_items.mean(axis=0), after_items.max(axis=0)
    fair = fair_labels(largest, count)

    def likeliest(after: np.ndarray) -> list[int]:
        """After the first row, of those that are not sharp after any row."""
        order = np.argsort(-np.where(fair & (after.max(axis=0) <= SHARP), after[0], 0))
        return [candidates[i] for i in order[:count]]

    text: list[int] = []
    most = 0.0
    for _ in range(TEXT_TOKENS):
        after = probabilities([[*item, *text] for item in items[:8]])
        text.append(likeliest(after)[0])
        most = max(most, float(after[:, candidates.index(text[-1])].max()))
    # Empty items, and all items where they come first, are read after the query.
    after_query = likeliest(probabilities([[]]))[: count // 4]
    labels = list(dict.fromkeys(text + after_query + likeliest(common[None])))[:count]
    mass = sum(common[candidates.index(label)] for label in labels)
    negligible = bool(mass < NEGLIGIBLE)
    return LikelyLabels(labels, text, negligible, most / SHARP if negligible else 1.0)


def without_sharp(rig: Harness, work: Workload, known: int, seed: int) -> Workload:
    """Items after which a label is SHARP give way to others of their length. The first `known` chose the labels."""
    found = np.arange(known, len(work.items))
    for attempt in range(ATTEMPTS if len(found) else 0):
        items = [work.items[i] for i in found]
        largest = np.exp(np.array(rig.score("extend", work.query, items).logprobs)).max(axis=1)
        found = found[largest > SHARP]
        if not len(found):
            break
        work = work.with_others(found.tolist(), seed + attempt)
    return work
