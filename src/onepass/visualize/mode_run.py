"""One request run in every mode on this machine: the steps as the device was given them, their tiles and their times.

Each mode is warmed up, then timed several times with nothing cached, for a minute at most; the run of median time is
kept. The scorers are made for it, so that an engine which serves meanwhile keeps its contexts. Drawing is `page`; JSON
is `document`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from onepass.api import Mode
from onepass.attention.base import StepShape
from onepass.engine.config import EngineConfig
from onepass.engine.encoding.encode import Encoded
from onepass.engine.engine import Engine
from onepass.engine.job import JobOutput
from onepass.engine.packing import Packed
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.weights import Weights
from onepass.scorer import Scorer
from onepass.trace import Trace
from onepass.visualize.tiles import BLOCK, StepTiles, step_tiles

CACHE_BYTES = 1 << 28
PAGE = 64  # what sizes of the dense mask's steps are rounded up to
DENSE_TOKENS = 1024  # of its largest step
MODE_SECONDS = 60.0  # after which a mode is not repeated again
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
    loaded: tuple[Model, Weights],
    encoded: Encoded,
    options: Options,
    progress: Progress = silent,
    config: EngineConfig | None = None,
) -> list[ModeRun]:
    """`config` has what the engine is to be like; its cache, chunks and masks are decided here."""
    chunk = options.chunk_size or max(1, len(encoded.items) // 4)
    config = replace(config or EngineConfig(), cache_bytes=CACHE_BYTES, chunk_size=chunk, tp=1, dp=1)
    encoded = replace(encoded, request=replace(encoded.request, return_trace=True))
    runs: list[ModeRun] = []
    for dense in (False, True):
        names = [name for name in options.modes if MODES[name][1] is dense]
        if not names:
            continue
        with _scorer(loaded, config, encoded, dense) as scorer:
            for name in names:
                progress(f"running {name}", len(runs), len(options.modes))
                block = runs[0].steps[0].visited.block if runs else BLOCK
                request = replace(encoded.request, mode=MODES[name][0])
                runs.append(_run_mode(scorer, name, replace(encoded, request=request), options.repeats, block))
    progress("running", len(runs), len(runs))
    return sorted(runs, key=lambda run: options.modes.index(run.name))


def _scorer(loaded: tuple[Model, Weights], config: EngineConfig, encoded: Encoded, dense: bool) -> Scorer:
    """The dense mask asks every key of the page table: its scorer has steps and contexts of the request's size."""
    model, weights = loaded
    if not dense:
        return Scorer(model, weights, replace(config, mask="segment"))
    longest = -(-(len(encoded.context) + max(_item_tokens(encoded))) // PAGE) * PAGE
    model = replace(model, config=replace(model.config, max_position=min(longest, model.config.max_position)))
    tokens = min(-(-prompt_tokens(encoded) // PAGE) * PAGE, DENSE_TOKENS)
    return Scorer(model, weights, replace(config, mask="dense", max_batch_tokens=tokens))


def prompt_tokens(encoded: Encoded) -> int:
    """The context once, and every item with all that follows it."""
    return len(encoded.context) + sum(_item_tokens(encoded))


def _item_tokens(encoded: Encoded) -> list[int]:
    branches = sum(map(len, encoded.branches))
    return [
        len(item) + sum(map(len, texts)) + branches
        for item, texts in zip(encoded.items, encoded.continuations, strict=True)
    ]


def _run_mode(scorer: Scorer, name: str, encoded: Encoded, repeats: int, dense_block: int) -> ModeRun:
    (engine,) = scorer.engines
    runs: list[tuple[JobOutput, list[tuple[StepShape, Packed]]]] = []
    began = time.monotonic()
    for number in range(1 + repeats):
        if runs and time.monotonic() - began > MODE_SECONDS:
            break
        engine.contexts.clear()
        with _recorded(engine) as steps:
            output = engine.submit_encoded(encoded).result()
        if number:  # the first one compiles
            runs.append((output, steps))
    times = [output.info.timings.total_ms for output, _ in runs]
    output, steps = sorted(runs, key=lambda run: run[0].info.timings.total_ms)[len(runs) // 2]
    info = output.info
    assert info.trace is not None
    assert len(steps) == len(info.trace.steps) + info.trace.omitted_steps, "a step per entry of the trace"
    attention = engine.runner.builder.network.attention
    return ModeRun(
        name,
        info.reason,
        info.usage.prompt_tokens,
        info.usage.computed_tokens or 0,
        attention.name,
        info.trace,
        tuple(step_tiles(attention, shape, packed, dense_block) for shape, packed in steps),
        tuple(shape for shape, _ in steps),
        info.timings.total_ms,
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
