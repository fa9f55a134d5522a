"""uvicorn's HTTP/1.1 by h11, strict about framing, with a time limit for a request's head: slow ones are closed.

A connection that sends nothing, or a head drop by drop, costs a file descriptor for as long as it lives. The time for
a body is `body`'s; how long a connection may idle between requests is uvicorn's keep-alive.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0


class TimedHeads(H11Protocol):
    head_seconds = HEAD_SECONDS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and data:
            self._wait_for_head()  # a part of a head: its time began with its first byte
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        answering: Any = self.cycle
        if self.conn.their_state is h11.IDLE and (answering is None or answering.response_complete):
            self.transport.close()
