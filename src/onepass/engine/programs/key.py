"""The identity of a compiled program, `ProgramKey`: everything that could change what the program computes.

Two programs with one digest are the same program, in any process. The key is complete without lowering anything, so a
program on disk is found before Python traces it. Keeping programs is `store`.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib.xla_client

from onepass.attention.base import StepShape
from onepass.limits import usable_cores
from onepass.version import VERSION

PACKAGE = Path(__file__).parents[2]
# What is traced into a step or called from it. All of `engine`, not only the files that build programs: what an array
# holds and how a program reads it are decided in several, and a program that no longer fits its arrays is wrong scores.
STEP_SOURCES = ("attention", "engine", "kernels", "models", "native", "parallel")
SOURCE_SUFFIXES = (".py", ".cc", ".h", ".cu", ".cuh")
PLUGIN_PREFIXES = ("jax-", "libtpu", "nvidia-")
CPU_LINES = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
# Of JAX's settings, those that no program depends on: a program must not be lost because logging was turned on.
IRRELEVANT_SETTINGS = (
    "jax_captured_constants", "jax_compilation_cache", "jax_cross_host", "jax_debug_log", "jax_distributed", "jax_dump",
    "jax_enable_compilation_cache", "jax_explain", "jax_log", "jax_mtls", "jax_persistent_cache", "jax_platform",
    "jax_pprint", "jax_raise_persistent", "jax_share_binary", "jax_traceback", "jax_tracer_error", "jax_transfer_guard",
)  # fmt: skip


@dataclass(frozen=True)
class Toolchain:
    """What makes and runs programs: our source, the compiler, its options, the devices. Alike for all programs of a
    model in one process."""

    source: str  # digest of what is traced into a step
    versions: tuple[str, ...]  # of onepass, Python, jax, jaxlib and the device's plugin
    platform: str
    runtime: str  # the backend's own words on its version: driver, CUDA, libtpu
    device_kind: str
    device_count: int  # all that the process sees
    devices: tuple[int, ...]  # ids of those that the program runs on
    process: str
    cpu: str  # "" where programs are not specialised to the host's CPU
    xla_options: str  # digest of the options that XLA has in this process, XLA_FLAGS included
    jax_settings: str  # digest
    flags: str  # options that XLA cannot be asked for, such as LIBTPU_INIT_ARGS

    @classmethod
    def here(cls, devices: Sequence[jax.Device], flags: str = "", source: str | None = None) -> "Toolchain":
        """This process's own, for programs on `devices`. `source` None is the installed package's."""
        device = devices[0]
        on_cpu = device.platform == "cpu"
        return cls(
            source=source_digest(step_sources()) if source is None else source,
            versions=_versions(plugins=not on_cpu),
            platform=device.platform,
            runtime=device.client.platform_version,
            device_kind=device.device_kind,
            device_count=len(device.client.devices()),
            devices=tuple(each.id for each in devices),
            process=f"{jax.process_index()} of {jax.process_count()}",
            cpu=_host_cpu() if on_cpu else "",
            xla_options=_digest(jaxlib.xla_client.CompileOptions().SerializeAsString()),
            jax_settings=_digest(_jax_settings().encode()),
            flags=flags,
        )


@dataclass(frozen=True)
class ProgramKey:
    """`model` and `kernels` are `stable_text` of what they name; `mesh` describes how devices share the model;
    `arguments` is `signature` of what the program is called with."""

    name: str
    model: str
    dtype: str
    quantize: str | None
    kernels: tuple[str, ...]  # of attention and of the layers
    shape: StepShape
    pool_pages: int
    mesh: str
    toolchain: Toolchain
    arguments: str = ""

    def digest(self) -> str:
        return _digest(json.dumps(dataclasses.asdict(self), sort_keys=True).encode())


def signature(arguments: Any) -> str:
    """Digest of a pytree of arrays or `ShapeDtypeStruct`s: structure, and each leaf's shape, dtype and sharding."""
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    rows = [f"{leaf.shape} {leaf.dtype} {_sharding(leaf)}" for leaf in leaves]
    return _digest("\n".join([str(tree), *rows]).encode())


def stable_text(value: Any) -> str:
    """A dataclass with all its fields, nested ones too, in words that are the same in every process."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = (f"{field.name}={stable_text(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{type(value).__module__}.{type(value).__qualname__}({', '.join(inner)})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(stable_text, value))}]"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    assert " at 0x" not in text, f"an address would make every process's key its own: {text}"
    return text


def _sharding(leaf: Any) -> str:
    """ "" for one device, which the key names already: arrays and shapes of arrays are alike then."""
    sharding = getattr(leaf, "sharding", None)
    return "" if sharding is None or isinstance(sharding, jax.sharding.SingleDeviceSharding) else str(sharding)


def step_sources(package: Path = PACKAGE) -> tuple[Path, ...]:
    """The folders of `package` whose files define a step."""
    return tuple(folder for name in STEP_SOURCES if (folder := package / name).exists())


@cache
def source_digest(roots: tuple[Path, ...]) -> str:
    """Digest of the paths and contents of all source files under `roots` (folders or files). Read once per process:
    what runs is what was imported."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(_source_files(root)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root.parent).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _source_files(root: Path) -> Iterable[Path]:
    files = [root] if root.is_file() else root.rglob("*")
    return (path for path in files if path.suffix in SOURCE_SUFFIXES)


@cache
def _versions(plugins: bool) -> tuple[str, ...]:
    versions = [f"onepass {VERSION}", f"python {platform.python_version()}"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
    return (*versions, *_plugin_versions()) if plugins else tuple(versions)


def _plugin_versions() -> list[str]:
    """Plugins and the libraries whose code they call. All that are installed: which of them JAX took is not said."""
    installed = {dist.name.lower().replace("_", "-"): dist.version for dist in importlib.metadata.distributions()}
    return sorted(f"{name} {version}" for name, version in installed.items() if name.startswith(PLUGIN_PREFIXES))


@cache
def _host_cpu() -> str:
    """Digest of the CPU's model and features, and of how many cores XLA divides work among: XLA compiles for both."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        lines = [line for line in text.splitlines() if line.startswith(CPU_LINES)]
    except OSError:
        lines = [platform.processor()]
    return _digest("\n".join([platform.machine(), str(usable_cores()), *lines]).encode())


def _jax_settings() -> str:
    """As they are in this thread, where `with jax.default_matmul_precision(...)` counts."""
    names = sorted(name for name in jax.config.values if not name.startswith(IRRELEVANT_SETTINGS))
    return "\n".join(f"{name}={getattr(jax.config, name, jax.config.values[name])}" for name in names)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
