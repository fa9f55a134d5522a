"""onepass against PyTorch transformers on the same weights: each `query + item` alone there, serial and packed here.

PyTorch runs in a process of its own (`torch_oracle`), under any Python that has it; without one there is no answer and
the check says so. Writing the weights for it is `export`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onepass.errors import ConfigError
from onepass.evidence.tolerance import Dtype, Tolerance
from onepass.validate import torch_oracle
from onepass.validate.check import Case, Differences
from onepass.validate.harness import Harness
from onepass.validate.settings import Settings
from onepass.validate.workload import Ids, Workload

REFERENCE = Path(".reference-venv") / "bin" / "python"


def find_torch_python(settings: Settings) -> Path | None:
    """The Python that was asked for; else this one if it has PyTorch; else the reference environment's."""
    if settings.torch_python is not None:
        if not settings.torch_python.exists():
            raise ConfigError(
                f"--torch-python must be a Python with torch and transformers; no {settings.torch_python}"
            )
        return settings.torch_python
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return Path(sys.executable)
    # Not resolved: a virtual environment's Python is a link that must be called by its own name.
    return Path.cwd() / REFERENCE if REFERENCE.exists() else None


@dataclass
class Torch:
    """PyTorch's answers for one model folder; asked once, in one process, for all the sequences of a run."""

    python: Path
    folder: Path
    dtype: Dtype
    versions: dict[str, str] = field(default_factory=dict)

    def logprobs(self, sequences: list[Ids], labels: list[int]) -> np.ndarray:
        """[sequences, labels]"""
        with tempfile.TemporaryDirectory() as scratch:
            asked, answered = Path(scratch, "asked.json"), Path(scratch, "answered.json")
            job = {"model": str(self.folder), "dtype": self.dtype, "labels": labels, "sequences": sequences}
            asked.write_text(json.dumps(job), encoding="utf-8")
            # -P: modules beside the script are not on its path, where `html` would be taken for Python's own.
            command = [str(self.python), "-P", str(torch_oracle.__file__), str(asked), str(answered)]
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"PyTorch's process exited with {done.returncode}: {done.stderr.strip()[-400:]}")
            answer = json.loads(answered.read_text(encoding="utf-8"))
        self.versions.update(answer["versions"])
        return np.array(answer["logprobs"])


def torch_ways(settings: Settings) -> list[str]:
    return ["serial", *[way for way in settings.ways if way.startswith("packed")][-1:]]


def torch_cases(work: Workload, settings: Settings, tolerance: Tolerance, torch: Torch) -> Iterator[Case]:
    count = settings.large_count
    known: list[np.ndarray] = []
    for way in torch_ways(settings):
        yield against_torch(work, count, way, tolerance, torch, known)


def against_torch(
    work: Workload, count: int, way: str, tolerance: Tolerance, torch: Torch, known: list[np.ndarray]
) -> Case:
    """`known` keeps PyTorch's answer for the next way."""
    items = work.first(count)
    sampled = work.sample(count, 24)

    def measure(rig: Harness) -> Differences:
        if not known:
            known.append(torch.logprobs([work.query + items[i] for i in sampled], rig.likely.labels))
        whole = np.exp(known[0])
        both = np.concatenate([whole / whole.sum(axis=1, keepdims=True), whole], axis=1)
        if way == "serial":
            found = rig.numbers(way, work.query, [items[i] for i in sampled])
        else:
            found = rig.numbers(way, work.query, items)[sampled]
        yield np.abs(found - both[:, -found.shape[1] :])

    detail = f"{count} items, {len(sampled)} in PyTorch"
    return Case("against PyTorch", way, detail, tolerance, measure, control=way != "serial" and count > 1)
