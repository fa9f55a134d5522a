"""The ahead-of-time matrix: models × v6e topologies, with the programs that modes and workloads need there, compiled by
the real TPU compiler.

Which programs a mode and a workload run is the engine's own choice (`onepass.capacity.dry_run`); all of them share a
model's few rungs. Results are kept program by program, so that a run that was stopped goes on where it was. Each says
of which commit it is; after a change of the network, of a kernel or of the pool's size the file is removed to compile
anew. Run by `make test-tpu-aot`, which ends with an error if a program does not compile or does not fit.

    .venv/bin/python benchmarks/tpu_aot.py                        everything that is missing; hours on two cores
    .venv/bin/python benchmarks/tpu_aot.py --models qwen3-0.6b --targets v6e:1x1 --most 2

The tables of docs/performance.md are made of what is stored by benchmarks/figures.py (`make docs`).
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

from onepass.bench.workloads import Workload, make_workload, shape_named
from onepass.capacity.chips import GIB, Target
from onepass.capacity.compiler import Compiled, compile_programs
from onepass.capacity.deployment import Deployment
from onepass.capacity.dry_run import DryRun
from onepass.capacity.latency import predict
from onepass.capacity.memory import Footprint, as_compiled, estimated
from onepass.capacity.shard import Share
from onepass.engine.config import EngineConfig
from onepass.engine.programs.builder import Program
from onepass.errors import ConfigError, OnepassError
from onepass.evidence.provenance import commit
from onepass.models.known import known_config

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tpu-aot.json"
MODELS = ("qwen3-0.6b", "qwen2.5-1.5b", "qwen3-1.7b", "qwen2.5-3b", "qwen3-4b")
TARGETS = {"v6e:1x1": 1, "v6e:2x2": 4, "v6e:2x4": 8}  # all devices share one copy
MODES: dict[str, dict[str, Any]] = {
    "packed-segment": {"mode": "packed", "mask": "segment"},
    "extend": {"mode": "extend"},
    "chunked": {"mode": "chunked"},
}
WORKLOADS = ("contract", "many")
SIZES = ("weights", "pool", "temporaries")
# Items a second of the systems that ran the contract workload on such chips, as they published them.
PUBLISHED = {
    ("v6e:1x1", "packed-segment"): "52 (dense mask), 105 (segment mask)",
    ("v6e:1x1", "extend"): "526",
    ("v6e:2x2", "packed-segment"): "70",
    ("v6e:2x2", "chunked"): "141 (never reproduced)",
    ("v6e:2x4", "packed-segment"): "67",
}


@dataclass(frozen=True)
class Placement:
    """A model on a topology."""

    model: str
    target: str

    def deployment(self, mode: str) -> Deployment:
        share = Share(known_config(self.model), jnp.dtype("bfloat16"), TARGETS[self.target])
        return Deployment.of(Target.parse(self.target), share, EngineConfig(**MODES[mode]))

    def rehearse(self, mode: str, workload: str) -> DryRun:
        return _rehearsed(self, mode, workload)

    @property
    def programs(self) -> list[Program]:
        """Of all modes and workloads, those of the contract workload first."""
        every = (self.rehearse(mode, workload) for workload in WORKLOADS for mode in MODES)
        return list(dict.fromkeys(program for rehearsed in every for program in rehearsed.programs))


@cache
def _rehearsed(placement: Placement, mode: str, workload: str) -> DryRun:
    return placement.deployment(mode).rehearse(_workload(workload, known_config(placement.model).vocab_size))


@cache
def _workload(name: str, vocab_size: int) -> Workload:
    return make_workload(name, shape_named(name), vocab_size)


def placements(models: Sequence[str], targets: Sequence[str]) -> list[Placement]:
    return [Placement(model, target) for target in targets for model in models]


class Kept:
    """Compiled programs with their model and target, on disk after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for one in json.loads(path.read_text(encoding="utf-8"))["programs"]:
                self._found[_key(Placement(one["model"], one["target"]), Program(**one["program"]))] = one

    def add(self, placement: Placement, compiled: Compiled, libtpu: str) -> None:
        one = {"model": placement.model, "target": placement.target, "tp": TARGETS[placement.target]}
        one |= asdict(compiled)
        one["versions"] = {"libtpu": libtpu, "jax": importlib.metadata.version("jax")}
        one["commit"] = commit()
        self._found[_key(placement, compiled.program)] = one
        text = json.dumps({"object": "tpu-aot", "programs": list(self._found.values())}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def get(self, placement: Placement, program: Program) -> Compiled | None:
        found = self._found.get(_key(placement, program))
        if found is None:
            return None
        figures = {field.name: found[field.name] for field in fields(Compiled) if field.name != "program"}
        return Compiled(program, **figures)

    @property
    def empty(self) -> bool:
        return not self._found

    def all_of(self, placement: Placement, programs: Sequence[Program]) -> list[Compiled] | None:
        """None where one of them has not been compiled yet."""
        found = [self.get(placement, program) for program in programs]
        compiled = [one for one in found if one is not None]
        return compiled if len(compiled) == len(found) else None

    def commits(self, placement: Placement, programs: Sequence[Program]) -> str:
        """At which they were compiled."""
        keys = (_key(placement, program) for program in programs)
        return ", ".join(dict.fromkeys((self._found[key]["commit"] or "?")[:7] for key in keys if key in self._found))


def _key(placement: Placement, program: Program) -> str:
    return f"{placement.model} {placement.target} {program}"


def compile_missing(wanted: Sequence[Placement], kept: Kept, most: int | None, libtpu: Path) -> None:
    done, version = 0, next(iter(importlib.metadata.distributions(name="libtpu", path=[str(libtpu)]))).version
    for placement in wanted:
        for program in placement.programs:
            if kept.get(placement, program) is not None or (most is not None and done >= most):
                continue
            # Modes differ in the steps they take, not in the programs.
            (compiled,) = compile_programs(placement.deployment("packed-segment"), [program], libtpu)
            kept.add(placement, compiled, version)
            done += 1
            told = (
                compiled.does_not_fit or f"{compiled.seconds:.0f} s, {compiled.temporaries / GIB:.2f} GiB temporaries"
            )
            print(f"{placement.model} {placement.target} {program}: {told}", file=sys.stderr)


@dataclass(frozen=True)
class Line:
    """A placement's figures. Refused by the engine, or too large for the compiler: `words` say so."""

    placement: Placement
    programs: Sequence[Program]
    seconds: float
    footprint: Footprint
    words: str = ""

    @property
    def fits(self) -> bool:
        return not self.words and self.footprint.fits


def line_of(placement: Placement, kept: Kept) -> Line | None:
    """None where a program has not been compiled yet."""
    deployment = placement.deployment("packed-segment")
    try:
        deployment.parts.check_memory()
    except ConfigError as refused:
        return Line(placement, (), 0.0, estimated(deployment), str(refused))
    programs = placement.programs
    compiled = kept.all_of(placement, programs)
    if compiled is None:
        return None
    words = next((one.does_not_fit for one in compiled if one.does_not_fit), "") or ""
    return Line(placement, programs, sum(one.seconds for one in compiled), as_compiled(deployment, compiled), words)


def matrix(kept: Kept) -> Iterator[str]:
    """Markdown: what was compiled, in GiB of one chip."""
    yield _row("model", "target", "programs", "compiled in", *SIZES, "all", "fits", "commit")
    yield "|---|---|---|---:|---:|---:|---:|---:|---|---|"
    for model in MODELS:
        for target in TARGETS:
            line = line_of(Placement(model, target), kept)
            if line is None:
                continue
            f = line.footprint
            sizes = (f"{size / GIB:.2f}" for size in (f.weights, f.pool, f.temporaries, f.total))
            fits = "yes" if line.fits else f"no: {line.words[:90]}"
            names, seconds = ", ".join(map(str, line.programs)), f"{line.seconds:.0f} s"
            yield _row(model, target, names, seconds, *sizes, fits, kept.commits(line.placement, line.programs))


def predictions(kept: Kept) -> Iterator[str]:
    """Markdown: items a second of Qwen3-0.6B and the contract workload, on one copy."""
    basis = ("roofline", "at the H200's part of it", "by the compiler's schedule")
    yield _row("target", "mode", *basis, "published by others", "commit")
    yield "|---|---|---:|---:|---:|---|---|"
    for target in TARGETS:
        for mode in MODES:
            placement = Placement("qwen3-0.6b", target)
            rehearsed = placement.rehearse(mode, "contract")
            compiled = kept.all_of(placement, rehearsed.programs)
            if compiled is None:
                continue
            p = predict(placement.deployment(mode), rehearsed, 500, compiled)
            rates = (p.rate(seconds) for seconds in (p.roofline, p.at_efficiency, p.scheduled) if seconds)
            told = (f"{rate:,.0f}" for rate in rates)
            commits = kept.commits(placement, rehearsed.programs)
            yield _row(target, mode, *told, PUBLISHED.get((target, mode), ""), commits)


def _row(*values: str) -> str:
    return f"| {' | '.join(values)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(TARGETS))
    parser.add_argument("--most", type=int, help="compile at most this many programs, then stop")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--libtpu", type=Path, default=ROOT / ".libtpu")
    args = parser.parse_args()
    kept = Kept(args.results)
    wanted = placements(args.models, args.targets)
    try:
        compile_missing(wanted, kept, args.most, args.libtpu)
    except OnepassError as error:
        print(error, file=sys.stderr)
        return 1
    lines = [line_of(placement, kept) for placement in wanted]
    wrong = [line for line in lines if line is not None and not line.fits]
    for line in wrong:
        total = f"{line.footprint.total / GIB:.2f} GiB"
        print(f"{line.placement} does not fit: {line.words or total}", file=sys.stderr)
    missing = sum(line is None for line in lines)
    print(f"{len(lines) - missing} of {len(lines)} compiled, {len(wrong)} do not fit", file=sys.stderr)
    return 1 if wrong or (missing and args.most is None) else 0


if __name__ == "__main__":
    sys.exit(main())
