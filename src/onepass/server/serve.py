"""The server's life: engines started, HTTP served by uvicorn, SIGTERM drained, everything stopped in order.

What is served is `app` over `client`. A second signal, or a drain that takes too long, stops at once.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import uvicorn

from onepass.errors import ConfigError
from onepass.server.app import build_app
from onepass.server.config import ServerOptions
from onepass.server.engines.client import EngineClient
from onepass.server.engines.process import EngineProcess
from onepass.server.http.framing import MAX_HEAD_BYTES
from onepass.server.http.memory import configure_malloc
from onepass.server.http.protocol import HttpProtocol
from onepass.server.ready_summary import ready_summary

KEEP_ALIVE_SECONDS = 75

log = logging.getLogger("onepass.server")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: it would stop listening at once, and draining answers those who still come."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(options: ServerOptions, quiet: bool = False) -> int:
    """The exit status: 0 when it was told to stop, 2 when the options cannot be served. `quiet`: no lines about
    starting and stopping."""
    configure_malloc()
    listening = listen(options.host, options.port)
    with listening:
        return asyncio.run(_serve(options, listening, _silent if quiet else say))


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    # Connections inherit it. asyncio would set it only on sockets that name their protocol, and without it an answer's
    # body waits for the acknowledgement of its head: 40 ms on a kept connection.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


Say = Callable[..., None]  # a message, and its facts as keywords


def say(message: str, **data: Any) -> None:
    """A line about the server's own life."""
    log.info(message, extra={"data": data})


def _silent(message: str, **data: Any) -> None:
    pass


async def _serve(options: ServerOptions, listening: socket.socket, tell: Say) -> int:
    start = asdict(options.engine)
    links = [EngineProcess(start, options.patience, _progress_logger(tell, n), n) for n in range(options.engines)]
    engines = EngineClient(
        links, options.budget, len(options.keys), options.item_cache_bytes, served_names=options.served_names
    )
    app = build_app(
        engines,
        limits=options.limits,
        keys=options.keys,
        cors_origins=options.cors_origins,
        spans=options.tracing,
    )
    server = _Uvicorn(_uvicorn_config(app, options))
    url = f"{'https' if options.tls else 'http'}://{_shown(listening)}"
    tell(f"starting {options.engine.model} for {url}", model=options.engine.model, url=url)
    lives = [asyncio.create_task(link.run()) for link in links]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    ending = asyncio.create_task(_end_on_signal(server, engines, options.drain_seconds, tell))
    announcing = asyncio.create_task(_announce(links[0], engines, url, tell))
    try:
        # A link's life ends by itself only when its options cannot be served.
        done, _ = await asyncio.wait([serving, *lives], return_when=asyncio.FIRST_COMPLETED)
        refused = next((link.standing.refused for link in links if link.standing.refused), None)
        if serving not in done and refused is not None:
            log.error(refused)
        server.should_exit = True
        await serving
    finally:
        announcing.cancel()
        ending.cancel()
        await engines.stop()
        await asyncio.gather(*lives, return_exceptions=True)
    return 0 if refused is None else 2


def _uvicorn_config(app: Any, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=5,
        ssl_certfile=str(options.tls.certificate) if options.tls else None,
        ssl_keyfile=str(options.tls.key) if options.tls else None,
    )


async def _end_on_signal(server: uvicorn.Server, engines: EngineClient, seconds: float, tell: Say) -> None:
    """The first signal drains; the second does not wait."""
    came: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.put_nowait, number)
    await came.get()
    running = engines.admission.requests
    tell(f"finishing {running} requests", requests=running)
    draining = asyncio.create_task(engines.drain(seconds))
    again = asyncio.create_task(came.get())
    await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
    left = engines.admission.requests
    tell("stopped" if not left else f"stopped with {left} requests unfinished", unfinished=left)
    server.force_exit = bool(left)
    server.should_exit = True


async def _announce(link: EngineProcess, engines: EngineClient, url: str, tell: Say) -> None:
    """A line whenever the engine becomes ready or ceases to be."""
    was = ""
    while True:
        await link.changed.wait()
        link.changed.clear()
        state = link.standing.state
        if state != was and state == "ready":
            summary = ready_summary(engines.served, url)
            tell(summary.sentence(), **asdict(summary))
        elif state != was and state == "restarting" and link.standing.refused is None:  # a refusal is an error line
            tell(link.standing.reason)
        was = state


def _progress_logger(tell: Say, number: int) -> Callable[[dict[str, Any]], None]:
    """Progress of loading as lines, a few per stage."""
    shown: dict[str, int] = {}

    def show(progress: dict[str, Any]) -> None:
        stage, done, of = progress["stage"], progress["done"], progress["of"]
        tenth = 10 * done // of if of else 0
        if shown.get(stage) != tenth and (done == of or tenth % 5 == 0):
            shown[stage] = tenth
            amount = f"{done:,}" + (f" of {of:,}" if of else "")
            tell(f"engine {number}: {stage} {amount}", engine=number, stage=stage, done=done, of=of)

    return show


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
