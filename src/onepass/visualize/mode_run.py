"""One workload run in every mode on this machine: the steps as the device was given them, their tiles and their times.

The tokens are those of a benchmark's workload. Each mode is warmed up, then timed several times with nothing cached;
the run of median time is kept. Drawing is `page`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import Mode, ScoreRequest, ScoreResult
from onepass.attention.base import StepShape
from onepass.bench.workloads import Workload
from onepass.engine.config import EngineConfig
from onepass.engine.engine import Engine
from onepass.engine.packing import Packed
from onepass.errors import ConfigError
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.weights import Weights
from onepass.scorer import Scorer
from onepass.trace import Trace
from onepass.visualize.tiles import BLOCK, StepTiles, step_tiles

CACHE_BYTES = 1 << 28
LABELS = (0, 1)
PAGE = 64  # what sizes of the dense mask's steps are rounded up to
DENSE_TOKENS = 1024  # of its largest step
# Names as `onepass bench` has them: the mode of the request, and whether the mask is dense.
MODES: dict[str, tuple[Mode, bool]] = {
    "serial": ("serial", False),
    "packed-dense": ("packed", True),
    "packed-segment": ("packed", False),
    "chunked": ("chunked", False),
    "extend": ("extend", False),
}


@dataclass(frozen=True)
class Options:
    """`chunk_size` None is a quarter of the items, so that mode `chunked` has several chunks to show."""

    repeats: int = 3
    chunk_size: int | None = None
    modes: tuple[str, ...] = tuple(MODES)


@dataclass(frozen=True)
class ModeRun:
    """A mode's run of median time. `steps` are all of its steps; `trace` has their times, up to its bound."""

    name: str
    reason: str
    prompt_tokens: int
    computed_tokens: int
    attention: str
    trace: Trace
    steps: tuple[StepTiles, ...]
    shapes: tuple[StepShape, ...]
    total_ms: float
    times_ms: tuple[float, ...]

    @property
    def repeated_tokens(self) -> int:
        """Tokens computed more than once."""
        return self.computed_tokens - self.prompt_tokens

    @property
    def end_ms(self) -> float:
        """From the request's arrival at the engine to its last step's end."""
        return self.total_ms if self.trace.omitted_steps else max(step.collected_ms for step in self.trace.steps)

    @property
    def tiles(self) -> int:
        return sum(step.visited.count for step in self.steps)

    @property
    def visible_tiles(self) -> int:
        return sum(step.visible.count for step in self.steps)

    @property
    def pairs(self) -> int:
        return sum(step.visited.pairs for step in self.steps)

    @property
    def visible_pairs(self) -> int:
        return sum(step.visible_pairs for step in self.steps)


def run_modes(
    loaded: tuple[Model, Weights], workload: Workload, options: Options, progress: Progress = silent
) -> list[ModeRun]:
    request = _request(workload)
    chunk = options.chunk_size or max(1, len(workload.asked[0].items) // 4)
    config = EngineConfig(cache_bytes=CACHE_BYTES, chunk_size=chunk, tp=1, dp=1)
    runs: list[ModeRun] = []
    for dense in (False, True):
        names = [name for name in options.modes if MODES[name][1] is dense]
        if not names:
            continue
        with _scorer(loaded, config, workload, dense) as scorer:
            for name in names:
                progress(f"running {name}", len(runs), len(options.modes))
                block = runs[0].steps[0].visited.block if runs else BLOCK
                runs.append(_run_mode(scorer, name, replace(request, mode=MODES[name][0]), options.repeats, block))
    progress("running", len(runs), len(runs))
    return sorted(runs, key=lambda run: options.modes.index(run.name))


def _scorer(loaded: tuple[Model, Weights], config: EngineConfig, workload: Workload, dense: bool) -> Scorer:
    """The dense mask asks every key of the page table: its scorer has steps and contexts of the workload's size."""
    model, weights = loaded
    if not dense:
        return Scorer(model, weights, replace(config, mask="segment"))
    asked = workload.asked[0]
    longest = -(-(len(asked.query) + max(map(len, asked.items))) // PAGE) * PAGE
    model = replace(model, config=replace(model.config, max_position=min(longest, model.config.max_position)))
    tokens = min(-(-asked.tokens // PAGE) * PAGE, DENSE_TOKENS)
    return Scorer(model, weights, replace(config, mask="dense", max_batch_tokens=tokens))


def _request(workload: Workload) -> ScoreRequest:
    if len(workload.asked) != 1:
        raise ConfigError(f"visualize draws one request; workload {workload.name} has {len(workload.asked)}")
    return replace(workload.with_labels(LABELS).asked[0].request, return_trace=True)


def _run_mode(scorer: Scorer, name: str, request: ScoreRequest, repeats: int, dense_block: int) -> ModeRun:
    (engine,) = scorer.engines
    results: list[tuple[ScoreResult, list[tuple[StepShape, Packed]]]] = []
    for number in range(1 + repeats):
        engine.contexts.clear()
        with _recorded(engine) as steps:
            result = scorer.score_many([request])[0]
        if number:  # the first one compiles
            results.append((result, steps))
    times = [result.timings.total_ms for result, _ in results]
    result, steps = sorted(results, key=lambda one: one[0].timings.total_ms)[len(results) // 2]
    assert result.trace is not None
    assert len(steps) == len(result.trace.steps) + result.trace.omitted_steps, "a step per entry of the trace"
    attention = engine.runner.builder.network.attention
    return ModeRun(
        name,
        result.reason,
        result.usage.prompt_tokens,
        result.usage.computed_tokens or 0,
        attention.name,
        result.trace,
        tuple(step_tiles(attention, shape, packed, dense_block) for shape, packed in steps),
        tuple(shape for shape, _ in steps),
        result.timings.total_ms,
        tuple(times),
    )


@contextmanager
def _recorded(engine: Engine) -> Iterator[list[Any]]:
    """The steps that the device is given meanwhile."""
    steps: list[Any] = []
    engine.runner.on_step = lambda shape, packed: steps.append((shape, packed))
    try:
        yield steps
    finally:
        engine.runner.on_step = None
