"""Where PyTorch computes: on a GPU that has room for the model beside whoever asks, else on the CPU. And what its
process imports: Python's own modules, whatever lies beside the script."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onepass.validate import torch_oracle
from onepass.validate.torch_parity import Torch


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


def test_modules_beside_the_script_are_not_taken_for_pythons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages that PyTorch's users install import `html`, and `onepass.validate` has a module of that name."""
    (tmp_path / "html.py").write_text("raise ImportError('the wrong one')")
    script = tmp_path / "oracle.py"
    script.write_text("""
import html, json, sys
with open(sys.argv[2], "w") as answered:
    json.dump({"versions": {"escaped": html.escape("<")}, "logprobs": [[-1.0]]}, answered)
""")
    monkeypatch.setattr(torch_oracle, "__file__", str(script))
    torch = Torch(Path(sys.executable), tmp_path, "float32")
    assert np.array_equal(torch.logprobs([(1, 2)], [3]), [[-1.0]])
    assert torch.versions == {"escaped": "&lt;"}
