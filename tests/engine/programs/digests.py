"""Digests of lowered programs: a move or renaming that changes no digest has changed no program.

Programs are lowered from shapes, for devices that need not be here; nothing is compiled. Locations and the bodies of
Pallas kernels are left out, and names of functions are replaced by numbers. Where a program was meant to change, write
the digests anew and say in the commit why they differ:

    python tests/engine/programs/digests.py --write
"""

import argparse
import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("digests.json")
_SYMBOL = re.compile(r"@[\w.$-]+")
# A kernel travels as bytes that hold file names and lines: its operands, results and layouts count, its body does not.
_KERNEL = re.compile(r'\b(backend_config|kernel_hash|kernel_name|module)\s*=\s*"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Case:
    model: str
    platform: str  # that is lowered for
    attention: str
    kinds: tuple[str, ...] = ("step",)
    mask: str = "auto"

    def __str__(self) -> str:
        return f"{self.model} {self.platform} {self.attention}" + (" dense" if self.mask == "dense" else "")


CASES = (
    Case("qwen3-0.6b", "cpu", "xla", ("step", "vocabulary", "labels", "copy")),
    Case("smollm2-135m", "cpu", "xla", ("step", "vocabulary", "labels")),
    Case("qwen2.5-0.5b", "cpu", "xla", mask="dense"),
    Case("qwen3-0.6b", "tpu", "pallas-tpu", ("step", "vocabulary")),
    Case("qwen3-0.6b", "cuda", "hopper", ("step", "vocabulary", "labels")),
)


def digests_of(case: Case) -> dict[str, str]:
    """By kind, of the smallest program of that kind."""
    builder = builder_of(case)
    smallest = {program.kind: program for program in builder.programs()}  # the largest comes first
    return {kind: digest(builder.lower(smallest[kind], case.platform).as_text()) for kind in case.kinds}


@cache
def builder_of(case: Case) -> Any:
    import jax.numpy as jnp

    from onepass.engine.config import Device, EngineConfig
    from onepass.engine.kernels import kernels_for
    from onepass.engine.parts import EngineParts
    from onepass.models.known import known_config
    from onepass.models.layout import Layout

    model = replace(known_config(case.model), num_layers=2, max_position=1024)
    device = Device(case.platform, 8 << 30)
    if case.attention == "hopper":
        device = Device("gpu", 8 << 30, hopper=True, multiprocessors=132)
    options = {"attention": case.attention, "mask": case.mask, "max_batch_tokens": 512, "cache_bytes": 1 << 24}
    layout = Layout(model)
    kernels = kernels_for(EngineConfig.from_options(options), device, layout.share, jnp.bfloat16, build=False)
    weights = layout.abstract_weights(jnp.bfloat16)
    return EngineParts(model, weights, kernels.config, device, kernels.attention, kernels.ops).builder()


def digest(text: str) -> str:
    numbers: dict[str, str] = {}
    text = _KERNEL.sub(r"\1", text)
    text = _SYMBOL.sub(lambda found: numbers.setdefault(found.group(), f"@{len(numbers)}"), text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compute() -> dict[str, Any]:
    import jax

    return {"jax": jax.__version__, "programs": {str(case): digests_of(case) for case in CASES}}


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    parser = argparse.ArgumentParser(description="Prints the digests of lowered programs.")
    parser.add_argument("--write", action="store_true", help=f"replace {STORED.name}")
    text = json.dumps(compute(), indent=2) + "\n"
    if parser.parse_args().write:
        STORED.write_text(text, encoding="utf-8")
    print(text, end="")
