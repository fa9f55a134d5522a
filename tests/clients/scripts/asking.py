"""What the scripts of all clients share: the task from stdin, each client tried with it and with mistakes in it, and
what came back or was raised as one JSON document on stdout. Runs in `.clients-venv`; nothing but loopback is reached.
"""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

LOOPBACK = ("127.0.0.1", "::1", "localhost", None)


@dataclass(frozen=True)
class Task:
    """Documents to rank for a query, at a server that wants a key."""

    url: str
    key: str
    model: str
    query: str
    documents: list[str]


Rank = Callable[[Task], dict[str, Any]]  # {"ranked": [[index, score], …], …}: what the client made of the answer


def try_clients(clients: dict[str, Callable[[], Rank]], more: Callable[[Task], dict[str, Any]] | None = None) -> None:
    """Each client as it should be used, and with each mistake; `more` adds members to the report."""
    refused: list[str] = []
    sys.addaudithook(lambda event, args: _stay_here(event, args, refused))
    task = Task(**json.load(sys.stdin))
    mistakes = {
        "empty_query": replace(task, query=""),
        "unknown_model": replace(task, model="no-such-model"),
        "wrong_key": replace(task, key="not-the-key"),
    }
    report: dict[str, Any] = {}
    for name, client in clients.items():
        rank = client()
        report[name] = {"right": _tried(rank, task)} | {wrong: _tried(rank, one) for wrong, one in mistakes.items()}
    added = {} if more is None else more(task)
    json.dump({"clients": report, "reached_for": refused, **added}, sys.stdout)


def _tried(rank: Rank, task: Task) -> dict[str, Any]:
    try:
        return {"answer": rank(task)}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _stay_here(event: str, arguments: tuple[Any, ...], refused: list[str]) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in LOOPBACK:
        refused.append(str(host))
        raise PermissionError(f"only the loopback may be reached; got {host}")
