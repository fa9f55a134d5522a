"""Chips as their vendors publish them, and the target that a user names: `v6e:2x2`, `h100`, `h100:8`.

The figures are the vendors' own for dense bfloat16 products: Google Cloud's pages of each TPU generation, NVIDIA's
datasheets (half of a figure "with sparsity"). None of them is measured by onepass. What a program reaches of them is an
assumption of `roofline`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onepass.errors import ConfigError
from onepass.parallel.topology import GENERATIONS, Topology

SOURCE = "vendors' published figures, not measured"
GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """Figures of one chip. `devices` is how many JAX devices it is; `matrix_width` how many rows a matrix unit has, of
    which a narrower head fills only a part; `link` is what a chip sends its peers at once in a ring, one way; `cycles`
    follow from the peak and the size of the matrix units."""

    name: str
    kind: Literal["tpu", "gpu"]
    flops: float  # a second, dense bfloat16
    float32_flops: float  # of a TPU: six bfloat16 products for one
    memory_bytes: int
    bandwidth: float  # bytes a second
    link: float  # bytes a second
    devices: int = 1
    matrix_width: int = 128
    cycles: float | None = None  # a second; None where it is not known

    @property
    def hopper(self) -> bool:
        return self.name in ("h100", "h200")

    @property
    def multiprocessors(self) -> int:
        """Of a Hopper GPU, whose kernels are laid out for them; nobody asks it of the others."""
        return 132 if self.hopper else 0

    @property
    def usable(self) -> float:
        """The part of the memory that programs get: of a GPU, what JAX takes at its start by default; of a TPU, all but
        what the runtime keeps for itself."""
        return 0.97 if self.kind == "tpu" else 0.75


def _tpu(name: str, tflops: float, gib: int, gb: float, ici_gb: float, links: int, **more: Any) -> Chip:
    """`ici_gb` is published for both ways and all links of a chip; a ring uses two of them."""
    flops = tflops * 1e12
    return Chip(name, "tpu", flops, flops / 6, gib * GIB, gb * 1e9, ici_gb / 2 / links * 2 * 1e9, **more)


def _gpu(name: str, tflops: float, float32: float, gb: float, memory: int, link_gb: float) -> Chip:
    """`link_gb` is published for both ways: NVLink where there is one, else the PCIe slot."""
    return Chip(
        name, "gpu", tflops * 1e12, float32 * 1e12, memory * 10**9, gb * 1e9, link_gb / 2 * 1e9, matrix_width=16
    )


CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v5e", 197, 16, 819, 400, 4, cycles=1.5e9),
        _tpu("v5p", 459, 95, 2765, 1200, 6, cycles=1.75e9),
        _tpu("v6e", 918, 32, 1638, 800, 4, matrix_width=256, cycles=1.75e9),
        _tpu("v7x", 2307, 192, 7380, 1200, 6, matrix_width=256, devices=2),
        _gpu("a100", 312, 19.5, 2039, 80, 600),
        _gpu("h100", 989, 67, 3350, 80, 900),
        _gpu("h200", 989, 67, 4800, 141, 900),
        _gpu("l4", 121, 30.3, 300, 24, 64),
        _gpu("l40s", 362, 91.6, 864, 48, 64),
        _gpu("rtx-4090", 165.2, 82.6, 1008, 24, 64),
        _gpu("rtx-5090", 209.5, 104.8, 1792, 32, 128),
        _gpu("rtx-pro-6000", 503.8, 125, 1792, 96, 128),
    )
}
MOST_GPUS = 8  # of one machine


@dataclass(frozen=True)
class Target:
    """Some chips of one kind; `topology` says how TPUs are linked, and is None for GPUs, which are not compiled for."""

    chip: Chip
    chips: int
    topology: Topology | None = None

    @classmethod
    def parse(cls, name: str) -> "Target":
        chip, _, rest = name.lower().partition(":")
        if chip not in CHIPS:
            raise ConfigError(f"a target is one of {', '.join(CHIPS)}, as in v6e:2x2 or h100:8; got {name!r}")
        found = CHIPS[chip]
        if found.kind == "tpu":
            topology = Topology.parse(f"{chip}:{rest}" if rest else _one_chip(chip))
            return cls(found, topology.chips, topology)
        if rest and not (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= MOST_GPUS):
            raise ConfigError(f"{chip} takes a count from 1 to {MOST_GPUS}, as in {chip}:8; got {name!r}")
        return cls(found, int(rest or 1))

    def __str__(self) -> str:
        return str(self.topology) if self.topology else f"{self.chip.name}:{self.chips}"

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices

    @property
    def memory_bytes(self) -> int:
        """Of one device, as far as programs get it."""
        return int(self.chip.memory_bytes / self.chip.devices * self.chip.usable)

    def flops(self, dtype: np.dtype[Any]) -> float:
        """Of one device, in products of this kind."""
        return (self.chip.flops if dtype.itemsize == 2 else self.chip.float32_flops) / self.chip.devices

    @property
    def bandwidth(self) -> float:
        """Of one device."""
        return self.chip.bandwidth / self.chip.devices


def _one_chip(generation: str) -> str:
    return f"{generation}:{'x'.join('1' * GENERATIONS[generation][1])}"
