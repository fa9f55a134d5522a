"""What a client of the ingress gets when a replica dies at each point of its answer. No cluster: the handle is scripted
here, since a kill cannot be timed to fall between two messages."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

from ray.exceptions import ActorDiedError
from ray.serve.handle import DeploymentHandle
from starlette.types import Message, Scope

from onepass.integrations.context_affinity import Route
from onepass.integrations.ray_replica import ForwardedRequest
from onepass.integrations.ray_serve import ForwardedResponse


class ScriptedHandle:
    """Answers each call with the next list of messages; where the list says None, the replica dies."""

    def __init__(self, calls: list[list[Message | None]]) -> None:
        self._calls = iter(calls)

    async def remote(self, route: Route, request: ForwardedRequest) -> AsyncIterator[tuple[str, Message]]:
        for message in next(self._calls):
            if message is None:
                raise ActorDiedError
            yield "replica", message


def messages_of(answers: list[list[str | None]]) -> list[list[Message | None]]:
    """`start` and parts of a body, the last with a full stop, as ASGI messages."""
    start: Message = {"type": "http.response.start", "status": 200, "headers": []}
    return [
        [
            word
            if word is None
            else start
            if word == "start"
            else {"type": "http.response.body", "body": word.encode(), "more_body": not word.endswith(".")}
            for word in words
        ]
        for words in answers
    ]


async def sent(answers: list[list[str | None]]) -> dict[str, Any]:
    words: list[str] = []

    async def send(message: Message) -> None:
        words.append("start" if message["type"] == "http.response.start" else message["body"].decode())

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    handle = cast(DeploymentHandle, ScriptedHandle(messages_of(answers)))
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": []}
    response = ForwardedResponse(handle, Route(), ForwardedRequest(scope, b"{}"))
    try:
        await response(scope, receive, send)
    except ActorDiedError:
        return {"sent": words, "ended": "connection"}
    return {"sent": words, "ended": "answer"}


if __name__ == "__main__":
    print(json.dumps({name: asyncio.run(sent(answers)) for name, answers in json.load(sys.stdin).items()}))
