"""Work that lasts only as long as someone waits for it: a client that disconnects, or a deadline that passes, ends it.

Reading the body is `body`; what the work is, is the caller's.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from onepass.errors import DeadlineExceeded
from onepass.server.http.errors import ClientGone

STOP_SECONDS = 1.0  # how long cancelled work may take to clean up before the answer goes out without it


async def while_wanted[T](receive: Receive, deadline: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. The body must have been read: what `receive` gives after it is the disconnect."""
    loop = asyncio.get_running_loop()
    task = asyncio.Task(work, loop=loop, eager_start=True)  # at once: a round of the loop is time that a request waits
    gone = asyncio.Task(_disconnected(receive), loop=loop, eager_start=True)
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        await asyncio.wait({task, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise DeadlineExceeded("the time limit that the request set has passed")
    finally:
        gone.cancel()  # it has nothing to clean up, and is not waited for
        gone.add_done_callback(_forget)
        if not task.done():
            await _stop(task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    task.add_done_callback(_forget)
    await asyncio.wait({task}, timeout=STOP_SECONDS)


def _forget(task: "asyncio.Task[Any]") -> None:
    """Nobody asks any more what became of it; asking here keeps asyncio from complaining that nobody did."""
    if not task.cancelled():
        task.exception()
