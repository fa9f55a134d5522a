"""Are log-probabilities of continuations those of plain sequences? One by one with teacher forcing, and N items × M.

Compared are the probabilities of single tokens and of whole texts per token, exp(mean log-probability), in the unit of
`rig.Likely`.
"""

from collections.abc import Iterator

import numpy as np

from onepass.api import Continuation
from onepass.evidence.tolerance import Tolerance
from onepass.validate.check import Case, Differences
from onepass.validate.harness import Harness, SerialOracle
from onepass.validate.settings import Settings
from onepass.validate.workload import Ids, Workload

FORCED_ITEMS = 4  # each text of each costs as many serial scores as it has tokens


def continuation_cases(
    work: Workload, settings: Settings, tolerance: Tolerance, serial: SerialOracle
) -> Iterator[Case]:
    for way in settings.ways:
        yield teacher_forcing(work, settings.middle_count, way, tolerance, serial)
        yield branches(work, settings.middle_count, way, tolerance, serial)


def teacher_forcing(work: Workload, count: int, way: str, tolerance: Tolerance, serial: SerialOracle) -> Case:
    """Each token of a continuation against a serial label: P(token | query + item + the tokens before it)."""
    items = work.first(count)

    def measure(rig: Harness) -> Differences:
        texts = make_continuations(rig)
        result = rig.score(way, work.query, items, continuations=texts)
        assert result.continuations is not None
        for item, row in list(zip(items, result.continuations, strict=True))[:FORCED_ITEMS]:
            for text, found in zip(texts, row, strict=True):
                forced = _forced(rig, serial, work.query, item, text)
                yield np.abs(np.exp(found.token_logprobs) - forced) / rig.likely.unit

    detail = f"{count} items × 4 texts, {min(count, FORCED_ITEMS)} items forced"
    return Case("continuations against teacher forcing", way, detail, tolerance, measure)


def branches(work: Workload, count: int, way: str, tolerance: Tolerance, serial: SerialOracle) -> Case:
    """N items × M continuations in one request against N·M requests of one plain sequence each. Labels asked for in the
    same pass must not be disturbed by the branches."""
    items = work.first(count)

    def measure(rig: Harness) -> Differences:
        texts = make_continuations(rig)
        result = rig.score(way, work.query, items, continuations=texts)
        assert result.continuations is not None
        for item, row in zip(items, result.continuations, strict=True):
            for text, found in zip(texts, row, strict=True):
                alone = serial.continuation(work.query, item, text)
                yield np.abs(_per_token(found) - _per_token(alone)) / rig.likely.unit
        whole = serial.numbers(work.query, items)[:, -len(rig.likely.labels) :]
        yield np.abs(np.exp(np.array(result.logprobs)) - whole)

    return Case("items × branches against sequences", way, f"{count} × 4 sequences", tolerance, measure)


def make_continuations(rig: Harness) -> list[Ids]:
    """Texts of 1 to 4 tokens. The last is the one the model finds likely: it has the probabilities worth comparing, and
    without isolation it would see all the others."""
    a, b, c, *_ = rig.likely.labels
    return [[a, b, c], [b], [c, a], rig.likely.text]


def _forced(rig: Harness, serial: SerialOracle, query: Ids, item: Ids, text: Ids) -> np.ndarray:
    """Labels are the continuations' tokens, so every serial score has the probability that is wanted."""
    rows = serial.numbers(query, [item + text[:place] for place in range(len(text))])
    whole = rows[:, -len(rig.likely.labels) :]
    return whole[range(len(text)), [rig.likely.labels.index(token) for token in text]]


def _per_token(found: Continuation) -> np.ndarray:
    return np.exp(np.array([*found.token_logprobs, found.mean_logprob]))
