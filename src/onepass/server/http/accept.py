"""The Accept header: which media types a client names."""

from starlette.datastructures import Headers

HTML = "text/html"


def accepts(headers: Headers, media_type: str) -> bool:
    """Whether the client names this media type. `*/*`, which most HTTP libraries send, names none."""
    return any(part.partition(";")[0].strip().lower() == media_type for part in headers.get("accept", "").split(","))
