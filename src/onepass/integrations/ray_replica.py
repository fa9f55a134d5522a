"""A replica of a Ray Serve deployment: the server's own HTTP application over engine processes that the replica starts.

    ingress ── forward(route, request) ──► ModelReplica ── EngineClient ──► engine process

`server` answers requests. What is here answers Ray: ready when the model is, healthy while an engine runs or restarts,
tokens for autoscaling, drained before it ends.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ray import serve
from starlette.types import Message

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Text
from onepass.engine.encoding.chat import ChatContext
from onepass.errors import ConfigError, EngineUnavailable
from onepass.integrations.context_affinity import Route, with_replica, without_replica
from onepass.integrations.ray_hosts import Followers
from onepass.integrations.ray_router import QUEUED_TOKENS
from onepass.server.app import build_app
from onepass.server.config import ServerOptions
from onepass.server.engines.client import EngineClient
from onepass.server.engines.process import EngineProcess
from onepass.server.engines.service import Caller, Part

REPLICA_HEADER = b"x-onepass-replica"
UNHEALTHY_SECONDS = 300.0  # without a ready engine, before Ray replaces the replica


@dataclass(frozen=True)
class ForwardedRequest:
    """An HTTP request as the ingress read it: its ASGI scope and its body."""

    scope: dict[str, Any]
    body: bytes


class ReplicaEngines(EngineClient):
    """Adds the replica's name to context handles, by which the router finds the replica again."""

    replica = ""

    async def open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle:
        handle = await super().open_context(query, ttl_seconds, pin, caller)
        return replace(handle, id=with_replica(self.replica, handle.id))

    async def find_context(self, context_id: str) -> ContextHandle:
        return replace(await super().find_context(without_replica(context_id)), id=context_id)

    async def close_context(self, context_id: str) -> None:
        await super().close_context(without_replica(context_id))

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult:
        return await super().score(_local(request), caller)

    def stream(self, request: ScoreRequest, caller: Caller) -> AsyncIterator[Part | ScoreResult]:
        return super().stream(_local(request), caller)


def _local(request: ScoreRequest) -> ScoreRequest:
    return request if request.context is None else replace(request, context=without_replica(request.context))


class ModelReplica:
    async def __init__(self, options: ServerOptions, processes: int = 1) -> None:  # type: ignore[misc]  # Serve awaits it
        """Returns when the model is loaded and has passed its self-test. With `processes` > 1 the model is shared by
        this replica's engine and one follower in each further bundle of its placement group."""
        self._options = options
        self._followers = Followers.start(options.engine, processes) if processes > 1 else None
        start = asdict(options.engine) | ({"hosts": self._followers.hosts} if self._followers else {})
        self._links = [EngineProcess(start, options.patience, lambda _: None, n) for n in range(options.engines)]
        self._engines = ReplicaEngines(
            self._links, options.budget, len(options.keys), options.item_cache_bytes, served_names=options.served_names
        )
        self._engines.replica = serve.get_replica_context().replica_id.unique_id
        self._app = build_app(
            self._engines,
            limits=options.limits,
            keys=options.keys,
            cors_origins=options.cors_origins,
            spans=options.tracing,
        )
        self._runs = [asyncio.create_task(link.run()) for link in self._links]
        self._last_ready = time.monotonic()
        await self._until_ready()

    async def _until_ready(self) -> None:
        first = self._links[0]
        while not first.ready:
            changed = asyncio.create_task(first.changed.wait())
            await asyncio.wait({changed, self._runs[0]}, return_when=asyncio.FIRST_COMPLETED)
            if self._runs[0].done():  # by a defect: it restarts engines that end
                changed.cancel()
                self._runs[0].result()
                raise EngineUnavailable("the engine is no longer looked after", 5.0)
            first.changed.clear()
            if first.standing.refused is not None:
                raise ConfigError(first.standing.refused)

    async def forward(self, route: Route, request: ForwardedRequest) -> AsyncIterator[tuple[str, Message]]:
        """The response as ASGI messages, each with this replica's name. Cancelled when the client has gone. `route` is
        for the router, which sees a call's arguments."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        received = False

        async def receive() -> Message:
            nonlocal received
            if received:
                await asyncio.Event().wait()  # no disconnect is forwarded: Serve cancels this call instead
            received = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = (REPLICA_HEADER, self._engines.replica.encode())
                message = {**message, "headers": [*message["headers"], name]}
            messages.put_nowait(message)

        call = asyncio.create_task(self._app({**request.scope, "app": self._app}, receive, send))
        call.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield self._engines.replica, message
            await call
        finally:
            call.cancel()

    async def check_health(self) -> None:
        """Called by Serve. `EngineProcess` restarts an engine; Ray replaces a replica without one for long."""
        health = self._engines.health()
        if health.ready:
            self._last_ready = time.monotonic()
        elif time.monotonic() - self._last_ready > UNHEALTHY_SECONDS:
            raise EngineUnavailable(f"no engine is ready: {health.reason}", 5.0)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {QUEUED_TOKENS: float(self._engines.admission.tokens)}

    async def __del__(self) -> None:
        """Called by Serve when the requests under way are answered, or `graceful_shutdown_timeout_s` is over."""
        if not hasattr(self, "_runs"):
            return
        await self._engines.drain(self._options.drain_seconds)
        await self._engines.stop()
        await asyncio.gather(*self._runs, return_exceptions=True)
        if self._followers is not None:
            self._followers.stop()
