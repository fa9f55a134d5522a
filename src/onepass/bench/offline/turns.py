"""A peer's timed passes and ours by turns: a shared machine changes its rate within seconds, and a ratio is of two
passes side by side.

The peer asks for its turn over a socket before each timed pass (`benchmarks/peers/job.py`): it sends a byte, our pass
runs, and it is sent one back.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

SETTLE_SECONDS = 0.3  # threads of a peer may spin for so long after their work


@dataclass
class Turns:
    """`ours` runs our pass and returns its seconds, None where it failed; `seconds` are those of all, in order."""

    path: Path
    ours: Callable[[], float | None]
    seconds: list[float | None] = field(default_factory=list)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """To one peer, which connects to `path`."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()
            thread = Thread(target=self._take, args=(listener,), name="onepass-turns")
            thread.start()
            try:
                yield
            finally:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # nobody has come: nobody is waited for
                thread.join()
                self.path.unlink(missing_ok=True)

    def _take(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the peer has ended, or never came
            peer, _ = listener.accept()
            with peer:
                while peer.recv(1):
                    time.sleep(SETTLE_SECONDS)
                    self.seconds.append(self.ours())
                    peer.sendall(b"\0")
