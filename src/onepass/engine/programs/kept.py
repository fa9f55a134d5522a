"""An engine's own programs in the store on disk: which key each of them has, and on which devices it runs.

The store is `store`; what could change a program is `key`. A store that cannot be used costs a
compilation, never an answer.
"""

import re
from collections.abc import Callable, Sequence

import jax

from onepass.engine.parts import EngineParts
from onepass.engine.programs.builder import Program, ProgramBuilder
from onepass.engine.programs.compile_processes import CompileProcesses, helps, to_compile_apart
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.compiled import Made
from onepass.engine.programs.key import ProgramKey, Toolchain, signature, stable_text
from onepass.engine.programs.store import ProgramStore, default_programs_dir


class KeptPrograms:
    """`processes` compile some of several programs beside this one; None: all are compiled here."""

    def __init__(self, store: ProgramStore, parts: EngineParts, processes: CompileProcesses | None = None) -> None:
        self.store = store
        self._processes = processes
        self._parts = parts
        self.builder: ProgramBuilder = parts.builder()
        mesh = parts.mesh
        self._devices = [jax.local_devices()[0]] if mesh is None else list(mesh.devices.flat)
        self._toolchain = Toolchain.here(self._devices)

    def load(self, program: Program) -> jax.stages.Compiled | None:
        return None if self._is_apart(program) else self.store.load(self.key(program), self._devices)

    def compile_ahead(self, programs: Sequence[Program]) -> list[Program]:
        if self._processes is None or self.store.problem() is not None:
            return []
        missing = [program for program in programs if not self.bytes(program)]
        apart = to_compile_apart(missing)
        for program in apart:
            self._processes.start(program, self.key(program).digest())
        return apart

    def stop_compiling(self) -> None:
        if self._processes is not None:
            self._processes.stop()

    def compile(self, program: Program, lower: Callable[[], jax.stages.Lowered]) -> Made:
        """`bytes` is 0 where it is not kept."""
        key = self.key(program)
        if self._is_apart(program):
            assert self._processes is not None
            kept = self.store.load(key, self._devices) if self._processes.done(program) else None
            if kept is not None:
                return Made(kept, self.bytes(program), read_back=True)
        compiled = compile_whole(lower())
        return Made(compiled, self.store.save(key, compiled), read_back=False)

    def _is_apart(self, program: Program) -> bool:
        return self._processes is not None and program in self._processes

    def bytes(self, program: Program) -> int:
        return self.store.bytes_of(self.key(program))

    def discard(self, program: Program) -> None:
        self.store.evict(self.key(program))

    def key(self, program: Program) -> ProgramKey:
        parts, builder = self._parts, self.builder
        shapes = {shape.tokens: shape for shape in builder.ladder.shapes}
        return ProgramKey(
            name=str(program),
            model=stable_text(parts.model_config),
            dtype=str(parts.weights.embed.dtype),
            quantize=parts.config.quantize,
            kernels=(_described(parts.attention), _described(parts.ops)),
            shape=shapes.get(program.tokens, builder.ladder.largest),
            pool_pages=builder.pages,
            mesh="" if parts.mesh is None else str(parts.mesh),
            toolchain=self._toolchain,
            arguments=signature(builder.arguments(program)),
        )


def kept_programs(parts: EngineParts) -> KeptPrograms:
    store = ProgramStore(parts.config.programs_dir or default_programs_dir())
    return KeptPrograms(store, parts, CompileProcesses(parts) if helps(parts) else None)


def _described(part: object) -> str:
    """Its settings in words; functions by name, for where they lie in memory is another place in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(part))
