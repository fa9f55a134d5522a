"""How many devices share a model (tp) and how many times it is there (dp), and why. No JAX.

A model that fits one device is replicated, not split: a split pays for talking in every layer. What was asked for is
honoured or refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onepass.errors import ConfigError

ROOM = 0.6  # of a device's memory may be weights; the rest is for contexts and steps


@dataclass(frozen=True)
class Placement:
    tp: int
    dp: int
    reason: str

    def __str__(self) -> str:
        return f"tp={self.tp}, dp={self.dp}: {self.reason}"


@dataclass(frozen=True)
class Machine:
    """`apart` says that devices have memory and units of their own, as CPU devices of one machine have not."""

    devices: int
    memory_bytes: int
    apart: bool


def arrange(tp: int | None, dp: int | None, machine: Machine, weight_bytes: Callable[[int], int]) -> Placement:
    """`weight_bytes(tp)` is what one of `tp` devices holds. None means: decide."""
    here = machine.devices
    for name, asked in (("tp", tp), ("dp", dp)):
        if asked is not None and asked > here:
            raise ConfigError(f"{name}={asked} needs {asked} devices; there are {here}")
    if tp is not None and dp is not None:
        if tp * dp > here:
            raise ConfigError(f"tp={tp} and dp={dp} need {tp * dp} devices; there are {here}")
        return Placement(tp, dp, "both were asked for")
    if tp is None:
        tp, why = _smallest_that_fits(dp or 1, machine, weight_bytes)
    else:
        why = f"tp={tp} was asked for"
    if dp is not None:
        return Placement(tp, dp, f"dp={dp} was asked for; {why}")
    if not machine.apart:
        return Placement(tp, 1, f"{why}; the cores of one machine are not worth replicas")
    dp = here // tp
    return Placement(tp, dp, f"{why}; {dp} {'replica' if dp == 1 else 'replicas'} on {here} devices")


def _smallest_that_fits(dp: int, machine: Machine, weight_bytes: Callable[[int], int]) -> tuple[int, str]:
    room = machine.memory_bytes * ROOM
    most = machine.devices // dp
    sizes = [size for size in (1 << n for n in range(most.bit_length())) if size <= most]
    for size in sizes:
        if weight_bytes(size) <= room:
            held = f"{_gib(weight_bytes(size))} of weights in {_gib(machine.memory_bytes)}"
            return size, f"the model fits {'one device' if size == 1 else f'{size} devices'} ({held} each)"
    raise ConfigError(
        f"the weights take {_gib(weight_bytes(sizes[-1]))} on each of {sizes[-1]} devices; "
        f"{_gib(int(room))} of a device's {_gib(machine.memory_bytes)} are for weights"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
