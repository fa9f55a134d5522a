"""The tests' Ray cluster, as a script sees it: connecting, and the processes of its node."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

SECONDS = 300


@contextmanager
def connected() -> Iterator[None]:
    """To the cluster named in RAY_ADDRESS, which may still be starting."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            ray.init(logging_level="ERROR", log_to_driver=False)
            break
        except Exception:
            if time.monotonic() > end or not command_line(int(os.environ["ONEPASS_RAY_NODE"])):
                raise
            time.sleep(1)
    try:
        yield
    finally:
        ray.shutdown()


def processes(title: str) -> list[int]:
    """Processes of the cluster's node whose command line has these words."""
    return [pid for pid in below(int(os.environ["ONEPASS_RAY_NODE"])) if title in command_line(pid)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def below(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [*children, *(deeper for child in children for deeper in below(child))]
