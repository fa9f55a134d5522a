"""The process that compiles: reads one job as JSON from stdin, writes a line of JSON for every program.

It runs apart because libtpu reads the environment once, keeps the machine's JAX busy with a TPU that is not there, and
may take its process down with it. `compiler` starts it and reads what it says.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import jax.numpy as jnp

from onepass.attention.base import RowShape
from onepass.attention.registry import attentions
from onepass.capacity.schedule import read_schedule
from onepass.capacity.share import Share
from onepass.engine.lowering import Program
from onepass.engine.runner import Runner
from onepass.engine.steps import out_of_memory
from onepass.errors import ConfigError
from onepass.models.config import ModelConfig, Rope
from onepass.parallel.topology import Topology


def job_of(share: Share, topology: Topology, programs: list[Program]) -> dict[str, Any]:
    """What goes to the process, ready for JSON."""
    return {
        "model": asdict(share.config),
        "dtype": str(share.dtype),
        "tp": share.tp,
        "topology": str(topology),
        "programs": [asdict(program) for program in programs],
    }


def results(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One document a program, in order."""
    raw = {key: value for key, value in job["model"].items() if key != "split"}
    model = ModelConfig(**{**raw, "rope": Rope(**raw["rope"])})
    share = Share(model, jnp.dtype(job["dtype"]), job["tp"])
    runner = share.runner(Topology.parse(job["topology"]), attentions("xla", "xla", "pallas-tpu"))
    for one in job["programs"]:
        program = Program(**{**one, "shape": RowShape(**one["shape"])})
        try:
            yield _compile(runner, program)
        except Exception as error:
            if not out_of_memory(error):
                raise
            yield {"does_not_fit": _first_lines(error)}


def _compile(runner: Runner, program: Program) -> dict[str, Any]:
    """A step of kind "score" is two programs, the second over the vocabulary. They run one after the other: arithmetic
    adds up, temporaries do not."""
    start = time.perf_counter()
    compiled = [runner.lowering.lower(program, "tpu").compile()]
    if program.kind == "score":
        compiled.append(runner.lowering.lower_vocabulary(program.shape, "tpu").compile())
    seconds = time.perf_counter() - start
    sizes: list[Any] = [one.memory_analysis() for one in compiled]
    schedules = [read_schedule(one.as_text() or "") for one in compiled]
    return {
        "seconds": seconds,
        "arguments": sizes[0].argument_size_in_bytes,
        "outputs": sum(size.output_size_in_bytes for size in sizes),
        "temporaries": max(size.temp_size_in_bytes for size in sizes),
        "code": sum(size.generated_code_size_in_bytes for size in sizes),
        "cycles": sum(schedule.cycles for schedule in schedules),
        "kernel_flops": sum(schedule.kernel_flops for schedule in schedules),
    }


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:3])[:300]


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever a compiler prints is not an answer
    try:
        for result in results(json.load(sys.stdin)):
            print(json.dumps(result), file=out, flush=True)
    except ConfigError as error:  # a topology that libtpu does not know
        print(json.dumps({"refused": str(error)}), file=out, flush=True)


if __name__ == "__main__":
    main()
