"""The application over a scorer in this process, on a loopback port: what clients meet, without another process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from onepass.scorer import Scorer
from onepass.server.app import build_app
from server.in_process import InProcess


@contextmanager
def served(scorer: Scorer) -> Iterator[str]:
    """Its URL, while it answers."""
    server = uvicorn.Server(uvicorn.Config(build_app(InProcess(scorer)), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
