"""The other processes of a model that spans hosts: each compiles and runs what process 0 says, until its line ends.

Results stay where they are: process 0 reads them. What is said is drawn in `leader`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from onepass.engine.config import EngineConfig, describe_device
from onepass.engine.kernels import kernels_for
from onepass.engine.load import Dtype, load_model
from onepass.engine.packing import Packed
from onepass.engine.parts import EngineParts
from onepass.engine.programs.builder import Program
from onepass.engine.programs.kept import kept_programs
from onepass.engine.runner import Runner
from onepass.errors import OnepassError
from onepass.ipc import Frame, FrameSocket
from onepass.loading.source import SourceOptions
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.layout import Layout, mesh_of
from onepass.parallel.hosts import Hosts


class Follower:
    def __init__(self, runner: Runner, line: FrameSocket) -> None:
        self._runner = runner
        self._line = line

    def follow(self) -> None:
        """Until process 0 says that it ends; raises when it goes without a word, and what goes wrong here, after
        telling process 0. The line stays open for `leave`."""
        try:
            while (frame := self._read()).kind != "end":
                if frame.kind == "compile":
                    self._compile(Program(**frame.fields))
                elif frame.kind == "pool":
                    self._runner.new_pool()
                else:
                    assert frame.kind == "step", f"an unknown frame: {frame.kind}"
                    self._step(frame.fields, frame.arrays)
        except Exception as error:
            self._fail(error)
            raise

    def leave(self) -> None:
        """Process 0 waits for the end of the line before it goes."""
        self._line.close()

    def _read(self) -> Frame:
        try:
            frame = self._line.read()
        except OSError as error:
            raise OnepassError(f"process 0 has gone: {error}") from error
        if frame is None:
            raise OnepassError("process 0 has gone without a word")
        return frame

    def _compile(self, program: Program) -> None:
        """Beside the steps, as process 0 does it."""

        def compile_and_answer() -> None:
            self._runner.compile(program)
            self._line.write(Frame("compiled", fields=asdict(program)))

        self._beside(compile_and_answer)

    def _step(self, fields: dict[str, Any], arrays: dict[str, Any]) -> None:
        shape = next(s for s in self._runner.builder.ladder.shapes if s.tokens == fields["tokens"])
        packed = Packed(arrays["numbers"], 0, fields["num_readouts"], [], arrays["pair_at"], arrays["labels"])
        copies = [(source, target) for source, target in fields["copies"]]
        output = self._runner.run(shape, packed, copies, fields["whole_vocabulary"])
        # Not waited for here: with process 0 gone in the midst of a step, the line would not be seen to end.
        self._beside(lambda: jax.block_until_ready((output.logits, output.vocabulary)))

    def _beside(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except OSError:
                pass  # process 0 has gone, as the reading thread will find
            except Exception as error:
                self._fail(error)

        threading.Thread(target=run, name="onepass-follower", daemon=True).start()

    def _fail(self, error: Exception) -> None:
        with suppress(OSError):
            self._line.write(Frame("failed", fields={"reason": f"{type(error).__name__}: {error}"[:500]}))


def follow(
    model: str,
    hosts: Hosts,
    *,
    dtype: Dtype = "auto",
    revision: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    adapter: str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> None:
    """The part of every process but the first: computes what process 0 says, until that closes its scorer."""
    config = EngineConfig.from_options(options)
    source = SourceOptions(revision, offline, cache_dir, progress=progress, adapter=adapter)
    loaded = load_model(model, dtype, source, config, hosts)
    mesh = mesh_of(loaded.weights)
    tp = 1 if mesh is None else mesh.size
    device, share = describe_device(tp), Layout(loaded.model.config, mesh).share
    kernels = kernels_for(replace(loaded.config, tp=tp), device, share, loaded.weights.embed.dtype)
    (line,) = hosts.lines(loaded.fingerprint())
    parts = EngineParts(
        loaded.model.config, loaded.weights, kernels.config, device, kernels.attention, kernels.ops, mesh
    )
    runner = Runner(parts.builder(), kept_programs(parts) if config.keep_programs else None)
    follower = Follower(runner, line)
    follower.follow()
    runner.close()
    hosts.leave()
    follower.leave()
