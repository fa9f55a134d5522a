"""An engine's own programs in the store on disk: which key each of them has, and on which devices it runs.

The store is `store`; what could change a program is `key`. A store that cannot be used costs a
compilation, never an answer.
"""

import re

import jax

from onepass.engine.parts import EngineParts
from onepass.engine.programs.builder import Program, ProgramBuilder
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.key import ProgramKey, Toolchain, signature, stable_text
from onepass.engine.programs.store import ProgramStore, default_programs_dir


class KeptPrograms:
    def __init__(self, store: ProgramStore, parts: EngineParts) -> None:
        self.store = store
        self._parts = parts
        self.builder: ProgramBuilder = parts.builder()
        mesh = parts.mesh
        self._devices = [jax.local_devices()[0]] if mesh is None else list(mesh.devices.flat)
        self._toolchain = Toolchain.here(self._devices)

    def load(self, program: Program) -> jax.stages.Compiled | None:
        return self.store.load(self.key(program), self._devices)

    def compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """Such that it can be kept."""
        return compile_whole(lowered)

    def save(self, program: Program, compiled: jax.stages.Compiled) -> int:
        """Its bytes on disk; 0 where it is not kept."""
        return self.store.save(self.key(program), compiled)

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
    return KeptPrograms(ProgramStore(parts.config.programs_dir or default_programs_dir()), parts)


def _described(part: object) -> str:
    """Its settings in words; functions by name, for where they lie in memory is another place in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(part))
