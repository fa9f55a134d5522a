"""The process that compiles: reads one job as JSON from stdin, writes a line of JSON for every program.

It runs apart because libtpu reads the environment once, keeps the machine's JAX busy with a TPU that is not there, and
may take its process down with it. `compiler` starts it and reads what it says.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp

from onepass.capacity.chips import Target
from onepass.capacity.deployment import Deployment
from onepass.capacity.schedule import read_schedule
from onepass.capacity.shard import Share
from onepass.engine.config import EngineConfig
from onepass.engine.programs.builder import Program, ProgramBuilder
from onepass.engine.scheduling.scheduler import out_of_memory
from onepass.errors import ConfigError
from onepass.models.config import ModelConfig
from onepass.models.rope import Rope


def job_of(deployment: Deployment, programs: list[Program]) -> dict[str, Any]:
    """What goes to the process, ready for JSON."""
    share = deployment.share
    return {
        "model": asdict(share.config),
        "dtype": str(share.dtype),
        "tp": share.tp,
        "target": str(deployment.target),
        "engine": asdict(replace(deployment.engine, programs_dir=None)),
        "programs": [asdict(program) for program in programs],
    }


def results(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One document a program, in order."""
    raw = {key: value for key, value in job["model"].items() if key != "split"}
    model = ModelConfig(**{**raw, "rope": Rope(**raw["rope"])})
    share = Share(model, jnp.dtype(job["dtype"]), job["tp"])
    deployment = Deployment(Target.parse(job["target"]), share, EngineConfig(**job["engine"]))
    builder = deployment.compiled_parts().builder()
    for program in job["programs"]:
        try:
            yield _compile(builder, Program(**program))
        except Exception as error:
            if not out_of_memory(error):
                raise
            yield {"does_not_fit": _first_lines(error)}


def _compile(builder: ProgramBuilder, program: Program) -> dict[str, Any]:
    start = time.perf_counter()
    compiled = builder.lower(program, "tpu").compile()
    seconds = time.perf_counter() - start
    size: Any = compiled.memory_analysis()
    schedule = read_schedule(compiled.as_text() or "")
    return {
        "seconds": seconds,
        "arguments": size.argument_size_in_bytes,
        "outputs": size.output_size_in_bytes - size.alias_size_in_bytes,
        "temporaries": size.temp_size_in_bytes,
        "code": size.generated_code_size_in_bytes,
        "cycles": schedule.cycles,
        "kernel_flops": schedule.kernel_flops,
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
