"""A row's request and the columns that its result becomes: score, rank and decide rows are all `ScoreRequest`s.

Rows of kind score that differ in their items alone are joined into one request (`join`). Running requests is `workers`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import ScoreRequest, ScoreResult, Usage
from onepass.bulk.row_fields import FIELDS, Kind
from onepass.errors import RequestError

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "score": ("scores", "label_mass", "logprobs"),
    "rank": ("ranking", "method"),
    "decide": ("answers",),
}
Cells = dict[str, Any]


@dataclass(frozen=True)
class RowRequest:
    """`cells` makes the output's columns of the request's result."""

    request: ScoreRequest
    cells: Callable[[ScoreResult], Cells]
    can_join: bool = False


@dataclass(frozen=True)
class RequestBuilder:
    """`rank` and `decide` are the model's own: fields to a request and its reading."""

    kind: Kind
    rank: Callable[[Mapping[str, Any]], RowRequest]
    decide: Callable[[Mapping[str, Any]], RowRequest]

    def build(self, fields: Mapping[str, Any]) -> RowRequest:
        if self.kind == "rank":
            return self.rank(fields)
        if self.kind == "decide":
            return self.decide(fields)
        unknown = set(fields) - set(FIELDS["score"])
        assert not unknown, unknown
        return RowRequest(ScoreRequest(**fields), score_cells, True)


def score_cells(result: ScoreResult) -> Cells:
    texts = result.continuations
    return {
        "scores": result.scores,
        "label_mass": result.label_mass,
        "logprobs": None if texts is None else [[text.logprob for text in row] for row in texts],
    }


@dataclass(frozen=True)
class Joined:
    """Requests as one: `counts` of its items are each row's."""

    request: ScoreRequest
    rows: tuple[int, ...]
    counts: tuple[int, ...]


def join(requests: Sequence[RowRequest]) -> list[Joined]:
    """One request for all rows that differ in their items alone, in the order of their first rows."""
    groups: dict[Any, list[int]] = {}
    for number, row in enumerate(requests):
        groups.setdefault(_key(row) if row.can_join else number, []).append(number)
    return [_joined(requests, numbers) for numbers in groups.values()]


def _key(row: RowRequest) -> Any:
    """What rows share that can be joined; what is not a list, as in a row that is wrong, and sets per item are left
    alone."""
    request = row.request
    answers = [value for value in (request.label_token_ids, request.continuations) if value is not None]
    nested = any(not isinstance(value, list) or any(isinstance(one, list) for one in value) for value in answers)
    if not isinstance(request.items, list) or nested or request.messages is not None or not request.items:
        return id(row)
    kinds = {type(item) for item in request.items}
    return repr((replace(request, items=()), sorted(kind.__name__ for kind in kinds)))


def _joined(requests: Sequence[RowRequest], numbers: Sequence[int]) -> Joined:
    first = requests[numbers[0]].request
    if len(numbers) == 1:
        return Joined(first, tuple(numbers), (0,))
    counts = tuple(len(requests[number].request.items) for number in numbers)
    items: list[Any] = [item for number in numbers for item in requests[number].request.items]
    return Joined(replace(first, items=items), tuple(numbers), counts)


def separate(joined: Joined, result: ScoreResult) -> list[ScoreResult]:
    """Each row's part of a result; what it used is the first row's, so that sums are right."""
    if len(joined.rows) == 1:
        return [result]
    out: list[ScoreResult] = []
    start = 0
    for count in joined.counts:
        part = slice(start, start + count)
        start += count
        out.append(
            replace(
                result,
                scores=result.scores[part],
                logprobs=result.logprobs and result.logprobs[part],
                logits=result.logits[part],
                label_mass=result.label_mass and result.label_mass[part],
                labels=result.labels[part],
                label_token_ids=result.label_token_ids[part],
                continuations=result.continuations and result.continuations[part],
                items=(),
                usage=result.usage if not out else Usage(0),
            )
        )
    return out


def error_text(error: RequestError) -> str:
    return f"{error.code}: {error}"
