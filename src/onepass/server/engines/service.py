"""What the HTTP application asks of the engines behind it: `Service`, and the nouns that pass through it.

The application codes against this alone, so it needs no JAX. Running engines in processes of their own, admitting
requests and restarting what died is the work of those who implement it.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from onepass.api import ContextHandle, ScoreRequest, ScoreResult, Text
from onepass.decisions.calibration import Calibration
from onepass.decisions.decider import Decider
from onepass.engine.encoding.chat import ChatContext
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.readouts import ClassHead
from onepass.loading.rerankers.templates import Ranker
from onepass.loading.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Caller:
    """On whose behalf a request runs, and how urgently."""

    key: str = ""  # name of the API key; "" when no keys are configured
    priority: int = 0  # lower goes first among requests of the same key
    deadline: float | None = None  # time.monotonic() after which the answer is worthless
    request_id: str = ""


@dataclass(frozen=True)
class Served:
    """What the engine told about itself when it became ready."""

    model: str  # its name; requests may also say "default" or leave `model` out
    tokenizer: TextTokenizer | None  # None: token ids only
    vocab_size: int
    max_position: int
    ranker: Ranker
    created: int  # unix seconds
    details: dict[str, Any]  # for /info: model config, resolved engine config, device, versions
    chat: ChatTemplates = field(default_factory=ChatTemplates)
    class_head: ClassHead | None = None
    aliases: tuple[str, ...] = ()  # more names that requests may give
    calibration: Calibration | None = None  # of decisions

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model, *self.aliases)

    @cached_property
    def decider(self) -> Decider:
        return Decider(self.tokenizer, self.chat, self.calibration, self.max_position)


@dataclass(frozen=True)
class Health:
    ready: bool
    state: str  # "starting" | "loading" | "warming up" | "ready" | "restarting" | "failed" | "draining"
    reason: str  # a sentence for people
    progress: dict[str, Any]  # {"stage": "weights", "done": 3, "of": 30}, may be empty
    restarts: int


@dataclass(frozen=True)
class Part:
    """What a stream yields as steps finish."""

    first: int  # index of the part's first item
    scores: list[list[float]]
    logprobs: list[list[float]] | None


@dataclass(frozen=True)
class ModesOptions:
    """How a request is run in every mode: timed runs of each, and items per copy of the context in mode chunked."""

    repeats: int
    chunk_size: int | None = None


class Service(Protocol):
    """Cancelling the task that awaits cancels the work. `score` raises RequestError, ContextNotFound, Overloaded,
    EngineUnavailable or DeadlineExceeded; every mistake in a request is raised there, before it runs."""

    def health(self) -> Health: ...

    @property
    def served(self) -> Served:
        """Raises EngineUnavailable until an engine has been ready once."""
        ...

    def check_room(self, caller: Caller) -> None:
        """Raises Overloaded or EngineUnavailable when a request would be refused whatever its body holds."""
        ...

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult: ...

    def stream(self, request: ScoreRequest, caller: Caller) -> AsyncIterator[Part | ScoreResult]:
        """Parts as they are ready, then the whole result last."""
        ...

    async def run_modes(self, request: ScoreRequest, options: ModesOptions, caller: Caller) -> dict[str, Any]:
        """The request in every mode, as JSON (`schema.scoring.modes`); RequestError where the server does not do it."""
        ...

    async def with_tokenizer[T](self, work: Callable[[Served], T], size: int, caller: Caller) -> T:
        """`work` on a thread, with what is served: its tokenizer stops between pieces of text when the caller is gone
        or the caller's time is over. `size`: characters of text."""
        ...

    async def open_context(
        self, query: Text | ChatContext, ttl_seconds: float, pin: bool, caller: Caller
    ) -> ContextHandle: ...

    async def find_context(self, context_id: str) -> ContextHandle: ...

    async def close_context(self, context_id: str) -> None: ...

    def stats(self) -> dict[str, float]:
        """Counters and gauges of the engines, for /metrics."""
        ...
