"""A capacity plan: will it fit, how fast may it be, how are the chips best divided, what does it cost.

    target, model, workload ─► candidates ─► choice ─► (compiled programs) ─► footprint, prediction ─► `document`

Printing the document is the command's work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onepass.bench.workloads import Workload
from onepass.capacity import chips
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.latency import predict
from onepass.capacity.memory import as_compiled
from onepass.capacity.parallelism import Candidate, candidates, choose
from onepass.engine.config import EngineConfig
from onepass.engine.programs.builder import Program
from onepass.models.config import ModelConfig

# Compiles the programs of a deployment; None where only the roofline is asked for.
Compile = Callable[[Deployment, Sequence[Program]], list[Compiled]]


@dataclass(frozen=True)
class Question:
    """`price` is for a chip and an hour; `tp` None means the best. `published`: the configuration is our own copy of a
    public model's, not read from a file."""

    model: str
    config: ModelConfig
    dtype: np.dtype[Any]
    target: chips.Target
    workload: Workload
    engine: EngineConfig
    tp: int | None = None
    price: float | None = None
    published: bool = False


@dataclass(frozen=True)
class Answer:
    question: Question
    found: Sequence[Candidate]
    chosen: Candidate
    why: str
    compiled: Sequence[Compiled] = ()

    @property
    def fits(self) -> bool:
        return self.chosen.fits and not any(one.does_not_fit for one in self.compiled)


def answer(question: Question, compile_: Compile | None) -> Answer:
    q = question
    found = candidates(q.target, q.config, q.dtype, q.engine, q.workload)
    chosen, why = choose(found, q.target, q.tp)
    if compile_ is None or chosen.refusal is not None:
        return Answer(q, found, chosen, why)
    rehearsed = chosen.rehearsed
    compiled = compile_(chosen.deployment, rehearsed.programs)
    if any(one.does_not_fit for one in compiled):
        return Answer(q, found, chosen, why, compiled)
    chosen = replace(
        chosen,
        footprint=as_compiled(chosen.deployment, compiled),
        prediction=predict(chosen.deployment, rehearsed, q.workload.num_items, compiled),
    )
    return Answer(q, found, chosen, why, compiled)
