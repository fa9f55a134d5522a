"""A small step program with a donated pool, and processes that save, load and run it for `test_store`.

Run as a script: `program_process.py COMMAND FOLDER [ARGUMENT]`; the answer is one line of JSON on stdout.
"""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onepass.attention.base import KvPool, StepShape
from onepass.engine.programs import program_file
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.key import ProgramKey, Toolchain, signature
from onepass.engine.programs.store import ProgramStore

LAYERS, WIDTH, PAGES = 3, 32, 8


def step(weights: jax.Array, pool: KvPool, tokens: jax.Array) -> tuple[jax.Array, KvPool]:
    """Every layer writes into its own part of the pool, which stays where it lies."""

    def layer(carry: Any, inputs: Any) -> Any:
        hidden, k = carry
        number, weight = inputs
        hidden = jnp.tanh(hidden @ weight)
        return (hidden, k.at[number, 1, : hidden.shape[0], 0].set(hidden)), hidden.sum()

    (hidden, k), sums = jax.lax.scan(layer, (tokens, pool.k), (jnp.arange(LAYERS), weights))
    return jnp.cumsum(hidden, axis=-1) + sums.sum(), KvPool(k, pool.v + 1)


def arguments(tokens: int) -> tuple[jax.Array, KvPool, jax.Array]:
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=(LAYERS, WIDTH, WIDTH)), jnp.float32)
    pool = KvPool(*(jnp.zeros((LAYERS, PAGES, 64, 1, WIDTH)) for _ in range(2)))
    return weights, pool, jnp.asarray(rng.normal(size=(tokens, WIDTH)), jnp.float32)


def key_of(tokens: int) -> ProgramKey:
    return ProgramKey(
        name="step",
        model="two small layers and one more",
        dtype="float32",
        quantize=None,
        kernels=("xla", "xla"),
        shape=StepShape(tokens, tokens // 8, tokens // 4, 16, 64),
        pool_pages=PAGES,
        mesh="one device",
        toolchain=Toolchain.here(jax.devices()[:1], source="as it is"),
        arguments=signature(arguments(tokens)),
    )


def compiled(tokens: int) -> jax.stages.Compiled:
    return compile_whole(jax.jit(step, donate_argnums=1).lower(*arguments(tokens)))


def run(program: Any, tokens: int) -> dict[str, Any]:
    """What the program computes, exactly, and whether the pool stayed in place."""
    weights, pool, hidden = arguments(tokens)
    before = pool.k.unsafe_buffer_pointer()
    scores, after = program(weights, pool, hidden)
    return {
        "scores": np.asarray(scores).tobytes().hex(),
        "pool": np.asarray(after.k).tobytes().hex()[:20_000],
        "in_place": after.k.unsafe_buffer_pointer() == before and pool.k.is_deleted(),
    }


def save(store: ProgramStore, tokens: int) -> dict[str, Any]:
    program = compiled(tokens)
    return {"saved": store.save(key_of(tokens), program), **run(program, tokens)}


def load(store: ProgramStore, tokens: int) -> dict[str, Any]:
    program = store.load(key_of(tokens))
    return {"found": program is not None, **({} if program is None else run(program, tokens))}


def hang(store: ProgramStore, point: str) -> None:
    """Write a program as far as `point`, say so, and wait to be killed."""

    def say_and_wait(*_: Any, **__: Any) -> Any:
        print(json.dumps({"at": point}), flush=True)
        time.sleep(600)

    class Os:
        """The module `os` as the store sees it, up to that point."""

        def __getattr__(self, name: str) -> Any:
            if name == "write" and point in ("opened", "header", "half"):
                return self.write_some
            return say_and_wait if name == point else getattr(os, name)

        def write_some(self, descriptor: int, data: memoryview) -> int:
            size = {"opened": 0, "header": program_file.HEADER.size}.get(point, len(data) // 2)
            if len(data) <= program_file.HEADER.size and size:
                return os.write(descriptor, data)
            os.write(descriptor, data[: 0 if point == "header" else size])
            say_and_wait()
            return 0

    program_file.os = Os()  # type: ignore[attr-defined, assignment]
    store.save(key_of(8), compiled(8))


def hammer(folder: Path, rounds: int) -> dict[str, Any]:
    """Save, load, run and evict three programs in a folder that has room for two, while others do the same."""
    programs = {tokens: compiled(tokens) for tokens in (8, 16, 24)}
    right = {tokens: run(program, tokens)["scores"] for tokens, program in programs.items()}
    ProgramStore(folder).save(key_of(8), programs[8])
    store = ProgramStore(folder, max_bytes=int(2.5 * ProgramStore(folder).size))
    counts = {"saved": 0, "found": 0, "wrong": 0}
    rng = np.random.default_rng(os.getpid())
    for _ in range(rounds):
        tokens = int(rng.choice([8, 16, 24]))
        counts["saved"] += store.save(key_of(tokens), programs[tokens]) > 0
        tokens = int(rng.choice([8, 16, 24]))
        if (program := store.load(key_of(tokens))) is not None:
            counts["found"] += 1
            counts["wrong"] += run(program, tokens)["scores"] != right[tokens]
        if rng.random() < 0.1:
            store.evict(key_of(tokens))
    return counts


def limited(store: ProgramStore) -> dict[str, Any]:
    """Save where no file may grow beyond 4 kB: the kernel's own refusal halfway through a write."""
    import resource

    program = compiled(8)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    return {"saved": store.save(key_of(8), program), **run(program, 8)}


def main(command: str, folder: Path, argument: str = "8") -> None:
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("onepass").addHandler(handler)
    store = ProgramStore(folder)
    match command:
        case "save":
            answer = save(store, int(argument))
        case "load":
            answer = load(store, int(argument))
        case "hang":
            return hang(store, argument)
        case "hammer":
            answer = hammer(folder, int(argument))
        case "limited":
            answer = limited(store)
    print(json.dumps({**answer, "warnings": warnings}), flush=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
