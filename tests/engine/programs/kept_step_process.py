"""A process that runs all programs of a tiny model, from the store in FOLDER where it has them: for
`test_kept`. `kept_step_process.py FOLDER ATTENTION`; the answer is one line of JSON on stdout."""

import hashlib
import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.steps import Sequence, layout
from onepass.attention.base import Attention, StepShape
from onepass.attention.xla import Xla
from onepass.engine.config import EngineConfig, describe_device
from onepass.engine.parts import EngineParts
from onepass.engine.programs import key as program_key
from onepass.engine.programs.builder import ProgramBuilder
from onepass.engine.programs.kept import KeptPrograms
from onepass.engine.programs.step_arrays import sizes
from onepass.engine.programs.store import ProgramStore
from onepass.models.config import ModelConfig
from onepass.models.layer_ops import XlaLayerOps
from onepass.models.random import random_weights
from onepass.models.rope import Rope

CONFIG = ModelConfig("qwen3", 512, 64, 2, 4, 2, 32, 96, 256, 1e-6, Rope(1e6), True, qk_norm=True)


def parts_of(attention: Attention) -> EngineParts:
    weights = random_weights(CONFIG, jnp.dtype(jnp.float32))
    config = EngineConfig(max_batch_tokens=64, cache_bytes=0, tp=1, dp=1)
    return EngineParts(CONFIG, weights, config, describe_device(), attention, XlaLayerOps())


def attention_of(name: str) -> Attention:
    if name == "xla":
        return Xla(page=64)
    from onepass.kernels.cpu.attention import CpuAttention
    from onepass.kernels.cpu.build import load_cpu

    load_cpu()
    return CpuAttention()


def numbers_of(shape: StepShape, num_pages: int) -> np.ndarray:
    """Two contexts, one of them kept, with items and branches, as `packing` sends them; read at every second token."""
    sequences = [Sequence(0, 20, ((4, ()), (3, (2, 1)))), Sequence(9, 0, ((5, ()),))]
    rng = np.random.default_rng(0)
    step = layout(sequences, shape.tokens, shape.entries, shape.page, num_pages, rng)
    queries, pages, count = step.queries, step.pages, int(step.queries.count)
    readouts, pairs = np.zeros(shape.readouts, np.int32), np.arange(shape.pairs, dtype=np.int32)
    readouts[: count // 2] = np.arange(0, count - 1, 2)
    parts = [
        rng.integers(0, CONFIG.vocab_size, shape.tokens), *jax.tree.leaves(queries.places), step.slots,
        queries.first_entry, queries.context_keys, queries.first_own, *jax.tree.leaves(pages),
        readouts, pairs % (count // 2), pairs, np.array([count, count // 2]),
    ]  # fmt: skip
    return np.concatenate([np.asarray(part, np.int32).reshape(-1) for part in parts])


def arrays(builder: ProgramBuilder, program: Any) -> Any:
    """Arguments of the program's own shapes."""
    arguments = getattr(builder, f"_{program.kind}")(program)[1]
    rng = np.random.default_rng(0)
    shape = next((shape for shape in builder.ladder.shapes if shape.tokens == program.tokens), None)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
        if shape is not None and leaf.shape == (sum(sizes(shape)),):
            return jnp.asarray(numbers_of(shape, builder.pages))
        return jnp.asarray(rng.integers(0, 8, leaf.shape), leaf.dtype)

    return jax.tree.map(fill, arguments, is_leaf=lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


def main(folder: Path, attention: str) -> None:
    computes = attention_of(attention)  # the first process says that it builds the kernels
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("onepass").addHandler(handler)
    program_key.step_sources = lambda: ()  # type: ignore[assignment]  # files may be edited between two processes
    parts = parts_of(computes)
    builder, kept = parts.builder(), KeptPrograms(ProgramStore(folder), parts)
    answer: dict[str, Any] = {"found": 0, "digests": {}, "donated": {}}
    for program in builder.programs():
        executable = kept.load(program)
        answer["found"] += executable is not None
        if executable is None:
            made = kept.compile(program, partial(builder.lower, program))
            executable = made.executable
            assert made.bytes == kept.bytes(program) > 0
        arguments = arrays(builder, program)
        results = jax.tree.leaves(executable(*arguments))
        assert all(np.isfinite(np.asarray(result)).all() for result in results)
        data = b"".join(np.asarray(result).tobytes() for result in results)
        answer["digests"][str(program)] = hashlib.sha256(data).hexdigest()
        answer["donated"][str(program)] = any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments))
    print(json.dumps({**answer, "warnings": warnings}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
