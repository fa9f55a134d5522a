"""Wheels for tests: built once, for the instruction sets that are asked for, where Zig is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ZIG = ROOT / ".zig" / "ziglang" / "zig"
needs_zig = pytest.mark.skipif(not ZIG.exists(), reason="no Zig: `make .zig/.installed` fetches it")


def build(folder: Path, machine: str, *instruction_sets: str) -> Path:
    command = [sys.executable, str(ROOT / "release" / "build_wheels.py"), "--machine", machine, "--out", str(folder)]
    subprocess.run([*command, "--instruction-sets", *instruction_sets], check=True, cwd=folder)
    (wheel,) = folder.glob("onepass-*.whl")
    return wheel


def install(wheel: Path, site: Path) -> dict[str, str]:
    """The environment in which Python finds the wheel's package, and no compiler and nothing that was built before."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, cwd=site.parent)
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
    cache = {"XDG_CACHE_HOME": str(site.parent / "cache")}
    return {**kept, **cache, "PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(site)}
