"""How many cycles the TPU compiler expects of a program, read from the program's own text.

The compiler writes its estimate beside every operation. An operation in a loop counts as often as the loop turns; of a
condition's branches the dearest counts. A Pallas kernel has no estimate of the compiler's, only the arithmetic it
declares itself, which is told apart. What waits on memory while something else computes is not seen.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_WHILE = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_BRANCHES = re.compile(r" conditional\(.*branch_computations=\{([^}]*)\}")
_BOUND = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")


@dataclass(frozen=True)
class Schedule:
    cycles: float = 0.0  # of everything but kernels
    kernel_flops: float = 0.0

    def times(self, count: int) -> "Schedule":
        return Schedule(self.cycles * count, self.kernel_flops * count)

    def plus(self, other: "Schedule") -> "Schedule":
        return Schedule(self.cycles + other.cycles, self.kernel_flops + other.kernel_flops)


@dataclass
class _Computation:
    lines: list[str] = field(default_factory=list)

    def loops(self) -> Iterator[tuple[str, str]]:
        """(condition, body)"""
        for line in self.lines:
            if (found := _WHILE.search(line)) is not None:
                yield found[1], found[2]

    def branches(self) -> Iterator[list[str]]:
        for line in self.lines:
            if (found := _BRANCHES.search(line)) is not None:
                yield re.findall(r"%?([\w.\-]+)", found[1])

    @property
    def turns(self) -> int:
        """Of a loop whose condition this is: it compares the count of turns with one constant."""
        bounds = [int(found[1]) for line in self.lines if (found := _BOUND.search(line)) is not None]
        assert len(bounds) == 1, f"a loop's condition should compare with one constant; got {bounds}"
        return bounds[0]


def read_schedule(text: str) -> Schedule:
    computations, entry = _computations(text)
    return _total(computations, entry)


def _total(computations: dict[str, _Computation], name: str) -> Schedule:
    one = computations[name]
    found = Schedule(_sum(_CYCLES, one.lines), _sum(_KERNEL_FLOPS, one.lines))
    for condition, body in one.loops():
        found = found.plus(_total(computations, body).times(computations[condition].turns))
    for names in one.branches():
        found = found.plus(max((_total(computations, branch) for branch in names), key=lambda s: s.cycles))
    return found


def _sum(pattern: re.Pattern[str], lines: list[str]) -> float:
    return float(sum(int(found[1]) for line in lines if (found := pattern.search(line)) is not None))


def _computations(text: str) -> tuple[dict[str, _Computation], str]:
    computations: dict[str, _Computation] = {}
    entry, current = "", _Computation()
    for line in text.splitlines():
        if (start := _COMPUTATION.match(line)) is not None:
            current = computations.setdefault(start[2], _Computation())
            entry = start[2] if start[1] else entry
        else:
            current.lines.append(line)
    return computations, entry
