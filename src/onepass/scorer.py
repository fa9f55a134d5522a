"""`Scorer`: the public face of the engine in one process. Load a model, score, rank, keep contexts.

scorer = Scorer.load("smollm2-135m")
scorer.score(query="…", items=["…", "…"], labels=[" yes", " no"])
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from onepass.api import Ranking, ScoreRequest, ScoreResult, Text
from onepass.attention.base import Attention
from onepass.attention.registry import attentions
from onepass.engine.config import EngineConfig, describe_device, for_device
from onepass.engine.contexts import ContextHandle
from onepass.engine.engine import Engine, warm_up_requests
from onepass.engine.ranking import AskedMethod, ask_ranking, ranking_of
from onepass.engine.request import request_of
from onepass.errors import ConfigError, RequestError
from onepass.loading.checkpoint import Progress, silent
from onepass.loading.model import Model, open_model
from onepass.loading.source import SourceOptions
from onepass.loading.templates import ranker_from_file
from onepass.loading.tokenizer import TextTokenizer
from onepass.models.weights import Weights

Dtype = Literal["auto", "float32", "bfloat16"]
DEFAULT_MODEL = "smollm2-135m"


class Scorer:
    """Thread-safe: requests from any number of threads share the device's steps."""

    def __init__(
        self,
        model: Model,
        weights: Weights,
        config: EngineConfig | None = None,
        implementations: dict[str, Attention] | None = None,
    ) -> None:
        """`implementations` replaces the attention by name, as the negative controls of `validate` do."""
        device = describe_device()
        sixteen_bit = weights.embed.dtype.itemsize == 2
        decided = for_device(config or EngineConfig(), device, sixteen_bit, model.config.head_dim)
        assert decided.dense is not None
        assert decided.band is not None
        assert decided.attention is not None
        self.model = model
        self.weights = weights
        chosen = implementations or attentions(
            decided.dense, decided.band, decided.attention, device.multiprocessors, model.config.group
        )
        self.engine = Engine(model, weights, decided, device, chosen)

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        dtype: Dtype = "auto",
        revision: str | None = None,
        offline: bool = False,
        cache_dir: Path | None = None,
        template: Path | None = None,
        progress: Progress = silent,
        **options: Any,
    ) -> "Scorer":
        """`model` is a bundled name, a folder, a GGUF file, a hub name or `random:` with a known configuration.
        `template` is a TOML file with the words to rank by (`loading.templates.ranker_from_file`). `options` are the
        engine's (`engine.config.EngineConfig`)."""
        config = EngineConfig.from_options(options)
        chosen = _dtype(dtype)
        opened = open_model(model, SourceOptions(revision, offline, cache_dir, progress=progress))
        if template is not None:
            opened = replace(opened, ranker=ranker_from_file(template))
        _persistent_cache(config.compile_cache)
        scorer = cls(opened, opened.load(chosen, progress), config)
        scorer.warm_up(config.warm_up, progress)
        return scorer

    @property
    def tokenizer(self) -> TextTokenizer:
        if self.model.tokenizer is None:
            raise RequestError("no_tokenizer", f"{self.model.name} has no tokenizer: it takes token ids only")
        return self.model.tokenizer

    def score(self, query: Text | None = None, items: Text | Sequence[Text] = (), **fields: Any) -> ScoreResult:
        """Probabilities of labels (and continuations) after `query + item`; the fields are `ScoreRequest`'s."""
        return self.score_many([request_of(query=query, items=items, **fields)])[0]

    def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Several requests at once; those of like shape share the device's steps."""
        return self.engine.score(requests)

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        return self.engine.submit(request)

    def rank(
        self,
        query: Text,
        items: Sequence[Text],
        *,
        method: AskedMethod = "auto",
        top: int | None = None,
        **fields: Any,
    ) -> Ranking:
        """Items best first. With `labels` (or ids), by P(first label) after `query + item`, as given; without, by
        the model's own method and template: log P(query | item), or yes against no."""
        request, by = ask_ranking(self.model.ranker, method, query, items, top, fields)
        return ranking_of(by, items, self.score_many([request])[0], top)

    def prefill(self, query: Text, *, ttl_seconds: float = 300.0, pin: bool = False) -> ContextHandle:
        """Compute a query's context now and keep it; `score(context=handle.id)` uses it."""
        if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int | float) or not ttl_seconds > 0:
            raise RequestError(
                "invalid_ttl", f"ttl_seconds must be a number above 0; got {ttl_seconds!r}", "ttl_seconds"
            )
        return self.engine.prefill(query, ttl_seconds, pin)

    def release(self, handle: ContextHandle | str) -> None:
        self.engine.contexts.release(handle if isinstance(handle, str) else handle.id)

    def warm_up(self, shapes: Sequence[tuple[int, int, int]], progress: Progress = silent) -> None:
        """Compile what requests of these shapes (query tokens, items, tokens an item) will need, cold and cached."""
        for done, request in enumerate(warm_up_requests(self.engine, shapes)):
            for _ in ("cold", "cached"):
                self.engine.score([request])
            self.engine.runner.settle()  # what a larger program stood in for
            progress("warm-up", done + 1, len(shapes))
        self.engine.contexts.clear()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _dtype(name: Dtype) -> Any:
    """Auto is bfloat16 where the hardware multiplies it natively, float32 elsewhere."""
    if name not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"dtype must be auto, float32 or bfloat16; got {name!r}")
    if name == "auto":
        name = "bfloat16" if jax.default_backend() != "cpu" or _has_amx() else "float32"
    return jnp.dtype(name)


def _has_amx() -> bool:
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _persistent_cache(folder: Path | None) -> None:
    """Compiled programs outlive the process, so the next start is fast. A folder the user set in JAX is kept."""
    if folder is None and jax.config.jax_compilation_cache_dir is None:
        from platformdirs import user_cache_path

        folder = user_cache_path("onepass") / "xla"
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
