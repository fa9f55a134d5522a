"""An engine on a CPU gives way to the front, with all its threads and those that come later."""

import subprocess
import sys

import pytest

from onepass.server.engines.priority import NICE, THREADS

SCRIPT = """
import os, threading
from onepass.server.engines.priority import give_way

stop = threading.Event()
before = threading.Thread(target=stop.wait, daemon=True)
before.start()
count = give_way()
nice = lambda thread: os.getpriority(os.PRIO_PROCESS, thread)
after = []
later = threading.Thread(target=lambda: after.append(nice(threading.get_native_id())))
later.start()
later.join()
print(count, nice(threading.get_native_id()), nice(before.native_id), after[0])
"""


@pytest.mark.skipif(not THREADS.is_dir(), reason="threads have priorities of their own on Linux only")
def test_every_thread_of_the_process_gives_way_and_those_it_starts_later() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    count, *priorities = map(int, done.stdout.split())
    assert count >= 2
    assert all(priority >= NICE for priority in priorities)
