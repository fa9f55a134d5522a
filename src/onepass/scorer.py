"""`Scorer`: the public face of the engine in one process. Load a model, score, rank, keep contexts.

scorer = Scorer.load("smollm2-135m")
scorer.score(query="…", items=["…", "…"], labels=[" yes", " no"])
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp

from onepass.api import Ranking, ScoreRequest, ScoreResult, Text
from onepass.attention.base import Attention
from onepass.attention.registry import attentions
from onepass.engine.config import EngineConfig, describe_device, for_device
from onepass.engine.contexts import ContextHandle
from onepass.engine.engine import Engine, warm_up_requests
from onepass.engine.ranking import AskedMethod, ask_ranking, ranking_of
from onepass.engine.replicas import Replicas
from onepass.engine.request import request_of
from onepass.engine.runner import Runner
from onepass.errors import ConfigError, RequestError
from onepass.loading.checkpoint import Progress, silent
from onepass.loading.model import Model, open_model
from onepass.loading.source import SourceOptions
from onepass.loading.templates import ranker_from_file
from onepass.loading.tokenizer import TextTokenizer
from onepass.models.config import ModelConfig
from onepass.models.layout import Layout, mesh_of, share_of
from onepass.models.weights import Weights
from onepass.parallel.arrange import Arrangement, Machine, arrange
from onepass.parallel.meshes import replica_meshes
from onepass.version import VERSION

if TYPE_CHECKING:  # several hosts need what only the server's installation brings
    from onepass.engine.leading import Followers
    from onepass.parallel.hosts import Hosts

log = logging.getLogger("onepass")

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
        arrangement: Arrangement | None = None,
        followers: "Followers | None" = None,
    ) -> None:
        """`implementations` replaces the attention by name, as the negative controls of `validate` do. `arrangement`
        says why the weights lie as they do; `followers` are the other processes that they lie in."""
        config, mesh = config or EngineConfig(), mesh_of(weights)
        tp, dp = 1 if mesh is None else mesh.size, config.dp or 1
        device = describe_device(tp * dp)
        share = Layout(model.config, mesh).share
        sixteen_bit = weights.embed.dtype.itemsize == 2
        decided = for_device(replace(config, tp=tp), device, sixteen_bit, share.head_dim)
        assert decided.dense is not None
        assert decided.band is not None
        assert decided.attention is not None
        self.model = model
        self.weights = weights
        self.arrangement = arrangement or Arrangement(tp, dp, "as the weights lie")
        chosen = implementations or attentions(
            decided.dense, decided.band, decided.attention, device.multiprocessors, share.group
        )
        self.engines = [Engine(model, weights, decided, device, chosen, mesh, followers)]
        for other in replica_meshes(jax.devices(), tp, dp)[1:]:
            copy = Layout(model.config, other).placed(weights)
            self.engines.append(Engine(model, copy, decided, device, chosen, other))
        self.engine: Engine | Replicas = self.engines[0] if dp == 1 else Replicas(self.engines)

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
        hosts: "Hosts | None" = None,
        **options: Any,
    ) -> "Scorer":
        """`model` is a bundled name, a folder, a GGUF file, a hub name or `random:` with a known configuration.
        `template` is a TOML file with the words to rank by (`loading.templates.ranker_from_file`). `options` are the
        engine's (`engine.config.EngineConfig`). Of these `tp` is how many devices share the model and `dp` how many
        times it is there; None decides by what fits (`parallel.arrange`). With `hosts` the model spans the devices of
        several processes: this one is the first of them, and the others call `follow` with the same arguments."""
        config = EngineConfig.from_options(options)
        source = SourceOptions(revision, offline, cache_dir, progress=progress)
        loaded = _load(model, dtype, source, config, hosts)
        if template is not None:
            loaded = replace(loaded, model=replace(loaded.model, ranker=ranker_from_file(template)))
        followers = None
        if hosts is not None:
            from onepass.engine.leading import Followers

            followers = Followers(hosts.lines(loaded.told()))
        scorer = cls(loaded.model, loaded.weights, loaded.config, None, loaded.arrangement, followers)
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

        def run(engine: Engine, request: ScoreRequest) -> None:
            for _ in ("cold", "cached"):
                engine.score([request])
            engine.runner.settle()  # what a larger program stood in for

        with ThreadPoolExecutor(len(self.engines), "onepass-warm-up") as pool:
            for done, request in enumerate(warm_up_requests(self.engines[0], shapes)):
                list(pool.map(run, self.engines, [request] * len(self.engines)))
                progress("warm-up", done + 1, len(shapes))
        self.engine.contexts.clear()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class _Loaded:
    """A model on its devices, and what was decided for it."""

    model: Model
    weights: Weights
    config: EngineConfig
    arrangement: Arrangement

    def told(self) -> dict[str, object]:
        """What processes that share the model must agree on."""
        return {
            "onepass": VERSION,
            "jax": jax.__version__,
            "model": str(self.model.config),
            "dtype": str(self.weights.embed.dtype),
            "kernels": [self.config.dense, self.config.band, self.config.attention],
            "arrangement": [self.arrangement.tp, self.arrangement.dp],
        }


def _load(model: str, dtype: Dtype, source: SourceOptions, config: EngineConfig, hosts: "Hosts | None") -> _Loaded:
    chosen = _dtype_name(dtype)
    if hosts is not None:
        hosts.join()
    opened = open_model(model, source)
    _persistent_cache(config.compile_cache)
    kind = _dtype(chosen)
    arrangement = _arranged(config, opened.config, kind, hosts)
    log.info("%s: %s", opened.name, arrangement)
    tp, dp = arrangement.tp, arrangement.dp
    mesh = None if tp == 1 else replica_meshes(jax.devices(), tp, dp)[0]
    weights = opened.load(kind, source.progress, mesh)
    return _Loaded(opened, weights, replace(config, tp=tp, dp=dp), arrangement)


def follow(
    model: str,
    hosts: "Hosts",
    *,
    dtype: Dtype = "auto",
    revision: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    progress: Progress = silent,
    **options: Any,
) -> None:
    """The part of every process but the first: computes what process 0 says, until that closes its scorer."""
    from onepass.engine.following import Follower

    config = EngineConfig.from_options(options)
    loaded = _load(model, dtype, SourceOptions(revision, offline, cache_dir, progress=progress), config, hosts)
    mesh = mesh_of(loaded.weights)
    device, share = describe_device(), Layout(loaded.model.config, mesh).share
    decided = for_device(loaded.config, device, loaded.weights.embed.dtype.itemsize == 2, share.head_dim)
    assert decided.dense is not None
    assert decided.band is not None
    assert decided.attention is not None
    chosen = attentions(decided.dense, decided.band, decided.attention, device.multiprocessors, share.group)
    (line,) = hosts.lines(loaded.told())
    runner = Runner(loaded.model.config, loaded.weights, chosen, background=True, mesh=mesh)
    follower = Follower(runner, line)
    follower.follow()
    runner.close()
    hosts.leave()
    follower.leave()


def _arranged(config: EngineConfig, model: ModelConfig, dtype: Any, hosts: "Hosts | None") -> Arrangement:
    """Over the devices that are here, by what one of them would hold; over those of all hosts if there are several."""
    device, count = describe_device(), len(jax.devices())
    if hosts is not None:
        if config.tp not in (None, count) or config.dp not in (None, 1):
            raise ConfigError(
                f"{hosts.processes} processes with {count} devices in all run tp={count} and dp=1; "
                f"got tp={config.tp} and dp={config.dp}"
            )
        return Arrangement(count, 1, f"one model over the devices of {hosts.processes} processes")
    machine = Machine(count, config.memory_bytes or device.memory_bytes, device.platform != "cpu")

    def weight_bytes(tp: int) -> int:
        parameters: int = share_of(model, tp).num_parameters
        return parameters * dtype.itemsize

    return arrange(config.tp, config.dp, machine, weight_bytes)


def _dtype_name(name: Dtype) -> Dtype:
    if name not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"dtype must be auto, float32 or bfloat16; got {name!r}")
    return name


def _dtype(name: Dtype) -> Any:
    """Auto is bfloat16 where the hardware multiplies it natively, float32 elsewhere."""
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
