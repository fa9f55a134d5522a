"""Where a figure comes from: versions, hardware and commit, for every report of `validate` and `bench`."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from onepass.evidence.cpu_name import cpu_name
from onepass.limits import usable_cores
from onepass.version import VERSION

PACKAGES = ("jax", "jaxlib", "numpy")


def versions() -> dict[str, str]:
    found = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"onepass": VERSION, **found, "python": platform.python_version()}


def hardware() -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind if device.platform != "cpu" else cpu_name(),
        "devices": jax.device_count(),
        "cores": usable_cores(),
        "machine": platform.machine(),
    }


def array_bytes(tree: Any) -> int:
    """Bytes of all arrays in a tree, such as a model's weights."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def commit() -> str | None:
    """The checkout this package runs from, marked where it has changes; None outside of one. A file `.commit` at its
    root says it of a copy whose git knows less."""
    here = Path(__file__).parent
    copied = here.parents[2] / ".commit"
    if copied.is_file():
        return copied.read_text(encoding="utf-8").strip()
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
