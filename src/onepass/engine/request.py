"""Keyword arguments into a `ScoreRequest`: what `Scorer` and the clients accept, word for word. No JAX here.

What the values must be is checked by `encode`.
"""

from typing import Any

from onepass.api import ScoreRequest
from onepass.errors import RequestError


def request_of(**fields: Any) -> ScoreRequest:
    """A word that is not known is a mistake, never ignored. `context` may be a handle or its id."""
    known = ScoreRequest.__dataclass_fields__
    unknown = fields.keys() - known.keys()
    if unknown:
        raise RequestError(
            "unknown_field", f"unknown fields: {', '.join(sorted(unknown))}; known: {', '.join(known)}", min(unknown)
        )
    context = fields.get("context")
    return ScoreRequest(**{**fields, "context": getattr(context, "id", context)})
