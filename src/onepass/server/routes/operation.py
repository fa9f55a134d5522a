"""What an operation is: a path and a method, what runs, and with which shapes.

The operations are in the other files of this folder, by group; all of them are in `table`.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from onepass.server.handlers import Ask
from onepass.server.schema.fields import Schema


@dataclass(frozen=True)
class Operation:
    """`bodies` and `answers` are the alternatives: the body's members decide which it is."""

    method: str
    paths: tuple[str, ...]
    name: str
    summary: str
    group: str
    run: Callable[[Ask], Coroutine[Any, Any, Any]]
    bodies: tuple[Schema, ...] = ()
    answers: tuple[Schema, ...] = ()
    description: str = ""
    errors: tuple[Schema, ...] = ()  # of dialects whose errors have a form of their own
    statuses: tuple[int, ...] = ()  # of errors, besides those of all operations
