"""On a CPU the engine's threads take every core: `give_way` lets the front's threads run first when they want to.

The front's work for a request is a millisecond, the engine's a second. With equal priority the front waited for a turn
behind each of the engine's threads, and so did `/live`.
"""

import os
from contextlib import suppress
from pathlib import Path

NICE = 5  # a third of the front's share of a core that both want
THREADS = Path("/proc/self/task")  # Linux; elsewhere nothing is done


def give_way() -> int:
    """Lower the priority of every thread of this process, and so of those they start. Returns how many there were."""
    changed = 0
    for thread in _threads():
        with suppress(OSError):  # it has ended, or the process may not
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
            changed += 1
    return changed


def _threads() -> list[int]:
    return [int(task.name) for task in THREADS.iterdir()] if THREADS.is_dir() else []
