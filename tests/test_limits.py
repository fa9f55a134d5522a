"""Cores and memory as control groups allow them: both versions, nested groups, containers with and without a namespace
of their own; and a real group, where one can be made here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onepass.limits import THREADS, limit_threads, schedulable_cores, usable_cores, usable_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)


def process(folder: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A folder like /proc/self, with control groups in `folder`."""
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text("".join(f"{line}\n" for line in ["22 1 0:5 / /proc rw - proc proc rw", *mounts]))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


def unified(folder: Path, own: str = "/", root: str = "/", **files: str) -> Path:
    mount = f"30 22 0:26 {root} {folder}/fs rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    return process(folder, f"0::{own}\n", [mount], {f"fs/{k.replace('_', '.')}": v for k, v in files.items()})


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 64),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("9900000 100000", 64),
        ("", 64),
    ],
)
def test_a_quota_of_version_2_limits_cores(quota: str, cores: int, tmp_path: Path) -> None:
    assert usable_cores(unified(tmp_path, cpu_max=quota)) == cores


def test_the_tightest_of_the_groups_above_counts(tmp_path: Path) -> None:
    found = unified(tmp_path, own="/pod/app", cpu_max="max 100000")
    for group, quota in {"pod": "300000 100000", "pod/app": "800000 100000", "pod/other": "100000 100000"}.items():
        (tmp_path / "fs" / group).mkdir()
        (tmp_path / "fs" / group / "cpu.max").write_text(quota)
    assert usable_cores(found) == 3


def test_a_group_that_is_mounted_itself_is_found(tmp_path: Path) -> None:
    """As containers without a namespace of their own see it: the path is the host's, the mount is the group."""
    assert usable_cores(unified(tmp_path, own="/docker/ab", root="/docker/ab", cpu_max="400000 100000")) == 4
    elsewhere = unified(tmp_path, own="/docker/cd", root="/docker/ab", cpu_max="400000 100000")
    assert usable_cores(elsewhere) == 64, "another group's limit"


@pytest.mark.parametrize(("quota", "period", "cores"), [("-1", "100000", 64), ("250000", "100000", 3), ("x", "", 64)])
def test_a_quota_of_version_1_limits_cores(quota: str, period: str, cores: int, tmp_path: Path) -> None:
    mount = f"31 22 0:27 / {tmp_path}/my\\040cpu rw - cgroup cgroup rw,cpu,cpuacct"
    files = {"my cpu/app/cpu.cfs_quota_us": quota, "my cpu/app/cpu.cfs_period_us": period}
    assert usable_cores(process(tmp_path, "3:cpu,cpuacct:/app\n1:memory:/\n", [mount], files)) == cores


def test_memory_has_the_groups_limit(tmp_path: Path) -> None:
    assert usable_memory(unified(tmp_path, memory_max="max")) == MACHINE
    assert usable_memory(unified(tmp_path, memory_max=str(GIB))) == GIB
    mount = f"31 22 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory"
    for limit, expected in (("9223372036854771712", MACHINE), (str(2 * GIB), 2 * GIB)):
        found = process(tmp_path, "3:memory:/\n", [mount], {"memory/memory.limit_in_bytes": limit})
        assert usable_memory(found) == expected


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert (usable_cores(tmp_path), usable_memory(tmp_path)) == (64, MACHINE)


def test_xla_is_told_of_a_limit_unless_the_user_says_another(tmp_path: Path) -> None:
    limited = unified(tmp_path, cpu_max="200000 100000")
    environment: dict[str, str] = {}
    limit_threads(environment, limited)
    assert environment == {THREADS: "2"}
    for name in (THREADS, "NPROC"):
        own = {name: "5"}
        limit_threads(own, limited)
        assert own == {name: "5"}
    free: dict[str, str] = {}
    limit_threads(free, unified(tmp_path, cpu_max="max 100000"))
    assert free == {}


SCRIPT = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
os.environ.pop("NPROC", None)
from onepass.limits import limit_threads, usable_cores
limit_threads(os.environ)
import jax.numpy as jnp
(jnp.ones((256, 256)) @ jnp.ones((256, 256))).block_until_ready()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(usable_cores(), sum("XLAEigen" in name for name in names))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of one core, of version 1: those of version 2 are somebody's to delegate."""
    folder = Path(f"/sys/fs/cgroup/cpu/onepass-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("100000")
    except OSError as why:
        pytest.skip(f"no control group can be made here: {why}")
    yield folder
    folder.rmdir()


def test_in_a_group_of_one_core_xla_has_one_thread(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if schedulable_cores() < 2:
        pytest.skip("the machine has one core anyway")
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", THREADS)}
    command = [sys.executable, "-c", SCRIPT, str(group)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
