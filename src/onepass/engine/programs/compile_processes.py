"""Step programs compiled in processes of their own, side by side: `CompileProcesses`.

Lowering a GPU's kernels is Python's work, which one process does for one program at a time: four step programs in
threads took an H200's host 85 s where one alone takes 25. Each process leaves its program in the store, where the
caller finds it; one that fails costs nothing but its time, for the caller compiles that program itself. The other end
of the line is `compile_process`.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax

from onepass.engine.programs.builder import Program
from onepass.limits import usable_cores

if TYPE_CHECKING:
    from onepass.engine.parts import EngineParts

log = logging.getLogger("onepass")

LEAST_CORES = 4  # with fewer, processes would wait for each other instead
LONGEST_SECONDS = 600.0  # then a process hangs


@dataclass(frozen=True)
class Job:
    """A program of an engine whose weights are shapes, and the digest that its key has where the job was made: what is
    compiled under other settings would not be found."""

    parts: "EngineParts"
    program: Program
    digest: str


class CompileProcesses:
    def __init__(self, parts: "EngineParts") -> None:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parts.weights)
        self._parts = replace(parts, weights=shapes)
        self._running: dict[Program, subprocess.Popen[bytes]] = {}

    def __contains__(self, program: Program) -> bool:
        return program in self._running

    def start(self, program: Program, digest: str) -> None:
        try:
            self._running[program] = _start(Job(self._parts, program, digest))
        except OSError as error:  # no memory, no more processes
            log.warning("no process for compiling %s: %s", program, error)

    def stop(self) -> None:
        """Whoever waits gets an error instead of a program: nobody wants it any more."""
        stopped, self._running = self._running, {}
        for process in stopped.values():
            process.kill()

    def done(self, program: Program) -> bool:
        """Waits for the process; whether it has left its program in the store."""
        process = self._running.get(program)
        if process is None:
            raise InterruptedError(f"compiling {program} was stopped")
        assert process.stdin is not None
        try:
            status = process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdin.close()
        if self._running.pop(program, None) is None:
            raise InterruptedError(f"compiling {program} was stopped")
        if status != 0:
            log.warning("the process for compiling %s failed (%s): compiling it here", program, status)
        return status == 0


def helps(parts: "EngineParts") -> bool:
    """Where lowering is Python's work and a second process may have the device: GPUs, a model on one of them. A TPU
    belongs to one process."""
    gpu = parts.device.platform in ("gpu", "cuda") and parts.config.attention == "hopper"
    return gpu and parts.mesh is None and (parts.config.dp or 1) == 1 and usable_cores() >= LEAST_CORES


def to_compile_apart(programs: Sequence[Program]) -> list[Program]:
    """Those with kernels, if there are several: one alone is compiled sooner where Python and JAX run already."""
    steps = [program for program in programs if program.kind == "step"]
    return steps if len(steps) > 1 else []


def _start(job: Job) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join(path for path in sys.path if path)
    # Three quarters of the GPU's memory, JAX's own habit, belong to whoever asked.
    environment = {**os.environ, "PYTHONPATH": paths, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "onepass.engine.programs.compile_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        bufsize=0,  # a job is two kilobytes: it fits the pipe
        start_new_session=True,  # a terminal's Ctrl-C is for whoever asked
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has died already; `done` says so
        process.stdin.write(pickle.dumps(job))
    return process  # its stdin stays open: it is how the process knows that we are there
