"""A model's programs are found again by another process, and by no model that differs in anything."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onepass.engine.programs.key import stable_text
from onepass.kernels.cpu import build


@dataclass(frozen=True)
class Inner:
    rule: object
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    name: str | None = None


def test_stable_text_names_functions_and_every_field() -> None:
    text = stable_text(Outer(Inner(stable_text)))
    assert text.endswith("Outer(inner=" + stable_text(Inner(stable_text)) + ", name=None)")
    assert "onepass.engine.programs.key.stable_text" in text
    others = [Outer(Inner(len)), Outer(Inner(stable_text, (1, 3))), Outer(Inner(stable_text), "a"), Inner(stable_text)]
    assert len({text, *map(stable_text, others)}) == 5


def test_stable_text_refuses_an_address() -> None:
    with pytest.raises(AssertionError, match="an address"):
        stable_text(Inner(object()))


def run_step(folder: Path, attention: str) -> dict[str, Any]:
    script = Path(__file__).with_name("kept_step_process.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(script.parents[2])}
    command = [sys.executable, str(script), str(folder), attention]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("attention", ["xla", "cpu"])
def test_every_program_of_a_model_is_found_by_another_process_and_computes_the_same(
    tmp_path: Path, attention: str
) -> None:
    """With `cpu`, programs call our own C++, which the process that loads them has registered."""
    if attention == "cpu" and (problem := build.cpu_problem()) is not None:
        pytest.skip(problem)
    first, second = run_step(tmp_path, attention), run_step(tmp_path, attention)
    assert (first["found"], first["warnings"], second["warnings"]) == (0, [], [])
    assert second["found"] == len(first["digests"]) == len(list(tmp_path.iterdir()))
    assert second["digests"] == first["digests"]
    donated = {name for name, gone in second["donated"].items() if gone}
    assert donated == {name for name in first["digests"] if name.startswith(("step", "copy"))}
