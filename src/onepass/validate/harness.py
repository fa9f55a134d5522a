"""Scorers on one set of weights, and their answers as arrays of numbers to compare.

The scorer under test is the one that is served: its programs are those that `onepass compile` keeps. Modes and their
sizes are planned on it. Only the dense mask has a scorer of its own, and so has the negative control (`leaking`), which
computes everything with a plain causal mask over the whole step.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from onepass.api import Continuation, Mode, ScoreRequest, ScoreResult
from onepass.engine.backends import CPU_PAGE
from onepass.engine.config import EngineConfig, Quantize
from onepass.engine.kernels import without_isolation
from onepass.loading.model import Model
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.weights import Weights
from onepass.scorer import Scorer

# Dense masks and negative controls let every token ask every key of the page table: few tokens, few entries (64 with
# the longest sequence of the default settings), few rungs. What does not fit into one of their steps takes several.
SMALL_STEP = 448
SMALL_POOL_TOKENS = 4096

Query = Sequence[int] | None  # None where a context is named by its handle


@dataclass(frozen=True)
class Way:
    """A mode, whether its mask is dense, and the sizes it is planned with. Names are `settings.WAYS`, with `:N` for a
    size."""

    mode: Mode
    dense: bool
    sizes: dict[str, int]

    @classmethod
    def named(cls, name: str) -> "Way":
        kind, _, size = name.partition(":")
        mode, _, mask = kind.partition("-")
        sized = "chunk_size" if mode == "chunked" else "extend_batch_size"
        return cls(mode, mask == "dense", {sized: int(size)} if size else {})  # type: ignore[arg-type]


@dataclass(frozen=True)
class LikelyLabels:
    """Tokens worth asking for: `labels` that the model gives some probability after the items, and `text`, its own
    continuation of the first item, whose tokens are among the labels. `negligible`: the labels hold next to nothing of
    the vocabulary's probability, as with random weights, so that those among the labels are compared as well, and
    those of texts in units of `unit`, that the largest of them be as SHARP as allowed."""

    labels: list[int]
    text: list[int] = field(default_factory=list)
    negligible: bool = False
    unit: float = 1.0


@dataclass
class Harness:
    """`config` is that of the scorer under test; `longest` is the longest sequence that will be asked for."""

    model: Model
    weights: Weights
    likely: LikelyLabels
    config: EngineConfig = field(default_factory=EngineConfig)
    longest: int = 512
    leaking: bool = False
    _scorers: dict[bool, Scorer] = field(default_factory=dict)  # by whether it is the dense mask's

    def scorer(self, way: str) -> Scorer:
        dense = Way.named(way).dense and not self.leaking
        if dense not in self._scorers:
            small = dense or self.leaking
            self._scorers[dense] = self._small(dense) if small else Scorer(self.model, self.weights, self.config)
        return self._scorers[dense]

    def _small(self, dense: bool) -> Scorer:
        shape = self.model.config
        model = replace(self.model, config=replace(shape, max_position=min(self.longest, shape.max_position)))
        config = replace(
            self.config,
            mask="dense" if dense else "auto",
            max_batch_tokens=min(SMALL_STEP, self.config.max_batch_tokens or SMALL_STEP),
            cache_bytes=self._small_pool_bytes,
        )
        # The definition takes pages of any size; small ones have fewer keys that nobody sees.
        return Scorer(model, self.weights, config, without_isolation(CPU_PAGE) if self.leaking else None)

    @property
    def _small_pool_bytes(self) -> int:
        itemsize: int = self.weights.embed.dtype.itemsize
        return SMALL_POOL_TOKENS * self.model.config.kv_bytes_per_token(itemsize)

    def with_quantized(self, weights: Weights, how: Quantize, activations: bool | None = None) -> "Harness":
        """The same with other weights, beside this one: with a small pool. `activations`: whether they are quantized,
        too."""
        config = replace(
            self.config, quantize=how, quantize_activations=activations, cache_bytes=self._small_pool_bytes
        )
        return replace(self, weights=weights, config=config, _scorers={})

    def compile(self, tokens: int, progress: Progress = silent) -> None:
        """The programs of the scorer under test for steps of up to so many tokens, several at a time."""
        for engine in self.scorer("packed").engines:
            runner, largest = engine.runner, engine.ladder.rung(tokens, 0, 0).tokens
            programs = [program for program in runner.builder.programs() if program.tokens <= largest]
            with ThreadPoolExecutor(runner.compiled_at_once, "onepass-compile") as pool:
                for done, _ in enumerate(pool.map(runner.compile, programs)):
                    progress("compile", done + 1, len(programs))

    def request(self, way: str, query: Query, items: Sequence[Sequence[int]], **fields: object) -> ScoreRequest:
        """Softmax over the labels is asked for, for numbers of order 0.1 also where labels are unlikely; the result's
        logprobs are still those of the whole vocabulary."""
        asked = {"label_token_ids": self.likely.labels, "apply_softmax": True, **fields}
        return ScoreRequest(query=query, items=items, mode=Way.named(way).mode, **asked)  # type: ignore[arg-type]

    def run(self, way: str, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """All requests together, as callers that share the engine would."""
        scorer, named = self.scorer(way), Way.named(way)
        if named.mode == "packed":
            scorer.engine.contexts.clear()  # a context that is kept would not be computed beside its items
        with _planned(scorer, named.sizes):
            return _in_mode(named.mode, scorer.score_many(requests))

    def run_together(self, way: str, requests: Sequence[ScoreRequest]) -> tuple[list[ScoreResult], int]:
        """All requests from cold in one engine, where they arrive at once; and how many steps they took."""
        engine = self.scorer(way).engines[0]
        engine.contexts.clear()
        before = engine.totals.steps
        results = _in_mode(Way.named(way).mode, engine.score(requests))
        return results, engine.totals.steps - before

    def score(self, way: str, query: Query, items: Sequence[Sequence[int]], **fields: object) -> ScoreResult:
        return self.run(way, [self.request(way, query, items, **fields)])[0]

    def numbers(self, way: str, query: Query, items: Sequence[Sequence[int]], **fields: object) -> np.ndarray:
        return self.probabilities(self.score(way, query, items, **fields))

    def probabilities(self, result: ScoreResult) -> np.ndarray:
        """[items, labels] in the whole vocabulary, or [items, 2 · labels] with those among the labels before them."""
        whole = np.exp(np.array(result.logprobs))
        return np.concatenate([np.array(result.scores), whole], axis=1) if self.likely.negligible else whole

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()
        self._scorers.clear()


def _in_mode(mode: Mode, results: list[ScoreResult]) -> list[ScoreResult]:
    for result in results:
        if mode not in ("auto", result.mode):
            raise AssertionError(f"mode {mode} was asked for and {result.mode} was run")
    return results


@contextmanager
def _planned(scorer: Scorer, sizes: dict[str, int]) -> Iterator[None]:
    """Requests are planned with these sizes: a size is nothing to a program."""
    before = [engine.planner for engine in scorer.engines]
    try:
        for engine, planner in zip(scorer.engines, before, strict=True):
            engine.planner = replace(planner, config=replace(planner.config, **sizes))  # type: ignore[arg-type]
        yield
    finally:
        for engine, planner in zip(scorer.engines, before, strict=True):
            engine.planner = planner


def raw(result: ScoreResult) -> np.ndarray:
    """[items, 2 · labels]: softmax over the labels and the logits themselves, for comparisons that must be exact."""
    return np.concatenate([np.array(result.scores), np.array(result.logits)], axis=1)


@dataclass
class SerialOracle:
    """The oracle: `query + item` alone in a step, with nothing shared. Each pair is computed once for all checks."""

    rig: Harness
    _known: dict[tuple[tuple[int, ...], ...], np.ndarray] = field(default_factory=dict)
    _continued: dict[tuple[tuple[int, ...], ...], Continuation] = field(default_factory=dict)

    def numbers(self, query: Sequence[int], items: Sequence[Sequence[int]]) -> np.ndarray:
        keys = [(tuple(query), tuple(item)) for item in items]
        missing = list(dict.fromkeys(key for key in keys if key not in self._known))
        if missing:
            rows = self.rig.numbers("serial", query, [item for _, item in missing])
            self._known.update(zip(missing, rows, strict=True))
        return np.stack([self._known[key] for key in keys])

    def continuation(self, query: Sequence[int], item: Sequence[int], text: Sequence[int]) -> Continuation:
        """One plain sequence, `query + item + text`, in a request of its own."""
        key = (tuple(query), tuple(item), tuple(text))
        if key not in self._continued:
            found = self.rig.score("serial", query, [item], continuations=[text]).continuations
            assert found is not None
            self._continued[key] = found[0][0]
        return self._continued[key]
