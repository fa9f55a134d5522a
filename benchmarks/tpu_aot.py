"""The ahead-of-time matrix: models × modes × workloads × v6e topologies, compiled by the real TPU compiler.

Which programs a cell runs is the engine's own choice (`onepass.capacity.rehearsal`); programs that several cells share
compile once. Results are kept program by program, so that a run that was stopped goes on where it was. Run by
`make test-tpu-aot`, which ends with an error if a cell does not compile or does not fit.

    .venv/bin/python benchmarks/tpu_aot.py                        everything that is missing; hours on two cores
    .venv/bin/python benchmarks/tpu_aot.py --models qwen3-0.6b --targets v6e:1x1 --most 2
    .venv/bin/python benchmarks/tpu_aot.py --table                the table of docs/performance.md, from what is there
"""

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from onepass.bench.workloads import make_workload, shape_named
from onepass.capacity.chips import GIB, Target
from onepass.capacity.compiler import Compiled, compile_programs
from onepass.capacity.deployment import Deployment
from onepass.capacity.rehearsal import Rehearsed
from onepass.capacity.share import Share
from onepass.engine.config import EngineConfig
from onepass.engine.runner import Program
from onepass.errors import DoesNotFit, OnepassError
from onepass.models.known import known_config

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tpu-aot.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- tpu-aot: made by benchmarks/tpu_aot.py --table -->", "<!-- /tpu-aot -->"
MODELS = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen3-1.7b", "qwen2.5-3b", "qwen3-4b")
TARGETS = {"v6e:1x1": 1, "v6e:2x2": 4, "v6e:2x4": 8}  # all devices share one copy
MODES: dict[str, dict[str, Any]] = {
    "packed-segment": {"mode": "packed", "mask": "segment"},
    "extend": {"mode": "extend"},
    "chunked": {"mode": "chunked"},
    "packed-dense": {"mode": "packed", "mask": "dense"},
}
WORKLOADS = dict.fromkeys(MODES, ("contract", "many")) | {"packed-dense": ("small",)}


@dataclass(frozen=True)
class Cell:
    model: str
    target: str
    mode: str
    workload: str

    @property
    def deployment(self) -> Deployment:
        share = Share(known_config(self.model), jnp.dtype("bfloat16"), TARGETS[self.target])
        return Deployment.of(Target.parse(self.target), share, EngineConfig(**MODES[self.mode]))

    def rehearse(self) -> Rehearsed:
        config = known_config(self.model)
        return self.deployment.rehearse(make_workload(self.workload, shape_named(self.workload), config.vocab_size))

    def key(self, program: Program) -> str:
        return json.dumps([self.model, self.target, asdict(program)], separators=(",", ":"))


def cells(models: Sequence[str], targets: Sequence[str], modes: Sequence[str], workloads: Sequence[str]) -> list[Cell]:
    """The contract workload of every model first, then the rest."""
    found = [
        Cell(model, target, mode, workload)
        for target in targets
        for model in models
        for mode in modes
        for workload in WORKLOADS[mode]
        if workload in workloads
    ]
    return sorted(found, key=lambda cell: (cell.target != "v6e:1x1", cell.workload == "many"))


class Kept:
    """Compiled programs by key, on disk after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.programs: dict[str, dict[str, Any]] = {}
        self.versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.versions, self.programs = stored["versions"], stored["programs"]

    def add(self, key: str, compiled: Compiled) -> None:
        self.programs[key] = {name: value for name, value in asdict(compiled).items() if name != "program"}
        text = json.dumps({"object": "tpu-aot", "versions": self.versions, "programs": self.programs}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def get(self, cell: Cell, program: Program) -> Compiled | None:
        found = self.programs.get(cell.key(program))
        return None if found is None else Compiled(program, **found)


def compile_missing(asked: Sequence[Cell], kept: Kept, most: int | None, libtpu: Path) -> None:
    done = 0
    for cell in asked:
        deployment = cell.deployment
        for program in cell.rehearse().programs:
            if kept.get(cell, program) is not None or (most is not None and done >= most):
                continue
            assert deployment.target.topology is not None
            (compiled,) = compile_programs(deployment.share, deployment.target.topology, [program], libtpu)
            kept.add(cell.key(program), compiled)
            done += 1
            told = (
                compiled.does_not_fit or f"{compiled.seconds:.0f} s, {compiled.temporaries / GIB:.2f} GiB temporaries"
            )
            print(f"{cell.model} {cell.target} {cell.mode} {cell.workload} {program.kind}: {told}", file=sys.stderr)


@dataclass(frozen=True)
class Line:
    """A cell's figures: the largest program decides. Bytes are of one device."""

    cell: Cell
    programs: int
    seconds: float
    weights: int
    context: int
    temporaries: int
    total: int
    fits: bool
    words: str = ""


def line_of(cell: Cell, kept: Kept) -> Line | None:
    """None where a program has not been compiled yet."""
    try:
        rehearsed = cell.rehearse()
    except DoesNotFit as refused:
        return Line(cell, 0, 0.0, 0, 0, 0, 0, False, str(refused))
    found = [kept.get(cell, program) for program in rehearsed.programs]
    compiled = [one for one in found if one is not None]
    if len(compiled) < len(found):
        return None
    words = next((one.does_not_fit for one in compiled if one.does_not_fit), "") or ""
    deployment = cell.deployment
    largest = max(compiled, key=lambda one: one.bytes)
    kept_elsewhere = 0 if largest.program.keep or largest.program.shape.prefix else rehearsed.context_bytes
    total = largest.bytes + kept_elsewhere
    return Line(
        cell,
        len(compiled),
        sum(one.seconds for one in compiled),
        deployment.share.work.weight_bytes,
        rehearsed.context_bytes,
        max(one.temporaries for one in compiled),
        total,
        not words and total <= deployment.target.memory_bytes,
        words,
    )


def table(kept: Kept) -> Iterator[str]:
    yield "| model | target | mode | workload | programs | compile | weights | context | temporaries | peak | fits |"
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---:|---|"
    for cell in sorted(cells(MODELS, tuple(TARGETS), tuple(MODES), ("contract", "many", "small")), key=_order):
        line = line_of(cell, kept)
        if line is None:
            continue
        sizes = " | ".join(f"{size / GIB:.2f}" for size in (line.weights, line.context, line.temporaries, line.total))
        yield (
            f"| {cell.model} | {cell.target} | {cell.mode} | {cell.workload} | {line.programs} | {line.seconds:.0f} s "
            f"| {sizes} | {'yes' if line.fits else 'no: ' + line.words[:90]} |"
        )


def _order(cell: Cell) -> tuple[int, int, int, str]:
    return MODELS.index(cell.model), list(TARGETS).index(cell.target), list(MODES).index(cell.mode), cell.workload


def write_table(kept: Kept) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n".join([BEGIN, *table(kept), END]) + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(TARGETS))
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=["contract", "many", "small"])
    parser.add_argument("--most", type=int, help="compile at most this many programs, then stop")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--libtpu", type=Path, default=ROOT / ".libtpu")
    parser.add_argument("--table", action="store_true", help="write the table of docs/performance.md")
    args = parser.parse_args()
    kept = Kept(args.results)
    if args.table:
        write_table(kept)
        return 0
    asked = cells(args.models, args.targets, args.modes, args.workloads)
    try:
        compile_missing(asked, kept, args.most, args.libtpu)
    except OnepassError as error:
        print(error, file=sys.stderr)
        return 1
    lines = [line_of(cell, kept) for cell in asked]
    wrong = [line for line in lines if line is not None and not line.fits]
    for line in wrong:
        print(f"{line.cell} does not fit: {line.words or f'{line.total / GIB:.2f} GiB'}", file=sys.stderr)
    missing = sum(line is None for line in lines)
    print(f"{len(lines) - missing} of {len(lines)} cells compiled, {len(wrong)} do not fit", file=sys.stderr)
    return 1 if wrong or (missing and args.most is None) else 0


if __name__ == "__main__":
    sys.exit(main())
