"""Members of a JSON object, read by name and kind, against the JSON Schema that documents them.

`null` is the same as leaving a member out. What a member means is its dialect's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onepass.errors import ModelNotFound, RequestError, shown
from onepass.server.http.request_context import LEAST_URGENT, MOST_URGENT

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
TOKEN_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
SOME_TOKEN_IDS: Schema = {**TOKEN_IDS, "minItems": 1}
NUMBER: Schema = {"type": "number"}
NUMBERS: Schema = {"type": "array", "items": NUMBER}
COUNT: Schema = {"type": "integer", "minimum": 0}
MODEL: Schema = {
    "type": ["string", "null"],
    "description": "A name that the model is served under, or `default`, or left out.",
    "examples": ["default"],
}
PRIORITY: Schema = {
    "type": ["integer", "null"],
    "minimum": -1000,
    "maximum": 1000,
    "description": "Lower goes first among requests of one key; beyond ±100 counts as ±100. Wins over X-Priority.",
}
USER: Schema = {"type": ["string", "null"], "maxLength": 1024, "description": "Accepted, and without effect."}


def flag(what: str, default: bool) -> Schema:
    return {"type": ["boolean", "null"], "default": default, "description": what}


def count_from_one(what: str) -> Schema:
    return {"type": ["integer", "null"], "minimum": 1, "description": what}


def optional_text(what: str) -> Schema:
    return {"type": ["string", "null"], "description": what}


def body_schema(title: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """An object with these members and no others."""
    return {
        "title": title,
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def answer_schema(title: str, properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"title": title, "type": "object", "properties": dict(properties), "required": required}


@dataclass(frozen=True)
class Fields:
    """A body whose names are all known to its schema."""

    body: Mapping[str, Any]

    @classmethod
    def of(cls, body: Mapping[str, Any], schema: Schema) -> "Fields":
        unknown = [name for name in body if name not in schema["properties"]]
        if unknown:
            named = ", ".join(name[:80] for name in unknown[:8]) + (", …" if len(unknown) > 8 else "")
            known = ", ".join(schema["properties"])
            raise RequestError("unknown_field", f"unknown fields: {named}; known: {known}", unknown[0][:80])
        return cls(body)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.body.get(name)
        return default if value is None else value

    def first(self, *names: str) -> Any:
        """The one member among several of the same meaning."""
        given = [name for name in names if self.body.get(name) is not None]
        if len(given) > 1:
            raise RequestError("conflicting_fields", f"give one of {', '.join(given)}", given[1])
        return self.body[given[0]] if given else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise _wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a string", value)
        return value

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not is_whole(value) or value < least or (most is not None and value > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise _wrong(name, f"a whole number {limits}", value)
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Upper and lower case are the same."""
        value = self.get(name, default)
        if not isinstance(value, str) or value.lower() not in choices:
            raise _wrong(name, f"one of {', '.join(choices)}", value)
        return value.lower()

    def priority(self, otherwise: int) -> int:
        value = self.whole("priority", -1000, 1000)
        return otherwise if value is None else min(max(value, MOST_URGENT), LEAST_URGENT)

    def model(self, served_names: tuple[str, ...]) -> str:
        """The name to answer with: the request's own, or the first of those that the model is served under."""
        name = self.text("model")
        if name is None:
            return served_names[0]
        check_model(name, served_names)
        return name


def check_model(name: str, served_names: tuple[str, ...]) -> None:
    """Raises ModelNotFound unless `name` is "default" or a name that the model is served under."""
    if name != "default" and name not in served_names:
        has = f"the model {served_names[0]!r}"
        if len(served_names) > 1:
            has = f"a model under the names {', '.join(map(repr, served_names))}"
        raise ModelNotFound(f"this server has {has}; got {name[:200]!r}")


def is_whole(value: Any) -> bool:
    """2.0 is a whole number to JSON Schema, and so to us."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(name: str, wanted: str, value: Any) -> RequestError:
    return RequestError(f"invalid_{name}", f"{name} must be {wanted}; got {shown(value)}", name)
