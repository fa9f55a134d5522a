"""TPUs that are not here, as the real compiler knows them: `v6e:2x2` becomes devices that programs can be compiled for.

Nothing is run on such devices. The compiler is the package `libtpu`; it reads the environment once, when it is first
asked, and without `prepare` looks for a TPU machine around it. What is compiled is left to the callers.
"""

import importlib.util
import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import jax
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

from onepass.errors import ConfigError

# Our name of a generation → libtpu's, and in how many directions its chips are linked.
GENERATIONS = {"v4": ("v4", 3), "v5e": ("v5e", 2), "v5p": ("v5p", 3), "v6e": ("v6e", 2), "v7x": ("tpu7x", 3)}
CHIPS_A_HOST = {2: 8, 3: 4}  # the largest machine, by directions

COMPILER_ONLY = {
    "JAX_PLATFORMS": "cpu",  # the default backend; described devices are asked for by name
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server answers here
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v6e-4",  # any will do: the topology is given by name
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is taken, so processes need not exclude each other
}


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set in `environment` (a process's own, before its first use of JAX, or one for a subprocess) what lets libtpu
    compile where there is no TPU. What is set already stays."""
    for name, value in COMPILER_ONLY.items():
        environment.setdefault(name, value)


@dataclass(frozen=True)
class Topology:
    """A generation and how many chips lie in each direction. A chip may be one device or two (v4, v7x)."""

    generation: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> "Topology":
        generation, _, shape = name.partition(":")
        if generation not in GENERATIONS:
            raise ConfigError(f"a TPU is one of {', '.join(GENERATIONS)}, as in v6e:2x2; got {name!r}")
        directions = GENERATIONS[generation][1]
        sizes = shape.split("x")
        if len(sizes) != directions or not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
            example = "x".join("2" * directions)
            raise ConfigError(
                f"{generation} takes {directions} sizes of at least 1, as in {generation}:{example}; got {name!r}"
            )
        return cls(generation, tuple(map(int, sizes)))

    def __str__(self) -> str:
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> list[jax.Device]:
        """As libtpu describes them, in its order."""
        if importlib.util.find_spec("libtpu") is None:
            raise ConfigError(f"compiling for {self} needs the package libtpu, which is not installed")
        name, directions = GENERATIONS[self.generation]
        options = {}
        if self.chips <= CHIPS_A_HOST[directions]:
            # Else libtpu takes hosts of 2x2x1, and refuses what is not made of them.
            options["chips_per_host_bounds"] = [*self.shape, 1][:3]
        try:
            described = topologies.get_topology_desc(f"{name}:{str(self).partition(':')[2]}", platform="tpu", **options)
        except jax.errors.JaxRuntimeError as error:
            raise ConfigError(f"libtpu knows no {self}: {error}") from error
        return described.devices

    def mesh(self, axes: Mapping[str, int]) -> Mesh:
        """All devices as a mesh, neighbours on the wires where possible; `axes` gives each axis its size, in order."""
        devices = self.devices()
        if math.prod(axes.values()) != len(devices):
            raise ConfigError(f"a mesh of {self} must hold its {len(devices)} devices; got {dict(axes)}")
        return Mesh(mesh_utils.create_device_mesh(tuple(axes.values()), devices), tuple(axes))
