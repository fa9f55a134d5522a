"""`Scorer`: the public face of the engine in one process. Load a model, score, rank, keep contexts.

scorer = Scorer.load("smollm2-135m")
scorer.score(query="…", items=["…", "…"], labels=[" yes", " no"])
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onepass.api import (
    ChatOptions,
    ContextHandle,
    Continuations,
    Mode,
    Ranking,
    ScoreRequest,
    ScoreResult,
    Text,
    context_id,
)
from onepass.attention.base import Attention
from onepass.decisions.calibration_store import chosen_calibration, find_calibration
from onepass.decisions.decider import Decider
from onepass.decisions.question_format import candidates_of, questions_of
from onepass.decisions.questions import DecisionRequest
from onepass.decisions.result import DecisionResult
from onepass.engine.config import EngineConfig, EngineOptions
from onepass.engine.encoding.chat import kept_query
from onepass.engine.engine import Engine
from onepass.engine.load import Dtype, load_model
from onepass.engine.pairs import PairRequests
from onepass.engine.programs.compiled import CompiledProgram
from onepass.engine.ranking import (
    AskedMethod,
    RankRequest,
    chosen_method,
    one_of,
    ranking_of,
    score_request,
)
from onepass.engine.replicas import Replicas
from onepass.engine.start import start_engines
from onepass.errors import ConfigError, OnepassError, RequestError
from onepass.loading.model import Model
from onepass.loading.progress import shown_progress
from onepass.loading.rerankers.templates import Ranker, ranker_from_file
from onepass.loading.source import SourceOptions
from onepass.loading.tensor_reader import Progress, silent
from onepass.loading.tokenizer import TextTokenizer
from onepass.models.weights import Weights
from onepass.parallel.placement import Placement

if TYPE_CHECKING:  # several hosts need what only the server's installation brings
    from onepass.engine.multihost.leader import FollowerSet
    from onepass.parallel.hosts import Hosts

DEFAULT_MODEL = "smollm2-135m"


class Scorer:
    """Thread-safe: requests from any number of threads share the device's steps."""

    def __init__(
        self,
        model: Model,
        weights: Weights,
        config: EngineConfig | None = None,
        attention: Attention | None = None,
        arrangement: Placement | None = None,
        followers: "FollowerSet | None" = None,
    ) -> None:
        """`attention` takes the place of the device's own, as the negative controls of `validate` do. `arrangement`
        says why the weights lie as they do; `followers` are the other processes that they lie in."""
        started = start_engines(model, weights, config or EngineConfig(), attention, followers)
        self.model = model
        self.decider = Decider(model.tokenizer, model.chat, max_tokens=model.config.max_position)
        self.weights = weights
        self.arrangement = arrangement or Placement(started.tp, len(started.engines), "as the weights lie")
        self.kernels = started.kernels
        self.engines = started.engines
        self.engine: Engine | Replicas = started.front

    @classmethod
    def load(
        cls,
        model: str | Model = DEFAULT_MODEL,
        *,
        dtype: Dtype = "auto",
        revision: str | None = None,
        offline: bool = False,
        cache_dir: Path | None = None,
        adapter: Path | str | None = None,
        template: Path | None = None,
        rank_by: AskedMethod = "auto",
        calibration: Path | str = "auto",
        progress: Progress | None = None,
        hosts: "Hosts | None" = None,
        **options: Unpack[EngineOptions],
    ) -> "Scorer":
        """`model` is a bundled name, a folder, a GGUF file, a hub name or `random:` with a known configuration (or what
        `loading.model.open_model` made of such a name). `progress` None shows bars on a terminal and in a notebook.
        `adapter` is a LoRA adapter in PEFT's format, a folder or a hub name, merged into the weights.
        `template` is a TOML file with the words to rank by (`loading.rerankers.templates.ranker_from_file`); `rank_by`
        insists on a method for requests that name none. `calibration` of decisions is "auto" (what `onepass calibrate`
        stored, else the model's own), "none" or a file. `options` are the engine's (`engine.config.EngineConfig`). Of
        these `tp` is how many devices share the model and `dp` how many times it is there; None decides by what fits
        (`parallel.placement`). With `hosts` the model spans the devices of several processes: this one is the first of
        them, and the others call `engine.multihost.follower.follow` alike."""
        config = EngineConfig.from_options(dict(options))
        ranker = None if template is None else ranker_from_file(template)
        chosen = None if calibration == "auto" else chosen_calibration(calibration)
        merged = None if adapter is None else str(adapter)
        if merged is not None and isinstance(model, Model) and model.adapter is None:
            raise ConfigError("the model was opened without the adapter; give its name, or open it with the adapter")
        with shown_progress() if progress is None else nullcontext(progress) as show:
            scorer = cls._load(
                model,
                dtype,
                SourceOptions(revision, offline, cache_dir, progress=show, adapter=merged),
                config,
                ranker,
                hosts,
            )
        if rank_by != "auto":
            insisted = replace(scorer.model.ranker, method=chosen_method(scorer.model.ranker, rank_by), problem="")
            scorer.model = replace(scorer.model, ranker=insisted)
        opened = scorer.model
        scorer.decider.calibration = (
            # A model's own calibration is not that of the model with an adapter.
            find_calibration(opened.name, None if opened.adapter else opened.source.path)
            if calibration == "auto"
            else chosen
        )
        return scorer

    @classmethod
    def _load(
        cls,
        model: str | Model,
        dtype: Dtype,
        source: SourceOptions,
        config: EngineConfig,
        ranker: Ranker | None,
        hosts: "Hosts | None",
    ) -> "Scorer":
        loaded = load_model(model, dtype, source, config, hosts)
        opened = loaded.model if ranker is None else replace(loaded.model, ranker=ranker)
        followers = None
        if hosts is not None:
            from onepass.engine.multihost.leader import FollowerSet

            followers = FollowerSet(hosts.lines(loaded.fingerprint()))
        scorer = cls(opened, loaded.weights, loaded.config, None, loaded.arrangement, followers)
        if config.warm_up:
            scorer.compile(source.progress)
        return scorer

    @property
    def tokenizer(self) -> TextTokenizer:
        if self.model.tokenizer is None:
            raise RequestError("no_tokenizer", f"{self.model.name} has no tokenizer: it takes token ids only")
        return self.model.tokenizer

    def score(
        self,
        query: Text | None = None,
        items: Text | Sequence[Text] = (),
        labels: Sequence[str] | None = None,
        *,
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        continuations: Continuations | None = None,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        item_first: bool = False,
        delimiter_token_id: int | None = None,
        mode: Mode = "auto",
        context: ContextHandle | str | None = None,
        label_mass: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
        add_special_tokens: bool = True,
        return_prompt: bool = False,
        return_trace: bool = False,
    ) -> ScoreResult:
        """P(label | query + item) for every item, and log P(continuation | query + item).

        `labels` are strings of one token each, `label_token_ids` their ids (a list per item gives each its own);
        `continuations` are texts of any length (a list per item: each its own). `apply_softmax` makes scores sum to 1
        over the labels; without, they are probabilities over the whole vocabulary. `item_first` puts each item before
        the query. `context` is what `prefill` returned, in place of `query`; so are `messages`, which the model's chat
        template renders as `chat` says. `return_prompt` adds what the model was given, `return_trace` the steps
        that computed it. `mode` is how the work is done, never what comes out."""
        request = ScoreRequest(
            query=query,
            items=items,
            labels=labels,
            label_token_ids=label_token_ids,
            continuations=continuations,
            apply_softmax=apply_softmax,
            temperature=temperature,
            item_first=item_first,
            delimiter_token_id=delimiter_token_id,
            mode=mode,
            context=context_id(context),
            label_mass=label_mass,
            messages=messages,
            chat=chat,
            add_special_tokens=add_special_tokens,
            return_prompt=return_prompt,
            return_trace=return_trace,
        )
        return self.score_many([request])[0]

    def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Several requests at once; they share the device's steps."""
        return self.engine.score(requests)

    def submit(self, request: ScoreRequest) -> "Future[ScoreResult]":
        return self.engine.submit(request)

    def rank(
        self,
        query: Text | None = None,
        items: Sequence[Text] | None = None,
        *,
        documents: Sequence[Text] | None = None,
        method: AskedMethod = "auto",
        top: int | None = None,
        instruction: str | None = None,
        return_documents: bool = True,
        labels: Sequence[str] | None = None,
        label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        apply_softmax: bool | None = None,
        temperature: float = 1.0,
        item_first: bool = False,
        delimiter_token_id: int | None = None,
        mode: Mode = "auto",
        label_mass: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
        return_prompt: bool = False,
    ) -> Ranking:
        """Items (or `documents`) best first. With `labels` (or ids), by P(first label) after `query + item`, as given;
        without, by the model's own method and template: log P(query | item), or yes against no. `messages` take the
        place of the query: a whole prompt, rendered by the model's chat template, with the item where a message has
        {item}; what is read are `labels`, the read-out of a reranker or a reward model, or "yes" against "no". `top`
        keeps the best; `instruction` takes the place of the template's own, where it has one; without
        `return_documents` the ranking has indices and scores only; `return_prompt` puts the prompt into `result`."""
        call = RankRequest(
            query=query,
            items=one_of(items, documents),
            method=method,
            top=top,
            instruction=instruction,
            return_documents=return_documents,
            labels=labels,
            label_token_ids=label_token_ids,
            apply_softmax=apply_softmax,
            temperature=temperature,
            item_first=item_first,
            delimiter_token_id=delimiter_token_id,
            mode=mode,
            label_mass=label_mass,
            messages=messages,
            chat=chat,
            return_prompt=return_prompt,
        )
        request, by = score_request(self.model.ranker, call)
        return ranking_of(by, call, self.score_many([request])[0])

    def decide(
        self,
        state: Any,
        questions: Mapping[str, Any] | Sequence[Any],
        *,
        candidates: Sequence[str] | None = None,
        permutations: int = 1,
        calibrated: bool = True,
        mode: Mode = "auto",
    ) -> DecisionResult:
        """Typed questions about `state` (a text, messages or JSON), all in one pass: `Question`s or the same as plain
        data, in a list or under their names. With `candidates` every question is asked about each of them.
        `permutations` averages over rotations of the options at the cost of as many more reads; `calibrated=False`
        leaves the model's own probabilities."""
        request = DecisionRequest(
            state=state,
            questions=questions_of(questions),
            candidates=candidates_of(candidates),
            permutations=permutations,
            calibrated=calibrated,
            mode=mode,
        )
        plan = self.decider.plan(request)
        return plan.result(self.score_many([plan.score_request])[0])

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | Sequence[Sequence[str]],
        *,
        instruction: str | None = None,
        raw: bool = False,
    ) -> list[float]:
        """A score for each (query, document), as a cross-encoder gives it: by the model's own template and read-out;
        `raw` leaves out the activation. Documents of the same query share its context."""
        call = PairRequests(self.model.ranker, pairs, instruction)
        return call.scores(self.score_many(call.requests), raw)

    def prefill(
        self,
        query: Text | None = None,
        *,
        ttl_seconds: float = 300.0,
        pin: bool = False,
        messages: Sequence[Mapping[str, Any]] | None = None,
        chat: ChatOptions | None = None,
    ) -> ContextHandle:
        """Compute a query's context now and keep it; `score(context=handle.id)` uses it. Of `messages` the part that
        all items share is kept: `score(messages=...)` finds it; with the handle, an item brings all that follows."""
        if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int | float) or not ttl_seconds > 0:
            raise RequestError(
                "invalid_ttl", f"ttl_seconds must be a number above 0; got {ttl_seconds!r}", "ttl_seconds"
            )
        return self.engine.prefill(kept_query(query, messages, chat), ttl_seconds, pin)

    def release(self, handle: ContextHandle | str) -> None:
        self.engine.contexts.release(handle if isinstance(handle, str) else handle.id)

    def compile(self, progress: Progress = silent) -> list[CompiledProgram]:
        """Every program that any request can need, compiled or read from disk: after this nothing is ever compiled."""
        return self.engine.runner.compile_all(progress)

    def close(self) -> None:
        self.engine.close()

    def __repr__(self) -> str:
        dtype, platform = self.weights.embed.dtype, self.engines[0].device.platform
        return f"<Scorer {self.model.name}, {dtype}, on {platform}>"

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """An interrupt ends what is waiting; otherwise closing finishes it."""
        if kind is not None and not issubclass(kind, Exception):
            self.engine.abort(OnepassError("the scorer was interrupted"))
        self.close()
