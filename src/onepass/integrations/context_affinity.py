"""Which replica a request should go to, so that a context that is kept there is found again.

A request's key is a hash of what its items share: the query, state, messages or prompt. Of messages only those up to
the first user message count, so that a conversation stays where it began. Rendezvous hashing orders the replicas for a
key: a replica that joins or leaves moves only the keys that it takes or had. A context handle names its replica
(`replica~handle`). Sending requests is `ray_router`'s work.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

SHARED_FIELDS = ("query", "queries", "state", "messages", "input", "prompt", "text_1", "data_1")
INSTRUCTION_ROLES = ("system", "developer")
SEPARATOR = "~"
CONTEXTS_PATH = "/v1/contexts/"


@dataclass(frozen=True)
class Route:
    """`key` is "" for a request without a shared text, `replica` is "" without a context handle. `avoid` names
    replicas that refused this request."""

    key: str = ""
    replica: str = ""
    avoid: tuple[str, ...] = ()


def route_of(path: str, body: bytes) -> Route:
    """Route of an HTTP request. A body that is not a JSON object has no key: any replica answers with the error."""
    if path.startswith(CONTEXTS_PATH):
        return Route(replica=replica_of(path.removeprefix(CONTEXTS_PATH)))
    try:
        fields = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return Route()
    if not isinstance(fields, dict):
        return Route()
    if isinstance(context := fields.get("context_id"), str):
        return Route(replica=replica_of(context))
    shared = next((fields[name] for name in SHARED_FIELDS if fields.get(name)), None)
    return Route() if shared is None else Route(key=key_of(shared))


def key_of(shared: Any) -> str:
    return hashlib.blake2b(orjson.dumps(conversation_start(shared)), digest_size=8).hexdigest()


def conversation_start(shared: Any) -> Any:
    """Messages up to the first that is not an instruction; anything else as it is."""
    if not isinstance(shared, list) or not all(isinstance(message, dict) for message in shared):
        return shared
    others = (number for number, message in enumerate(shared) if message.get("role") not in INSTRUCTION_ROLES)
    return shared[: next(others, len(shared)) + 1]


def replica_order(key: str, replicas: Sequence[str]) -> list[str]:
    """Replicas in the order in which requests with this key try them."""
    return sorted(replicas, key=lambda name: hashlib.blake2b(f"{key} {name}".encode(), digest_size=8).digest())


def ranks(route: Route, replicas: list[str]) -> list[list[str]]:
    """Names of replicas by preference; among replicas of one rank Serve takes the least busy."""
    if route.replica in replicas:
        return [[route.replica]]
    names = [name for name in replicas if name not in route.avoid] or replicas
    return [[name] for name in replica_order(route.key, names)] if route.key else [names]


def replica_of(context_id: str) -> str:
    replica, separator, _ = context_id.rpartition(SEPARATOR)
    return replica if separator else ""


def with_replica(replica: str, context_id: str) -> str:
    return f"{replica}{SEPARATOR}{context_id}"


def without_replica(context_id: str) -> str:
    return context_id.rpartition(SEPARATOR)[2]
