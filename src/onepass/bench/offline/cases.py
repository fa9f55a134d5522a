"""The modes a benchmark sets side by side, the engine options each runs under, and the cases a sweep makes of them.

A case is one row of the report: a mode, its options and a workload. Timing cases is `run`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from onepass.api import Mode
from onepass.bench.workloads import Shape
from onepass.engine.config import EngineConfig
from onepass.errors import ConfigError

# A pool for each of several scorers: less than a device's quarter each.
BASE_CACHE_BYTES = 1 << 30
BASE = EngineConfig(cache_bytes=BASE_CACHE_BYTES)
MODES: dict[str, tuple[Mode, dict[str, Any]]] = {
    "serial": ("serial", {}),
    "packed-dense": ("packed", {"mask": "dense"}),
    "packed-segment": ("packed", {"mask": "segment"}),
    "chunked": ("chunked", {}),
    "extend": ("extend", {}),
    "auto": ("auto", {}),
}
# Swept options of the engine, and the modes that they change.
ENGINE_SWEEPS = {"chunk_size": ("chunked",), "extend_batch_size": ("extend",)}
SHAPE_SWEEPS = ("items", "query_tokens")
TABLE_ITEMS = (1, 8, 32, 64, 128, 500)


@dataclass(frozen=True)
class Way:
    """`name` is the row's; `mode` and `config` are what the engine is told."""

    name: str
    mode: Mode
    config: EngineConfig
    changed: dict[str, int] = field(default_factory=dict, hash=False)

    @classmethod
    def named(cls, name: str, **changed: int) -> "Way":
        if name not in MODES:
            raise ConfigError(f"modes must be some of {', '.join(MODES)}; got {name!r}")
        mode, options = MODES[name]
        return cls(name, mode, replace(BASE, **cast(dict[str, Any], {**options, **changed})), changed)


@dataclass(frozen=True)
class Case:
    """`sweep` names what was swept and its value; `purpose` tells the table that it belongs to."""

    way: Way
    shape: Shape | None  # None: requests from a file, which keep theirs
    sweep: dict[str, int] = field(default_factory=dict)
    purpose: str = "modes"


@dataclass(frozen=True)
class Sweep:
    name: str
    values: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Sweep":
        """`chunk_size=2,8,32`"""
        name, _, values = text.partition("=")
        numbers = values.split(",")
        if name not in (*ENGINE_SWEEPS, *SHAPE_SWEEPS) or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            known = ", ".join((*ENGINE_SWEEPS, *SHAPE_SWEEPS))
            raise ConfigError(f"a sweep is NAME=N,N,... with NAME one of {known}; got {text!r}")
        return cls(name, tuple(map(int, numbers)))


def cases(modes: Sequence[str], shape: Shape | None, sweeps: Sequence[Sweep], table: bool) -> list[Case]:
    """The modes as they are, then each sweep, then the speed-up table."""
    found = [Case(Way.named(mode), shape) for mode in modes]
    for sweep in sweeps:
        found += _swept(sweep, modes, shape)
    if table:
        if shape is None:
            raise ConfigError("the speed-up table needs a named workload, whose items it can count out")
        shared = [mode for mode in modes if mode != "serial"]
        found += [
            Case(Way.named(mode), replace(shape, items=count), {"items": count}, "speed-up")
            for count in TABLE_ITEMS
            for mode in shared
        ]
    return found


def _swept(sweep: Sweep, modes: Sequence[str], shape: Shape | None) -> Iterator[Case]:
    if sweep.name in ENGINE_SWEEPS:
        concerned = [mode for mode in ENGINE_SWEEPS[sweep.name] if mode in modes]
        if not concerned:
            raise ConfigError(
                f"sweeping {sweep.name} needs mode {ENGINE_SWEEPS[sweep.name][0]}; got {', '.join(modes)}"
            )
        for value in sweep.values:
            for mode in concerned:
                yield Case(Way.named(mode, **{sweep.name: value}), shape, {sweep.name: value}, "sweep")
        return
    if shape is None:
        raise ConfigError(f"sweeping {sweep.name} needs a named workload; requests from a file have their own sizes")
    for value in sweep.values:
        other = replace(shape, items=value) if sweep.name == "items" else replace(shape, query=value)
        for mode in modes:
            yield Case(Way.named(mode), other, {sweep.name: value}, "sweep")
