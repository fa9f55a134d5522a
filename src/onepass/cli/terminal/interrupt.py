"""Ctrl-C ends a command within a second, wherever it is: reading, loading, compiling, on the device, writing.

Python raises KeyboardInterrupt in the main thread between two of its own instructions, so a call that stays in a
compiler or waits for the device would delay it, and so does everything that is closed on the way out. A thread hears of
the signal at once and ends the process when the main thread has not done so itself.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

INTERRUPTED = 130  # what shells give a process that SIGINT ended
GRACE_SECONDS = 0.5
HEARD_SECONDS = 0.1  # for the thread that hears of signals
SHOW_CURSOR = "\x1b[?25h"  # progress bars hide it
CLEAR_LINE = "\r\x1b[2K"


@contextmanager
def prompt_interrupt(grace_seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """Within the block, SIGINT ends the process after `grace_seconds` at the latest. Only from the main thread, and
    where SIGINT raises KeyboardInterrupt: a command that was started with it ignored goes on ignoring it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    unraisable, sys.unraisablehook = sys.unraisablehook, _not_of_interrupts(sys.unraisablehook)
    left, interrupted = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(read_end, left, interrupted, grace_seconds), name="onepass-interrupt", daemon=True
    )
    watcher.start()
    try:
        yield
    except ImportError:
        if interrupted.wait(HEARD_SECONDS):  # NumPy turns a KeyboardInterrupt in its C modules into an ImportError
            raise KeyboardInterrupt from None
        raise
    finally:
        left.set()
        sys.unraisablehook = unraisable
        signal.set_wakeup_fd(before)
        os.close(write_end)  # ends the thread


def _not_of_interrupts(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Where a KeyboardInterrupt meets a callback of the garbage collector, Python drops it with a traceback."""
    return lambda unraisable: None if issubclass(unraisable.exc_type, KeyboardInterrupt) else hook(unraisable)


def _watch(read_end: int, left: threading.Event, interrupted: threading.Event, grace_seconds: float) -> None:
    with os.fdopen(read_end, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] == signal.SIGINT:
                interrupted.set()
                if not left.wait(grace_seconds):
                    end_interrupted()


def end_interrupted() -> NoReturn:
    """Ends the process at once: the threads of JAX and of the engine may be in the middle of anything. What a command
    has written to files is written; `print` is flushed here."""
    terminal = sys.stderr.isatty()
    os.write(2, f"{SHOW_CURSOR + CLEAR_LINE if terminal else ''}onepass: interrupted\n".encode())
    try:
        sys.stdout.flush()
    finally:
        os._exit(INTERRUPTED)
