"""What the clients send and what they make of the answers, without sending anything: shared by `blocking` and `aio`.

A `Call` is one HTTP exchange; `Retries` says which failures are worth another try, and when. Scoring changes nothing on
the server, so a request may be sent again even when its answer was lost.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from onepass.api import (
    ChatOptions,
    ContextHandle,
    Continuation,
    Prompt,
    PromptPart,
    ScoreRequest,
    ScoreResult,
    Timings,
    Usage,
)
from onepass.errors import (
    ContextNotFound,
    DeadlineExceeded,
    DoesNotFit,
    EngineUnavailable,
    ModelNotFound,
    OnepassError,
    Overloaded,
    RequestError,
    TooLong,
    Unserved,
)
from onepass.loading.rerankers.templates import Ranker, ranker_from_dict
from onepass.trace import Trace


@dataclass(frozen=True)
class Call[T]:
    """A request and how to read its answer."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: dict[str, Any] | None = None


@dataclass(frozen=True)
class Retries:
    """At most `tries` in all; between them what the server asked for (Retry-After), else doubling from `first_wait`."""

    tries: int = 5
    first_wait: float = 0.25
    longest_wait: float = 30.0

    def wait(self, error: Exception, tried: int) -> float | None:
        """Seconds to wait before the next try, or None: this error is the answer."""
        if tried >= self.tries or not isinstance(error, Overloaded | EngineUnavailable):
            return None
        wanted = error.retry_after if error.retry_after is not None else self.first_wait * 2 ** (tried - 1)
        if wanted > self.longest_wait:
            return None
        return wanted + random.uniform(0.0, 0.1 * wanted)  # so that clients do not come back all at once


def score_call(request: ScoreRequest, model: str | None) -> Call[ScoreResult]:
    plain = ScoreRequest()
    body = {
        ("context_id" if name == "context" else name): _plain(value)
        for name, value in vars(request).items()
        if name != "chat" and (name == "items" or value != getattr(plain, name))
    }
    body |= {} if request.chat is None else request.chat.to_fields()
    if not request.apply_softmax or request.label_mass:
        body["return_token_logprobs"] = True
    body["return_logits"] = True
    return Call("POST", "/v1/score", lambda told: _result(request, told), body | _named(model))


def prefill_call(
    query: Any,
    ttl_seconds: float,
    pin: bool,
    model: str | None,
    messages: Any = None,
    chat: ChatOptions | None = None,
) -> Call[ContextHandle]:
    body = {"query": _plain(query), "ttl_seconds": ttl_seconds, "pin": pin} | _named(model)
    if messages is not None:
        body |= {"messages": _plain(messages)} | ({} if chat is None else chat.to_fields())
    return Call("POST", "/v1/contexts", _context, body)


def release_call(context: ContextHandle | str) -> Call[None]:
    return Call("DELETE", f"/v1/contexts/{context if isinstance(context, str) else context.id}", lambda told: None)


def info_call() -> Call[dict[str, Any]]:
    return Call("GET", "/info", lambda told: told)


def health_call() -> Call[dict[str, Any]]:
    return Call("GET", "/health", lambda told: told)


def ranker_of(info: Mapping[str, Any]) -> Ranker:
    """How the served model is asked to rank, from /info."""
    return ranker_from_dict(info["details"]["ranker"])


def error_of(status: int, headers: Mapping[str, str], told: Any) -> Exception:
    """The server's error as the one that `Scorer` would raise."""
    error = told.get("error") if isinstance(told, dict) else None
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or f"the server answered with status {status}")
    code, param = str(error.get("code") or "error"), error.get("param")
    kinds: dict[str, type[RequestError]] = {"too_long": TooLong, "does_not_fit": DoesNotFit}
    if code in kinds:
        return kinds[code](message, param)  # type: ignore[arg-type]
    after = _seconds(headers.get("retry-after"))
    if status == 404 and code in ("context_not_found", "model_not_found"):
        return ContextNotFound(message) if code == "context_not_found" else ModelNotFound(message)
    if status == 429:
        return Overloaded(message, after)
    if status == 503:
        return EngineUnavailable(message, after, code)
    if status == 504:
        return DeadlineExceeded(message)
    return RequestError(code, message, param) if 400 <= status < 500 else OnepassError(message)


def unreachable(url: str, error: Exception) -> Unserved:
    return EngineUnavailable(f"no server answers at {url}: {error}", None, "unreachable")


def _result(request: ScoreRequest, told: dict[str, Any]) -> ScoreResult:
    usage, timings = told["usage"], told["timings"]
    details = usage["prompt_tokens_details"]
    continuations = told.get("continuations")
    count = len(told["scores"])
    return ScoreResult(
        scores=told["scores"],
        logprobs=told["token_logprobs"],
        logits=told.get("logits") or [[] for _ in range(count)],
        label_mass=told["label_mass"],
        labels=_label_names(request, count),
        label_token_ids=[list(map(int, ids)) for ids in _label_ids(request, count)],
        usage=Usage(usage["prompt_tokens"], details["cached_tokens"], details.get("computed_tokens")),
        timings=Timings(**{field.name: timings.get(field.name) for field in fields(Timings)}),
        mode=told["mode"],
        reason=told["reason"],
        model=told["model"],
        continuations=continuations
        and [
            [Continuation(c["logprob"], tuple(c["token_logprobs"]), c.get("is_greedy", False)) for c in row]
            for row in continuations
        ],
        items=request.items,
        prompt=told.get("prompt") and _prompt(told["prompt"]),
        trace=told.get("trace") and Trace.from_dict(told["trace"]),
    )


def _prompt(told: dict[str, Any]) -> Prompt:
    def part(fields: dict[str, Any]) -> PromptPart:
        return PromptPart(fields["text"], tuple(fields["token_ids"]))

    texts = [tuple(map(part, item["continuations"])) for item in told["items"] if "continuations" in item]
    return Prompt(part(told["shared"]), tuple(map(part, told["items"])), tuple(texts))


def _label_ids(request: ScoreRequest, count: int) -> list[Any]:
    ids: Any = request.label_token_ids
    if ids is None or not len(ids):
        return [[] for _ in range(count)]
    return [ids] * count if isinstance(ids[0], int) or not hasattr(ids[0], "__len__") else list(ids)


def _label_names(request: ScoreRequest, count: int) -> list[list[str]]:
    if request.labels is not None:
        return [list(request.labels)] * count
    return [[f"<{token}>" for token in ids] for ids in _label_ids(request, count)]


def _context(told: dict[str, Any]) -> ContextHandle:
    return ContextHandle(told["id"], told["tokens"], told["bytes"], told["expires_at"], told["pinned"])


def _named(model: str | None) -> dict[str, Any]:
    return {} if model is None else {"model": model}


def _plain(value: Any) -> Any:
    """Tuples and arrays as the lists that JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None
