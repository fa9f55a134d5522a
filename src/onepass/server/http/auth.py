"""API keys: who is asking, decided in a time that says nothing of how nearly a wrong key was right.

Where keys come from (a file, the environment) is `cli.serve`.
"""

import hashlib
import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers

from onepass.server.http.accept import HTML, accepts
from onepass.server.http.errors import HttpError

# Probes of load balancers and Kubernetes, which have no key.
OPEN_PATHS = frozenset({"/health", "/ready", "/readyz", "/live", "/livez", "/healthz"})
PAGE_FILES = "/page/"  # scripts and styles, the same on every server; a browser sends no key for them


class Keys:
    """`auth` maps a name to its key; without any, everyone may ask."""

    def __init__(self, keys: Mapping[str, str] | None = None) -> None:
        # Digests of one length: comparing raw keys would tell their length.
        self._digests = {name: _digest(key) for name, key in (keys or {}).items()}

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def name_of(self, path: str, headers: Headers) -> str:
        """The name of the key in these headers; "" where none is needed."""
        if not self._digests or _is_open(path, headers):
            return ""
        given = _digest(_given(headers))
        found = ""
        for name, digest in self._digests.items():  # all of them, always
            if hmac.compare_digest(digest, given):
                found = name
        if not found:
            message = "an API key is required: Authorization: Bearer …, X-API-Key or api-key; got none that is known"
            raise HttpError(401, "invalid_api_key", message, {"WWW-Authenticate": "Bearer"})
        return found


def _is_open(path: str, headers: Headers) -> bool:
    """The page itself says nothing of the model: a person types the key into it."""
    return path in OPEN_PATHS or path.startswith(PAGE_FILES) or (path == "/" and accepts(headers, HTML))


def _given(headers: Headers) -> str:
    """TEI's clients send the bare key as Authorization."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key") or headers.get("api-key") or (scheme if not token else "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
