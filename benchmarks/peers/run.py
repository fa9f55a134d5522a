"""Runs one peer on one job, in the environment it needs, and always leaves an answer. Standard library only.

    python benchmarks/peers/run.py --list
    python benchmarks/peers/run.py --peer transformers-packed --job job.json --out out.json [--build | --here]

The job and the answer are described in `job`; peers in `catalogue`. Comparing answers is `onepass bench`'s work.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import environments
from catalogue import PEERS, PeerEntry
from job import failed


def main() -> None:
    asked = _arguments()
    if asked.list:
        _list(asked.json)
        return
    entry = PEERS[asked.peer]
    try:
        python = _python(entry, asked.here, asked.build)
    except environments.NoEnvironment as reason:
        _write(asked.out, entry, str(reason))
        return
    _run(entry, python, asked.job, asked.out, asked.timeout)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the peers, and whether their environment is there")
    parser.add_argument("--json", action="store_true", help="with --list: as one JSON document")
    parser.add_argument("--peer", choices=list(PEERS))
    parser.add_argument("--job", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build", action="store_true", help="build the peer's environment where it is missing")
    parser.add_argument("--here", action="store_true", help="use the Python that runs this, as it is")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds until the peer is given up (900)")
    asked = parser.parse_args()
    if not asked.list and not (asked.peer and asked.job and asked.out):
        parser.error("either --list or all of --peer, --job and --out should be given")
    return asked


def _list(as_json: bool) -> None:
    rows = [
        {
            "peer": entry.name,
            "devices": list(entry.devices),
            "environment": entry.environment,
            "ready": environments.find(entry.environment) is not None,
            "needs_gguf": entry.needs_gguf,
            "int8": entry.int8,
            "about": entry.about,
        }
        for entry in PEERS.values()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        state = "ready" if row["ready"] else "not built"
        print(f"{row['peer']:<22} {','.join(row['devices']):<9} {row['environment']:<12} {state:<10} {row['about']}")


def _python(entry: PeerEntry, here: bool, build: bool) -> Path:
    if here:
        return Path(sys.executable)
    found = environments.find(entry.environment)
    if found is None and build:
        found = environments.build(entry.environment)
    if found is None:
        raise environments.NoEnvironment(f"the environment {entry.environment!r} is not built; --build builds it")
    return found


def _run(entry: PeerEntry, python: Path, job: Path, out: Path, timeout: float) -> None:
    """The peer in a process group of its own, so that giving it up also ends what it started."""
    out.unlink(missing_ok=True)
    command = [str(python), str(environments.HERE / entry.script)]
    command += ["--peer", entry.name, "--job", str(job.absolute()), "--out", str(out.absolute())]
    grouped = {"start_new_session": True, "preexec_fn": _end_with_parent}
    with subprocess.Popen(command, env=_environment(), stdout=sys.stderr, **grouped) as process:
        try:
            code = _wait(process, timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also whatever it has started
    if code is None:
        _write(out, entry, f"given up after {timeout:g} s")
        return
    if not out.exists():
        _write(out, entry, f"the peer's process exited with {code} and left no answer")


def _end_with_parent() -> None:
    """In the peer, before it starts: when this process is killed, so is the peer. Linux only; elsewhere it lives on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _wait(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The peer's exit status; None when its time is up. Whoever asked for it may be gone before it ends: nobody would
    read the answer, so it ends too."""
    asked_by, until = os.getppid(), time.monotonic() + timeout
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
        if os.getppid() != asked_by:
            sys.exit("whoever asked for this peer has gone")
    return None


def _environment() -> dict[str, str]:
    """Nothing is fetched, and nothing of onepass's own environment leaks into the peer's."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _write(out: Path, entry: PeerEntry, error: str) -> None:
    print(f"{entry.name}: {error}", file=sys.stderr)
    out.write_text(json.dumps(failed(entry.name, error)), encoding="utf-8")


if __name__ == "__main__":
    main()
