"""On a CPU weights are read to where the programs read them: no copy, and no more reading after an error."""

import threading
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from onepass.errors import BadCheckpoint
from onepass.loading import host_weights
from onepass.loading.host_weights import fill_host_leaves, put_leaf
from onepass.loading.tensor_reader import TensorInfo, silent
from onepass.models.weights import Leaf, Part

ROWS, WIDTH, LAYERS = 700, 512, 3


class DrawnReader:
    """Tensors drawn from their names; `fails` is one that cannot be read."""

    def __init__(self, fails: str | None = None) -> None:
        self.fails = fails
        self.reads = 0
        self._lock = threading.Lock()

    def tensors(self) -> Mapping[str, TensorInfo]:
        raise AssertionError("the caller has checked them")

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        with self._lock:
            self.reads += 1
        if name == self.fails:
            raise BadCheckpoint(f"{name} is damaged")
        return tensor(name)[index]

    def close(self) -> None: ...


def tensor(name: str) -> np.ndarray:
    return np.random.default_rng(sum(name.encode())).standard_normal((ROWS, WIDTH), np.float32)


def leaves() -> list[Leaf]:
    pair = tuple(Part(f"{half}.{{layer}}", (ROWS, WIDTH), (at,)) for at, half in enumerate(("gate", "up")))
    return [
        Leaf((ROWS, WIDTH), ("vocab", None), (Part("table", (ROWS, WIDTH)),), 0.02),
        Leaf((LAYERS, 2, ROWS, WIDTH), ("layers", None, None, None), pair, 0.02),
    ]


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)])
def test_every_row_stands_in_its_place(dtype: np.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_weights, "TASK_BYTES", 100 * WIDTH * 4)
    seen: list[int] = []
    table, pair = fill_host_leaves(leaves(), DrawnReader(), dtype, lambda _, done, of: seen.append(done), 7)
    assert (np.asarray(table) == tensor("table").astype(dtype)).all()
    for layer in range(LAYERS):
        for at, half in enumerate(("gate", "up")):
            assert (np.asarray(pair[layer, at]) == tensor(f"{half}.{layer}").astype(dtype)).all()
    assert seen == sorted(seen)
    assert seen[-1] == 1 + 2 * LAYERS, "a tensor that is read in parts counts once"


def test_jax_takes_the_memory_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated: list[int] = []
    allocate = host_weights.allocate

    def remembered(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        array = allocate(shape, dtype)
        allocated.append(array.ctypes.data)
        return array

    monkeypatch.setattr(host_weights, "allocate", remembered)
    arrays = fill_host_leaves(leaves(), DrawnReader(), np.dtype(np.float32), silent, 7)
    assert [array.unsafe_buffer_pointer() for array in arrays] == allocated


def test_after_an_error_no_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_weights, "MAX_THREADS", 1)
    many = [Leaf((ROWS, WIDTH), (None, None), (Part(f"one {n}", (ROWS, WIDTH)),), 1.0) for n in range(50)]
    reader = DrawnReader(fails="one 0")
    with pytest.raises(BadCheckpoint, match="one 0 is damaged"):
        fill_host_leaves(many, reader, np.dtype(np.float32), silent, 50)
    assert reader.reads < 50


def test_a_leaf_on_its_way_to_a_device_has_the_numbers_of_one_filled_in_place() -> None:
    dtype = np.dtype(np.float32)
    filled = fill_host_leaves(leaves(), DrawnReader(), dtype, silent, 7)
    for leaf, expected in zip(leaves(), filled, strict=True):
        np.testing.assert_array_equal(put_leaf(leaf, DrawnReader(), dtype), expected)
