"""CTranslate2: the query as its static prompt, computed once a pass; one step of generation after each item.

Its cache of static prompts spares the query in all batches of a pass but the first, and is emptied between passes, as
a pass is a cold request. Converting the weights is `ctranslate2_model`.
"""

import platform
import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2_model import convert
from job import Ids, Job, Scores, groups, serve

BATCH_ITEMS = 16


class CTranslate2:
    serial = False

    def __init__(self, name: str, job: Job) -> None:
        self.job = job
        kind = "float32" if job.quantize is None else "int8_float32"
        self.notes = f"computes in {kind} whatever the job's dtype: the CPU library has no bfloat16"
        self.size = int(job.settings.get("batch_items", BATCH_ITEMS))
        self.folder = tempfile.TemporaryDirectory()  # kept, as the model is loaded again between passes
        out = Path(self.folder.name, "model")
        convert(job.weights, out)
        self.generator = ctranslate2.Generator(
            str(out), device="cpu", compute_type=kind, inter_threads=1, intra_threads=job.threads
        )
        self.query = [str(token) for token in job.query]
        self.versions = {"ctranslate2": ctranslate2.__version__, "python": platform.python_version()}
        self.settings: dict[str, Any] = {
            "compute_type": self.generator.compute_type,
            "threads": job.threads,
            "batch_items": self.size,
            "static_prompt": "the query, kept within a pass",
        }

    def prepare(self, items: list[Ids]) -> list[list[int]]:
        """Items of one length go together: after the shortest of a batch, CTranslate2 takes one token a step."""
        self.items = [[str(token) for token in item] for item in items]
        lengths = sorted({len(item) for item in items})
        same = [[number for number, item in enumerate(items) if len(item) == length] for length in lengths]
        return [group for indexes in same for group in groups(indexes, self.size)]

    def reset(self) -> None:
        """Only a model that is loaded again has an empty cache of static prompts."""
        self.generator.unload_model()
        self.generator.load_model()

    def score(self, prepared: list[list[int]]) -> Scores:
        scores: dict[int, list[float]] = {}
        for group in prepared:
            results = self.generator.generate_batch(
                [self.items[number] for number in group],
                static_prompt=self.query,
                cache_static_prompt=True,
                include_prompt_in_result=False,
                max_length=1,
                return_logits_vocab=True,
                return_end_token=True,
            )
            scores |= {number: self._row(result) for number, result in zip(group, results, strict=True)}
        return [scores[number] for number in sorted(scores)]

    def _row(self, result: Any) -> list[float]:
        logits = np.array(result.logits[0][0], dtype=np.float64).reshape(-1)
        top = logits.max()
        return [float(value) for value in np.exp(logits[self.job.labels] - top) / np.exp(logits - top).sum()]


if __name__ == "__main__":
    serve(CTranslate2)
