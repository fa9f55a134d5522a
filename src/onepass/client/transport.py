"""What `Client` and `AsyncClient` do alike with httpx2: how they connect, and what a response means.

Sending and waiting are the clients' own.
"""

from typing import Any

import httpx2

from onepass.client.calls import Call, error_of

CONNECTIONS = 64


def connections(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Arguments of httpx2's clients: kept connections, and the key with every request."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    return {"base_url": url, "headers": headers, "timeout": timeout, "limits": limits}


def answer_of[T](call: Call[T], response: httpx2.Response) -> T | Exception:
    try:
        payload = response.json() if response.content else None
    except ValueError:
        payload = None
    if response.is_success:
        return call.read(payload)
    return error_of(response.status_code, response.headers, payload)
