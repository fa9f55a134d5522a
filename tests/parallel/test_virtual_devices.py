"""Runs the tests of `virtual/` in a process with eight virtual CPU devices: JAX reads their number once, at start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "virtual"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_on_eight_devices(name: str) -> None:
    done = run("-m", "not slow", str(FOLDER / name))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, "the tests were found"


@pytest.mark.slow
def test_every_model_mode_and_dtype_on_eight_devices() -> None:
    done = run("-m", "slow", str(FOLDER))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
