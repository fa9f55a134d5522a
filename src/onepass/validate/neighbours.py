"""Does a request's score depend on the request alone? Others share its steps, ahead of it and behind it.

Requests arrive at once, from cold, and the engine fills steps with them from the smallest to the largest. A check whose
requests did not share steps has proved nothing, and fails. Items of one request are left to `isolation`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from onepass.api import ScoreResult
from onepass.evidence.tolerance import EXACT, Tolerance
from onepass.validate.check import Case, CheckFailed, Differences
from onepass.validate.harness import Harness, raw
from onepass.validate.workload import Ids, Workload, with_other_tokens

LONGEST_QUERY = 100  # so that four requests share a step whatever the settings
SMALL = 48  # tokens of a neighbour that goes ahead; the observed request has more
# Around the sizes of pages and tiles, and between.
OFFSETS = (260, 200, 129, 128, 127, 65, 64, 63, 17, 1)

Tokens = tuple[Ids, list[Ids]]  # a query and its items


def neighbour_cases(work: Workload, way: str, tolerance: Tolerance) -> Iterator[Case]:
    yield between_requests(work, way)
    yield offsets(work, way, tolerance)


def between_requests(work: Workload, way: str) -> Case:
    """Every request is observed while every token of every other is another one, and must not change in a single bit:
    with the same lengths it lies at the same place of its step."""
    requests = _requests(work)

    def measure(rig: Harness) -> Differences:
        before = [raw(result) for result in _together(rig, way, requests)]
        # The last first: without isolation it sees all the others.
        for observed in reversed(range(len(requests))):
            others = [
                tokens if place == observed else _mutated(tokens, work.vocab_size, 100 * observed + place)
                for place, tokens in enumerate(requests)
            ]
            yield np.abs(raw(_together(rig, way, others)[observed]) - before[observed])

    return Case("isolation between requests", way, f"{len(requests)} requests, each observed", EXACT, measure)


def offsets(work: Workload, way: str, tolerance: Tolerance) -> Case:
    """The same request at many offsets in the step, beside many neighbours, against alone."""
    observed = _requests(work)[-1]
    text = work.query + [token for item in work.items for token in item]

    def measure(rig: Harness) -> Differences:
        alone = rig.probabilities(rig.run_together(way, [rig.request(way, *observed)])[0][0])
        for number, offset in enumerate(OFFSETS):
            sizes = [SMALL] * (offset // SMALL) + ([offset % SMALL] if offset % SMALL else [])
            ahead = [_neighbour(text, 7 * number + 3 * place, size) for place, size in enumerate(sorted(sizes))]
            behind = _neighbour(text, 5 * number, 2 * len(observed[0]))
            found = _together(rig, way, [*ahead, observed, behind])[len(ahead)]
            yield np.abs(rig.probabilities(found) - alone)

    return Case("place in the step", way, f"{len(OFFSETS)} offsets and neighbours", tolerance, measure)


def _together(rig: Harness, way: str, requests: Sequence[Tokens]) -> list[ScoreResult]:
    results, steps = rig.run_together(way, [rig.request(way, *tokens) for tokens in requests])
    if steps >= len(requests):
        raise CheckFailed(f"{len(requests)} requests should have shared steps; they took {steps}")
    return results


def _requests(work: Workload) -> list[Tokens]:
    """From the smallest to the largest, which is the order that they have in a step; no two begin alike."""
    text = work.query[:LONGEST_QUERY]
    whole = len(text)
    return [
        (_piece(text, 7 * n, size), [_piece(text, 3 * n, 3 + n), [], _piece(text, 11 + n, 6 + n)])
        for n, size in enumerate((whole // 3, whole // 2, whole * 2 // 3, whole))
    ]


def _neighbour(text: Ids, at: int, size: int) -> Tokens:
    return _piece(text, at, size - size // 3), [_piece(text, at + size, size // 3)]


def _piece(text: Ids, at: int, size: int) -> Ids:
    """From `at` on, and round again from the beginning."""
    return [text[(at + place) % len(text)] for place in range(size)]


def _mutated(tokens: Tokens, vocab_size: int, seed: int) -> Tokens:
    query, items = tokens
    query, *items = with_other_tokens([query, *items], set(range(len(items) + 1)), vocab_size, seed)
    return query, items
