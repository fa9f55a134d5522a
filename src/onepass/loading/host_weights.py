"""Weights in the host's memory, read by several threads: where a CPU's programs will read them (`fill_host_leaves`), or
on their way to a device (`put_leaf`).

On a CPU JAX takes memory as it is, if it is aligned, so that nothing is copied and nothing is compiled to copy it.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import jax
import numpy as np

from onepass.limits import usable_cores
from onepass.loading.tensor_reader import Progress, TensorReader, silent
from onepass.models.weights import Leaf

MAX_THREADS = 8
MIN_MAPPED_BYTES = 1 << 20
TASK_BYTES = 8 << 20  # of a tensor that several threads share


def fill_host_leaves(
    leaves: Sequence[Leaf], reader: TensorReader, dtype: np.dtype, progress: Progress, total: int
) -> list[jax.Array]:
    """The leaves' arrays, in order. `total` tensors are what `progress` counts to."""
    arrays = [allocate(leaf.shape, dtype) for leaf in leaves]
    tasks = [task for leaf, array in zip(leaves, arrays, strict=True) for task in _tasks(leaf, array, reader)]
    run_tasks(tasks, progress, 0, total)
    return [jax.device_put(array, may_alias=True) for array in arrays]


def put_leaf(leaf: Leaf, reader: TensorReader, dtype: np.dtype) -> jax.Array:
    """One leaf on the default device, by way of the host's memory."""
    array = allocate(leaf.shape, dtype)
    run_tasks(list(_tasks(leaf, array, reader)), silent, 0, 0)
    return jax.device_put(array).block_until_ready()


def run_tasks(tasks: Sequence[Callable[[], int]], progress: Progress, done: int, total: int) -> None:
    """On several threads. Each returns how many tensors it has finished; `done` were finished before."""
    pool = ThreadPoolExecutor(min(MAX_THREADS, usable_cores()), "onepass-load")
    try:
        for tensors in pool.map(lambda task: task(), tasks):
            done += tensors
            progress("load", done, total)
    finally:
        pool.shutdown(cancel_futures=True)  # after an error, or Ctrl-C, no more is read


def _tasks(leaf: Leaf, array: np.ndarray, reader: TensorReader) -> Iterator[Callable[[], int]]:
    """Reading a tensor to its place, or some rows of a large one. Each returns how many tensors it has finished."""
    if not leaf.stacked and len(leaf.parts) == 1:
        name, rows = leaf.parts[0].name, max(1, TASK_BYTES // (array[:1].size * 4))
        for start in range(0, len(array), rows):
            place = slice(start, start + rows)
            yield _reading(reader, name, array[place], (place,), 1 if start + rows >= len(array) else 0)
        return
    for layer in range(leaf.shape[0] if leaf.stacked else 1):
        whole = array[layer] if leaf.stacked else array
        for part in leaf.parts:
            yield _reading(reader, part.name.format(layer=layer), whole[part.index], (), 1)


def _reading(
    reader: TensorReader, name: str, target: np.ndarray, index: tuple[slice, ...], finished: int
) -> Callable[[], int]:
    def read() -> int:
        target[...] = reader.read(name, index).reshape(target.shape)
        return finished

    return read


def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Page-aligned, in huge pages where Linux gives them: most of the time to fill fresh memory is its page faults."""
    count = int(np.prod(shape))
    size = count * dtype.itemsize
    if size < MIN_MAPPED_BYTES or not hasattr(mmap, "MAP_PRIVATE"):  # Windows has no such maps
        return np.empty(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)
