"""Every error onepass raises, as one tree. Messages say what was wanted and what came.

OnepassError
├── RequestError              the caller's request is wrong; carries `code` and `param`   (HTTP 400)
│   ├── TooLong               the tokens do not fit the model or the engine's limits
│   └── DoesNotFit            the request needs more memory than there is
├── ContextNotFound           an unknown, released or expired context handle              (HTTP 404)
├── Unserved                  a sound request that is not answered now; carries `retry_after`
│   ├── Overloaded            more is waiting than may wait                               (HTTP 429)
│   ├── EngineUnavailable     no engine is ready, or it died with the request             (HTTP 503)
│   └── DeadlineExceeded      the caller's own time limit has passed                      (HTTP 504)
├── ModelError                a model cannot be had
│   ├── ModelNotFound         no such name, folder or file                                (HTTP 404)
│   ├── UnsupportedModel      an architecture or configuration onepass does not compute
│   ├── BadCheckpoint         files that contradict their configuration or are damaged
│   └── DownloadFailed        the package index or the hub did not give the file
├── CompilerFailed            the compiler for a device that is not here gave up          (onepass plan)
└── ConfigError               an option of the engine is wrong                            (start-up)

Mapping errors to HTTP status and exit codes is left to the server and the command line.
"""

__all__ = [
    "BadCheckpoint",
    "CompilerFailed",
    "ConfigError",
    "ContextNotFound",
    "DeadlineExceeded",
    "DoesNotFit",
    "DownloadFailed",
    "EngineUnavailable",
    "ModelError",
    "ModelNotFound",
    "OnepassError",
    "Overloaded",
    "RequestError",
    "TooLong",
    "Unserved",
    "UnsupportedModel",
]


class OnepassError(Exception):
    """The root: catch this to catch everything onepass raises on purpose."""


class RequestError(OnepassError):
    """A request that cannot mean anything. `code` is stable, `param` names the field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class TooLong(RequestError):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__("too_long", message, param)


class DoesNotFit(RequestError):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__("does_not_fit", message, param)


class ContextNotFound(OnepassError):
    code = "context_not_found"


class Unserved(OnepassError):
    """Nothing is wrong with the request; `retry_after` is in seconds, None where trying again is no remedy."""

    code = "unserved"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(Unserved):
    code = "overloaded"


class EngineUnavailable(Unserved):
    def __init__(self, message: str, retry_after: float | None = 1.0, code: str = "engine_unavailable") -> None:
        super().__init__(message, retry_after)
        self.code = code


class DeadlineExceeded(Unserved):
    code = "deadline_exceeded"


class ModelError(OnepassError):
    """A model that cannot be loaded."""


class ModelNotFound(ModelError):
    code = "model_not_found"


class UnsupportedModel(ModelError):
    pass


class BadCheckpoint(ModelError):
    pass


class DownloadFailed(ModelError):
    pass


class CompilerFailed(OnepassError):
    """A program was not compiled, for a reason that is neither the caller's nor its size."""


class ConfigError(OnepassError):
    """An engine option out of range or in conflict with another."""


MAX_SHOWN_CHARS = 200
MAX_SHOWN_ENTRIES = 8


def shown(value: object) -> str:
    """A value for a message, shortened, in the words of JSON: a caller of the HTTP API must not need to know Python."""
    text = _in_json_words(value, depth=2)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _in_json_words(value: object, depth: int) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value[: MAX_SHOWN_CHARS + 1])
    if isinstance(value, list | tuple):
        entries = [_in_json_words(entry, depth - 1) for entry in value[:MAX_SHOWN_ENTRIES]] if depth else []
        return f"[{', '.join([*entries, *['…'] * (len(value) > len(entries))])}]"
    if isinstance(value, dict):
        first = list(value.items())[:MAX_SHOWN_ENTRIES] if depth else []
        members = [f"{_in_json_words(name, depth)}: {_in_json_words(entry, depth - 1)}" for name, entry in first]
        return f"{{{', '.join([*members, *['…'] * (len(value) > len(first))])}}}"
    return repr(value)
