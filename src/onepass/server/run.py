"""The server's life: engines started, HTTP served by uvicorn, SIGTERM drained, everything stopped in order.

What is served is `app` over `engines`. A second signal, or a drain that takes too long, stops at once.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import uvicorn

from onepass.errors import ConfigError
from onepass.server.app import build_app
from onepass.server.engines import Engines
from onepass.server.link import EngineLink
from onepass.server.logs import configure_logs
from onepass.server.options import ServerOptions
from onepass.server.timed_heads import TimedHeads

KEEP_ALIVE_SECONDS = 75
MOST_HEADER_BYTES = 64 << 10

log = logging.getLogger("onepass.server")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: it would stop listening at once, and draining answers those who still come."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(options: ServerOptions, quiet: bool = False) -> int:
    """The exit status: 0 when it was told to stop, 2 when the options cannot be served."""
    configure_logs(options.log_level)
    listening = listen(options.host, options.port)
    with listening:
        return asyncio.run(_serve(options, listening, (lambda _: None) if quiet else say))


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


def say(line: str) -> None:
    """For people at the console; the log is for machines."""
    print(line, file=sys.stderr, flush=True)


async def _serve(options: ServerOptions, listening: socket.socket, tell: Callable[[str], None]) -> int:
    start = asdict(options.engine)
    links = [EngineLink(start, options.patience, _teller(tell, n)) for n in range(options.engines)]
    engines = Engines(
        links, options.budget, len(options.keys), options.item_cache_bytes, served_names=options.served_names
    )
    app = build_app(engines, limits=options.limits, keys=options.keys, cors_origins=options.cors_origins)
    server = _Uvicorn(_uvicorn_config(app, options))
    url = f"{'https' if options.tls else 'http'}://{_shown(listening)}"
    tell(f"onepass: starting {options.engine.model} for {url}")
    lives = [asyncio.create_task(link.run()) for link in links]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    ending = asyncio.create_task(_end_on_signal(server, engines, options.drain_seconds, tell))
    announcing = asyncio.create_task(_announce(links[0], url, tell))
    try:
        # A link's life ends by itself only when its options cannot be served.
        done, _ = await asyncio.wait([serving, *lives], return_when=asyncio.FIRST_COMPLETED)
        refused = next((link.standing.refused for link in links if link.standing.refused), None)
        if serving not in done and refused is not None:
            tell(f"onepass: {refused}")
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
        http=TimedHeads,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_graceful_shutdown=5,
        ssl_certfile=str(options.tls.certificate) if options.tls else None,
        ssl_keyfile=str(options.tls.key) if options.tls else None,
    )


async def _end_on_signal(server: uvicorn.Server, engines: Engines, seconds: float, tell: Callable[[str], None]) -> None:
    """The first signal drains; the second does not wait."""
    came: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.put_nowait, number)
    await came.get()
    tell(f"onepass: finishing {engines.admission.requests} requests")
    draining = asyncio.create_task(engines.drain(seconds))
    again = asyncio.create_task(came.get())
    await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
    left = engines.admission.requests
    tell("onepass: stopped" if not left else f"onepass: stopped with {left} requests unfinished")
    server.force_exit = bool(left)
    server.should_exit = True


async def _announce(link: EngineLink, url: str, tell: Callable[[str], None]) -> None:
    """A line whenever the engine becomes ready or ceases to be."""
    was = ""
    while True:
        await link.changed.wait()
        link.changed.clear()
        state = link.standing.state
        if state != was and state in ("ready", "restarting"):
            tell(f"onepass: {link.standing.reason}" + (f" on {url}" if state == "ready" else ""))
        was = state


def _teller(tell: Callable[[str], None], number: int) -> Callable[[dict[str, Any]], None]:
    """Progress of loading as lines, a few a stage."""
    told: dict[str, int] = {}

    def show(progress: dict[str, Any]) -> None:
        stage, done, of = progress["stage"], progress["done"], progress["of"]
        tenth = 10 * done // of if of else 0
        if told.get(stage) != tenth and (done == of or tenth % 5 == 0):
            told[stage] = tenth
            tell(f"onepass: engine {number}: {stage} {done:,}" + (f" of {of:,}" if of else ""))

    return show


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
