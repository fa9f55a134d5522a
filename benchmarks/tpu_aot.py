"""The ahead-of-time matrix: models × modes × workloads × v6e topologies, compiled by the real TPU compiler.

Which programs a cell runs is the engine's own choice (`onepass.capacity.rehearsal`); programs that several cells share
compile once. Results are kept program by program, so that a run that was stopped goes on where it was. Each says of
which commit it is; after a change of the network or of a kernel the file is removed to compile anew. Run by
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
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from onepass.bench.workloads import make_workload, shape_named
from onepass.capacity.chips import GIB, Target
from onepass.capacity.compiler import Compiled, compile_programs
from onepass.capacity.deployment import Deployment
from onepass.capacity.footprint import Footprint, as_compiled, estimated
from onepass.capacity.prediction import predict
from onepass.capacity.rehearsal import Rehearsed
from onepass.capacity.share import Share
from onepass.engine.config import EngineConfig
from onepass.engine.lowering import Program
from onepass.errors import DoesNotFit, OnepassError
from onepass.evidence.provenance import commit
from onepass.models.known import known_config

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tpu-aot.json"
PAGE = ROOT / "docs" / "performance.md"
MODELS = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen3-1.7b", "qwen2.5-3b", "qwen3-4b")
TARGETS = {"v6e:1x1": 1, "v6e:2x2": 4, "v6e:2x4": 8}  # all devices share one copy
MODES: dict[str, dict[str, Any]] = {
    "packed-segment": {"mode": "packed", "mask": "segment"},
    "extend": {"mode": "extend"},
    "chunked": {"mode": "chunked"},
    "packed-dense": {"mode": "packed", "mask": "dense"},
}
# Items a second of the systems that ran the contract workload on such chips, as they published them.
PUBLISHED = {
    ("v6e:1x1", "packed-segment"): "52 (dense mask), 105 (segment mask)",
    ("v6e:1x1", "extend"): "526",
    ("v6e:2x2", "packed-segment"): "70",
    ("v6e:2x2", "chunked"): "141 (never reproduced)",
    ("v6e:2x4", "packed-segment"): "67",
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
        return _rehearsed(self)


@cache
def _rehearsed(cell: Cell) -> Rehearsed:
    vocab_size = known_config(cell.model).vocab_size
    return cell.deployment.rehearse(make_workload(cell.workload, shape_named(cell.workload), vocab_size))


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
    """Compiled programs with the cell's model and target, on disk after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for one in json.loads(path.read_text(encoding="utf-8"))["programs"]:
                self._found[_key(one["model"], one["target"], one["program"])] = one

    def add(self, cell: Cell, compiled: Compiled, libtpu: str) -> None:
        one = {"model": cell.model, "target": cell.target, "tp": TARGETS[cell.target], **asdict(compiled)}
        one["versions"] = {"libtpu": libtpu, "jax": importlib.metadata.version("jax")}
        one["commit"] = commit()
        self._found[_key(cell.model, cell.target, one["program"])] = one
        text = json.dumps({"object": "tpu-aot", "programs": list(self._found.values())}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def get(self, cell: Cell, program: Program) -> Compiled | None:
        found = self._found.get(_key(cell.model, cell.target, asdict(program)))
        if found is None:
            return None
        figures = {field.name: found[field.name] for field in fields(Compiled) if field.name != "program"}
        return Compiled(program, **figures)

    def commits(self, cell: Cell) -> str:
        """At which the cell's programs were compiled."""
        keys = (_key(cell.model, cell.target, asdict(program)) for program in cell.rehearse().programs)
        return ", ".join(dict.fromkeys((self._found[key]["commit"] or "?")[:7] for key in keys if key in self._found))

    def all_of(self, cell: Cell) -> list[Compiled] | None:
        """None where one of the cell's programs has not been compiled yet."""
        found = [self.get(cell, program) for program in cell.rehearse().programs]
        compiled = [one for one in found if one is not None]
        return compiled if len(compiled) == len(found) else None


def _key(model: str, target: str, program: dict[str, Any]) -> str:
    return json.dumps([model, target, program], sort_keys=True)


def compile_missing(asked: Sequence[Cell], kept: Kept, most: int | None, libtpu: Path) -> None:
    done, version = 0, next(iter(importlib.metadata.distributions(name="libtpu", path=[str(libtpu)]))).version
    for cell in asked:
        deployment = cell.deployment
        for program in cell.rehearse().programs:
            if kept.get(cell, program) is not None or (most is not None and done >= most):
                continue
            assert deployment.target.topology is not None
            (compiled,) = compile_programs(deployment.share, deployment.target.topology, [program], libtpu)
            kept.add(cell, compiled, version)
            done += 1
            told = (
                compiled.does_not_fit or f"{compiled.seconds:.0f} s, {compiled.temporaries / GIB:.2f} GiB temporaries"
            )
            print(f"{cell.model} {cell.target} {cell.mode} {cell.workload} {program.kind}: {told}", file=sys.stderr)


@dataclass(frozen=True)
class Line:
    """A cell's figures. Refused by the engine, or too large for the compiler: `words` say so."""

    cell: Cell
    programs: int
    seconds: float
    footprint: Footprint
    words: str = ""

    @property
    def fits(self) -> bool:
        return not self.words and self.footprint.fits


def line_of(cell: Cell, kept: Kept) -> Line | None:
    """None where a program has not been compiled yet."""
    deployment = cell.deployment
    try:
        rehearsed = cell.rehearse()
    except DoesNotFit as refused:
        return Line(cell, 0, 0.0, estimated(deployment, (), 0), str(refused))
    compiled = kept.all_of(cell)
    if compiled is None:
        return None
    words = next((one.does_not_fit for one in compiled if one.does_not_fit), "") or ""
    footprint = as_compiled(deployment, compiled, rehearsed.context_bytes)
    return Line(cell, len(compiled), sum(one.seconds for one in compiled), footprint, words)


def matrix(kept: Kept) -> Iterator[str]:
    """Markdown: what was compiled, in GiB of one chip."""
    names = ("model", "target", "mode", "workload", "programs", "compiled in")
    yield _row(*names, "weights", "context", "temporaries", "all", "fits", "commit")
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---:|---|---|"
    for cell in sorted(cells(MODELS, tuple(TARGETS), tuple(MODES), ("contract", "many", "small")), key=_order):
        line = line_of(cell, kept)
        if line is None:
            continue
        f = line.footprint
        sizes = (f"{size / GIB:.2f}" for size in (f.weights, f.contexts, f.temporaries, f.total))
        fits = "yes" if line.fits else f"no: {line.words[:90]}"
        where = (cell.model, cell.target, cell.mode, cell.workload)
        yield _row(*where, str(line.programs), f"{line.seconds:.0f} s", *sizes, fits, kept.commits(cell))


def predictions(kept: Kept) -> Iterator[str]:
    """Markdown: items a second of Qwen3-0.6B and the contract workload, on one copy."""
    basis = ("roofline", "at the H200's part of it", "by the compiler's schedule")
    yield _row("target", "mode", *basis, "published by others", "commit")
    yield "|---|---|---:|---:|---:|---|---|"
    for target in TARGETS:
        for mode in ("packed-segment", "extend", "chunked"):
            cell = Cell("qwen3-0.6b", target, mode, "contract")
            compiled = kept.all_of(cell)
            if compiled is None:
                continue
            p = predict(cell.deployment, cell.rehearse(), 500, compiled)
            rates = (p.rate(seconds) for seconds in (p.roofline, p.at_efficiency, p.scheduled) if seconds)
            told = (f"{rate:,.0f}" for rate in rates)
            yield _row(target, mode, *told, PUBLISHED.get((target, mode), ""), kept.commits(cell))


def _row(*values: str) -> str:
    return f"| {' | '.join(values)} |"


def _order(cell: Cell) -> tuple[int, int, int, str]:
    return MODELS.index(cell.model), list(TARGETS).index(cell.target), list(MODES).index(cell.mode), cell.workload


def with_tables(page: str, kept: Kept) -> str:
    """The page with its two tables made anew."""
    for name, lines in (("tpu-aot", matrix(kept)), ("tpu-predicted", predictions(kept))):
        before, begin, rest = page.partition(f"<!-- {name}: made by benchmarks/tpu_aot.py --table -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert begin, f"the page must have a place for {name}"
        assert end, f"the place of {name} must end"
        page = before + begin + "\n".join(lines) + "\n" + end + after
    return page


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
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
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
        print(f"{line.cell} does not fit: {line.words or f'{line.footprint.total / GIB:.2f} GiB'}", file=sys.stderr)
    missing = sum(line is None for line in lines)
    print(f"{len(lines) - missing} of {len(lines)} cells compiled, {len(wrong)} do not fit", file=sys.stderr)
    return 1 if wrong or (missing and args.most is None) else 0


if __name__ == "__main__":
    sys.exit(main())
