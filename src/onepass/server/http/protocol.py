"""uvicorn's HTTP/1.1 protocol as the server runs it: parser errors answered by the application, half-closed clients
answered, and connections closed so that the client can read the last answer.

An error of the parser goes through the application like any request (`refused` in the scope's state), so that it gets
the one error body, a request id, a log line and its place in the metrics. Time limits of heads are `header_timeout`.
Plain requests pass h11 by (`plain_request`): it stays idle, and reads what follows them if that is not plain.
"""

import asyncio
import logging
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from onepass.server.http.header_timeout import TimedHeads
from onepass.server.http.plain_request import PlainCycle, PlainHead, plain_head
from onepass.server.http.wire_errors import refusal_of

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
PROBE_SECONDS = 0.25
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpProtocol(TimedHeads):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = logging.getLogger("onepass.server.http")
        self._first_bytes = b""
        self._is_refused = False
        self._discarded: int | None = None  # bytes that came after the last answer; None: still listening
        self._body_left = 0  # bytes of a plain request's body that have not come
        self._pipelined = b""  # what came after a plain request before its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._first_bytes = self._first_bytes or data[:32]
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
        elif self._body_left or self._is_answering_plain:
            self._take_body(data)
        elif not self._is_refused:
            head = plain_head(data) if self._is_between_requests else None
            if head is None:
                super().data_received(data)
            else:
                self._stop_waiting()
                self._run_plain(head)
                self._take_body(data[head.size :])

    # Plain requests.

    @property
    def _is_between_requests(self) -> bool:
        """Whether nothing is being answered, and nothing of a request has come yet."""
        idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return idle and (self.cycle is None or self.cycle.response_complete)

    @property
    def _is_answering_plain(self) -> bool:
        return isinstance(self.cycle, PlainCycle) and not self.cycle.response_complete

    def _run_plain(self, head: PlainHead) -> None:
        self._unset_keepalive_if_required()
        self.headers, self._body_left = head.headers, head.body_bytes
        path = self.root_path + head.path.decode()
        self._run(PlainCycle, self._scope("POST", path, self.headers, self.app_state.copy()))

    def _take_body(self, data: bytes) -> None:
        """The body's next bytes. As with h11, what is left of one that is answered already is passed over."""
        self._unset_keepalive_if_required()
        body, rest = data[: self._body_left], data[self._body_left :]
        self._body_left -= len(body)
        if self._is_answering_plain:
            self.cycle.body += body
            self.cycle.more_body = self._body_left > 0
            if len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            if body or not self.cycle.more_body:
                self.cycle.message_event.set()
            if rest:
                self._pipelined += rest
                self.flow.pause_reading()
        elif rest:
            self.data_received(rest)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._pipelined and not self._is_answering_plain:
            rest, self._pipelined = self._pipelined, b""
            self.data_received(rest)

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
        self._run(RequestResponseCycle, self._scope("", "/", [], {"refused": refused}))
        self.cycle.keep_alive = False
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def _scope(self, method: str, path: str, headers: list[tuple[bytes, bytes]], state: dict[str, Any]) -> Any:
        return {
            "type": "http", "asgi": {"version": self.asgi_version, "spec_version": "2.3"}, "http_version": "1.1",
            "server": self.server, "client": self.client, "scheme": self.scheme, "method": method,
            "root_path": self.root_path, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "state": state,
        }  # fmt: skip

    def _run(self, kind: type[RequestResponseCycle], scope: Any) -> None:
        """Answer a request that h11 did not give us."""
        self.scope = scope
        self.cycle = kind(
            scope=scope, conn=self.conn, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=False, default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(), on_response=self.on_response_complete,
        )  # fmt: skip
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
            self.transport.write(CONTINUE)
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
        unread = self._is_refused or self._body_left or self.conn.their_state is h11.SEND_BODY
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
