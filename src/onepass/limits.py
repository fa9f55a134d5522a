"""What this process may use of its machine, cores and memory: by affinity and by the control groups of a container.

`os.cpu_count` and `sysconf` tell what the machine has. In a container with `--cpus 2` on a machine of 64 cores, 64
threads use up their share of a period within milliseconds and then stand still until the next. Linux only; elsewhere
the machine's own numbers stand.
"""

import math
import os
import re
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

PROCESS = Path("/proc/self")
THREADS = "PJRT_NPROC"  # how many threads XLA computes with on a CPU; read when JAX first asks for its devices
NONE = 1 << 62  # version 1 says so of memory without a limit


@dataclass(frozen=True)
class Group:
    """One control group: its folder, and whether it is of version 2."""

    folder: Path
    unified: bool

    def cores(self) -> float | None:
        if self.unified:
            quota, _, period = self._read("cpu.max").partition(" ")
        else:
            quota, period = self._read("cpu.cfs_quota_us"), self._read("cpu.cfs_period_us")
        known = quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0
        return int(quota) / int(period) if known else None

    def memory(self) -> int | None:
        limit = self._read("memory.max" if self.unified else "memory.limit_in_bytes")
        return int(limit) if limit.isdigit() and 0 < int(limit) < NONE else None

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""


def usable_cores(process: Path = PROCESS) -> int:
    """Cores that the process may keep busy, rounded up; at least one."""
    limits = [group.cores() for group in control_groups("cpu", process)]
    return max(1, min([schedulable_cores(), *(math.ceil(limit) for limit in limits if limit is not None)]))


def schedulable_cores() -> int:
    """Cores that the process's threads may be put on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory(process: Path = PROCESS) -> int:
    """Bytes that the process may have; other processes may have taken them."""
    limits = [group.memory() for group in control_groups("memory", process)]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit in limits if limit is not None)])


def limit_threads(environment: MutableMapping[str, str], process: Path = PROCESS) -> None:
    """Has XLA start as many threads as control groups allow cores, unless the user says how many: XLA itself knows of
    affinity alone. It must be called before JAX is asked for its devices."""
    cores = usable_cores(process)
    if cores < schedulable_cores() and not environment.keys() & {THREADS, "NPROC"}:
        environment[THREADS] = str(cores)


def control_groups(controller: str, process: Path = PROCESS) -> Iterator[Group]:
    """Those that limit the process, from its own up to the mount: each may have a limit."""
    paths = _paths(process)
    for root, mount, kind, options in _mounts(process):
        unified = kind == "cgroup2"
        path = paths.get("" if unified else controller)
        if path is None or not (unified or controller in options) or not path.is_relative_to(root):
            continue
        folder = mount / path.relative_to(root)
        while folder.is_relative_to(mount):
            yield Group(folder, unified)
            folder = folder.parent


def _paths(process: Path) -> dict[str, Path]:
    """The process's group of every controller of version 1, and under "" of version 2."""
    rows = [line.split(":", 2) for line in _lines(process / "cgroup")]
    return {name: Path(row[2]) for row in rows if len(row) == 3 for name in row[1].split(",")}


def _mounts(process: Path) -> Iterator[tuple[Path, Path, str, list[str]]]:
    """Of control groups: the group that is mounted, where, the version, and the controllers of version 1."""
    for line in _lines(process / "mountinfo"):
        ours, _, source = line.partition(" - ")
        fields, (kind, *rest) = ours.split(), source.split() or [""]
        if kind in ("cgroup", "cgroup2") and len(fields) > 4:
            yield _unescaped(fields[3]), _unescaped(fields[4]), kind, rest[-1].split(",") if rest else []


def _unescaped(path: str) -> Path:
    return Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
