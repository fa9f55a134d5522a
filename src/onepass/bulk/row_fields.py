"""A row of a file as the fields of a request: columns by name, columns by another name, templates and constants.

    the column `query`            is the field query
    map    query=question         the field is the column `question`
    text   query=Q: {question}    the field is the text with columns put in; {{ and }} are braces
    set    labels=[" yes", " no"] the field is the same in every row

Later ones win over earlier ones. What a request does with its fields is `row_request`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from onepass.api import ScoreRequest
from onepass.engine.ranking import RankRequest
from onepass.errors import RequestError

Kind = Literal["score", "rank", "decide"]
KINDS: tuple[Kind, ...] = ("score", "rank", "decide")
NOT_OF_A_ROW = ("context", "chat", "return_prompt", "return_trace")
FIELDS: dict[Kind, tuple[str, ...]] = {
    "score": tuple(f.name for f in fields(ScoreRequest) if f.name not in NOT_OF_A_ROW),
    "rank": (*(f.name for f in fields(RankRequest)), "documents"),
    "decide": ("state", "questions", "candidates", "permutations", "calibrated", "mode"),
}
REQUIRED: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "score": (("query", "messages"), ("items",)),
    "rank": (("query",), ("items", "documents")),
    "decide": (("state",), ("questions",)),
}
# Of a CSV file's cells these are text as they are; others may be JSON.
TEXT_FIELDS = ("query", "state", "instruction", "method", "mode")
PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True)
class RowFields:
    kind: Kind
    map: Mapping[str, str] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)

    def check(self, columns: Sequence[str]) -> None:
        """Raises a RequestError for fields and columns that are not there."""
        known = FIELDS[self.kind]
        for name in (*self.map, *self.text, *self.set):
            if name not in known:
                raise RequestError("unknown_field", f"{self.kind} has no field {name!r}; it has {', '.join(known)}")
        used = {*self.map.values(), *(place for text in self.text.values() for place in places(text))}
        for column in sorted(used - set(columns)):
            raise RequestError("unknown_column", f"no column {column!r}; the input has {', '.join(columns) or 'none'}")
        given = {*columns, *self.map, *self.text, *self.set}
        for names in REQUIRED[self.kind]:
            if not given & {*names}:
                raise RequestError(
                    "missing_column",
                    f"{self.kind} needs {' or '.join(names)}: name the column with --map {names[0]}=COLUMN; "
                    f"the input has {', '.join(columns) or 'none'}",
                )

    def of(self, row: Mapping[str, Any], is_text: bool) -> dict[str, Any]:
        """The request's fields; None is the same as not there."""
        columns = {name: row[name] for name in FIELDS[self.kind] if name in row}
        columns |= {name: _column(row, column) for name, column in self.map.items()}
        if is_text:
            columns = {name: _typed(name, value) for name, value in columns.items()}
        texts = {name: filled(text, row) for name, text in self.text.items()}
        given = {**columns, **texts, **self.set}
        return {name: value for name, value in given.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def places(template: str) -> list[str]:
    return [match[1] for match in PLACE.finditer(template) if match[1] is not None]


def filled(template: str, row: Mapping[str, Any]) -> str:
    def value(match: "re.Match[str]") -> str:
        if match[1] is None:
            return match[0][0]
        cell = _column(row, match[1])
        return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)

    return PLACE.sub(value, template)


def _column(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise RequestError("unknown_column", f"the row has no {column!r}")
    return row[column]


def _typed(name: str, cell: Any) -> Any:
    """A CSV cell: empty is nothing; lists, numbers and true or false are JSON; anything else is text."""
    if cell == "":
        return None
    if name in TEXT_FIELDS:
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
