"""Where PyTorch computes: on a GPU that has room for the model beside whoever asks, else on the CPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from onepass.validate import torch_oracle


def a_torch(gpu: bool, free: int) -> Any:
    """Stands for a PyTorch that sees a GPU, which no machine of these tests has."""
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: gpu, mem_get_info=lambda: (free, 1 << 40)))


def a_model(bytes_held: int) -> Any:
    half = SimpleNamespace(numel=lambda: bytes_held // 4, element_size=lambda: 2)
    return SimpleNamespace(parameters=lambda: iter([half, half]))


@pytest.mark.parametrize(
    ("gpu", "free", "device"), [(False, 1 << 40, "cpu"), (True, 1 << 34, "cuda"), (True, (1 << 30) * 5 // 4, "cpu")]
)
def test_the_device_is_one_with_room(gpu: bool, free: int, device: str) -> None:
    assert torch_oracle._device(a_torch(gpu, free), a_model(1 << 30)) == device
