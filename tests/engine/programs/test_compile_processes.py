"""Programs that other processes compile: found, run and counted as if they had been compiled here."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.programs.kept_step_process import numbers_of, parts_of
from onepass.attention.xla import Xla
from onepass.engine.packing import pack
from onepass.engine.parts import EngineParts
from onepass.engine.programs import compile_processes
from onepass.engine.programs.builder import Program
from onepass.engine.programs.compile_process import ALONE, OTHER_KEY, end_with_caller
from onepass.engine.programs.compile_processes import CompileProcesses, Job, helps, to_compile_apart
from onepass.engine.programs.kept import KeptPrograms
from onepass.engine.programs.store import ProgramStore
from onepass.engine.runner import Runner


@pytest.fixture
def parts(tmp_path: Path) -> EngineParts:
    parts = parts_of(Xla(page=64))
    return replace(parts, config=replace(parts.config, max_batch_tokens=256, programs_dir=tmp_path / "programs"))


def runner_of(parts: EngineParts, apart: bool) -> tuple[Runner, KeptPrograms]:
    assert parts.config.programs_dir is not None
    kept = KeptPrograms(ProgramStore(parts.config.programs_dir), parts, CompileProcesses(parts) if apart else None)
    return Runner(kept.builder, kept), kept


def logits_of(runner: Runner) -> np.ndarray:
    shape = runner.builder.ladder.largest
    packed = replace(pack([], shape), numbers=numbers_of(shape, runner.builder.pages))
    return np.asarray(runner.run(shape, packed).logits[0])


def test_steps_are_compiled_apart_and_the_rest_here(parts: EngineParts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onepass")
    runner, kept = runner_of(parts, apart=True)
    lowered: list[Program] = []
    lower = runner.builder.lower
    object.__setattr__(runner.builder, "lower", lambda program: lowered.append(program) or lower(program))
    programs = runner.compile_all()
    steps = [str(program) for program in runner.builder.programs() if program.kind == "step"]
    assert len(steps) > 1
    assert not {str(program) for program in lowered} & {*steps}, "they were lowered elsewhere"
    assert {program.source for program in programs} == {"compiled"}
    assert runner.compilations == len(programs)
    assert all(program.bytes for program in programs)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    again, _ = runner_of(parts, apart=False)
    assert {program.source for program in again.compile_all()} == {"disk"}
    alone, _ = runner_of(replace(parts, config=replace(parts.config, programs_dir=kept.store.folder / "other")), False)
    assert (logits_of(runner) == logits_of(alone)).all()
    assert (logits_of(again) == logits_of(alone)).all()


def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes.sys, "executable", "/bin/false")


def is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes.sys, "executable", "/nowhere/python")


def hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Job) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)

    monkeypatch.setattr(compile_processes, "_start", start)
    monkeypatch.setattr(compile_processes, "LONGEST_SECONDS", 0.2)


def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_processes.sys, "executable", "/bin/true")


@pytest.mark.parametrize("fault", [fails, is_not_there, hangs, leaves_nothing])
def test_a_process_that_does_not_do_it_costs_a_compilation_here(
    parts: EngineParts, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    runner, _ = runner_of(parts, apart=True)
    programs = runner.compile_all()
    assert runner.compilations == len(programs)
    assert all(program.bytes for program in programs)


def test_an_interrupted_start_waits_for_no_process(parts: EngineParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, as it comes to the thread that shows progress."""
    started: list[subprocess.Popen[bytes]] = []

    def start(_: Job) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE))
        return started[-1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_processes, "_start", start)
    runner, _ = runner_of(parts, apart=True)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.compile_all(interrupted)
    assert time.monotonic() - began < compile_processes.LONGEST_SECONDS / 4
    assert started
    assert all(process.wait(10) != 0 for process in started)
    assert runner.compilations < len(runner.builder.programs()), "and compiles none of theirs here"
    step = Program("step", runner.builder.ladder.largest.tokens)
    assert runner.compile(step) is not None, "but whoever asks again gets it"


def test_a_folder_that_is_refused_is_compiled_for_here(parts: EngineParts) -> None:
    folder = parts.config.programs_dir
    assert folder is not None
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    _, kept = runner_of(parts, apart=True)
    assert kept.compile_ahead(kept.builder.programs()) == []


def test_what_would_have_another_key_is_not_compiled(parts: EngineParts) -> None:
    program = Program("step", parts.ladder.largest.tokens)
    process = compile_processes._start(Job(CompileProcesses(parts)._parts, program, "of other settings"))
    assert process.wait(120) == OTHER_KEY
    assert process.stdin is not None
    process.stdin.close()


def test_a_process_ends_with_whoever_asked_for_it() -> None:
    job = "from engine.programs.test_compile_processes import forever; forever()"
    process = subprocess.Popen(
        [sys.executable, "-c", job], stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(120) == ALONE


def forever() -> None:
    """In a process of its own: what ends a process whose caller is gone, while it has work for ever."""
    threading.Thread(target=end_with_caller, daemon=True).start()
    time.sleep(600)


def test_several_steps_are_worth_processes_and_one_is_not() -> None:
    steps = [Program("step", 64), Program("step", 128)]
    others = [Program("vocabulary", 128, 16), Program("copy")]
    assert to_compile_apart([*steps, *others]) == steps
    assert to_compile_apart([steps[0], *others]) == []


def test_only_where_kernels_are_lowered_by_python_on_one_gpu(
    parts: EngineParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    gpu = replace(
        parts,
        device=replace(parts.device, platform="gpu", hopper=True),
        config=replace(parts.config, attention="hopper"),
    )
    assert helps(gpu)
    assert not helps(parts), "a CPU"
    assert not helps(replace(gpu, device=replace(gpu.device, platform="tpu")))
    assert not helps(replace(gpu, config=replace(gpu.config, dp=2)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert not helps(gpu)
