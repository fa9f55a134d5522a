"""uvicorn's HTTP/1.1 protocol as the server runs it: parser errors answered by the application, half-closed clients
answered, and connections closed so that the client can read the last answer.

An error of the parser goes through the application like any request (`refused` in the scope's state), so that it gets
the one error body, a request id, a log line and its place in the metrics. Time limits of heads are `header_timeout`.
"""

import asyncio
import logging
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from onepass.server.http.header_timeout import TimedHeads
from onepass.server.http.wire_errors import refusal_of

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
PROBE_SECONDS = 0.25


class HttpProtocol(TimedHeads):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = logging.getLogger("onepass.server.http")
        self._first_bytes = b""
        self._is_refused = False
        self._discarded: int | None = None  # bytes that came after the last answer; None: still listening

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._first_bytes = self._first_bytes or data[:32]
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
        elif not self._is_refused:
            super().data_received(data)

    # What the parser refuses.

    def handle_events(self) -> None:
        """uvicorn writes a line of its own for each refused request; the application writes it here."""
        disabled, self.logger.disabled = self.logger.disabled, True
        try:
            super().handle_events()
        finally:
            self.logger.disabled = disabled

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        assert isinstance(error, h11.RemoteProtocolError), "called where uvicorn handles the parser's errors"
        refused = refusal_of(error, self._first_bytes, self.config.h11_max_incomplete_event_size or 0)
        self._is_refused = True
        if self.cycle is None or self.cycle.response_complete:
            self._run_refused(refused)
        elif self.cycle.response_started:
            self.transport.close()
        else:  # in the body of a request that is being read: it is answered with the error
            self.cycle.scope["state"]["refused"] = refused
            self.cycle.keep_alive = False
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def _run_refused(self, refused: Exception) -> None:
        scope: Any = {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme, "method": "", "root_path": "",
            "path": "/", "raw_path": b"/", "query_string": b"", "headers": [], "state": {"refused": refused},
        }  # fmt: skip
        self.cycle = RequestResponseCycle(
            scope=scope, conn=self.conn, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=False, default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(), on_response=self.on_response_complete,
        )  # fmt: skip
        self.cycle.keep_alive = False
        self.cycle.more_body = False
        self.cycle.message_event.set()
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    # Clients that have closed their sending half.

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True keeps the connection open for the answer to a whole request. A client that is gone altogether looks the
        same at first: it resets the connection when something is sent to it, such as `100 Continue`."""
        cycle = self.cycle
        if self._discarded is not None or self.scheme == "https" or cycle is None:
            return None
        if cycle.response_complete or cycle.more_body:
            return None
        cycle.keep_alive = False
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            event = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(event))
        self.loop.call_later(PROBE_SECONDS, self._check_client, cycle)
        return True

    def _check_client(self, cycle: RequestResponseCycle) -> None:
        if cycle.response_complete or self.transport.is_closing():
            return
        connection: socket.socket | None = self.transport.get_extra_info("socket")
        if connection is None or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(PROBE_SECONDS, self._check_client, cycle)

    # The end of a connection.

    def linger(self, transport: asyncio.Transport) -> None:
        """Close, but first read for a moment what a client is still sending: the kernel answers unread bytes with a
        reset, at which the client forgets the answer it was sent."""
        unread = self._is_refused or self.conn.their_state is h11.SEND_BODY
        if self._discarded is not None or not unread or not transport.can_write_eof():
            transport.close()
            return
        self._discarded = 0
        transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, transport.close)


class LingeringTransport:
    """A transport whose `close` asks the protocol how to."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def close(self) -> None:
        self._protocol.linger(self._transport)

    def is_closing(self) -> bool:
        return self._protocol._discarded is not None or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
