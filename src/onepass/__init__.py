"""onepass scores many candidates against one context with a causal language model, in one pass.

The public names, loaded on first use: importing onepass brings in no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from onepass.api import (
    ChatOptions,
    ContextHandle,
    Continuation,
    Mode,
    Prompt,
    PromptPart,
    RankedItem,
    Ranking,
    ScoreRequest,
    ScoreResult,
    Timings,
    Usage,
)
from onepass.errors import (
    BadCheckpoint,
    CompilerFailed,
    ConfigError,
    ContextNotFound,
    DeadlineExceeded,
    DoesNotFit,
    DownloadFailed,
    EngineUnavailable,
    ModelError,
    ModelNotFound,
    OnepassError,
    Overloaded,
    RequestError,
    TooLong,
    Unserved,
    UnsupportedModel,
)
from onepass.version import VERSION as __version__

if TYPE_CHECKING:
    from onepass.client.aio import AsyncClient
    from onepass.client.blocking import Client
    from onepass.client.calls import Retries
    from onepass.decisions.questions import Question
    from onepass.decisions.result import DecisionAnswer, DecisionResult
    from onepass.engine.config import EngineConfig
    from onepass.scorer import Scorer

__all__ = [
    "AsyncClient",
    "BadCheckpoint",
    "ChatOptions",
    "Client",
    "CompilerFailed",
    "ConfigError",
    "ContextHandle",
    "ContextNotFound",
    "Continuation",
    "DeadlineExceeded",
    "DecisionAnswer",
    "DecisionResult",
    "DoesNotFit",
    "DownloadFailed",
    "EngineConfig",
    "EngineUnavailable",
    "Mode",
    "ModelError",
    "ModelNotFound",
    "OnepassError",
    "Overloaded",
    "Prompt",
    "PromptPart",
    "Question",
    "RankedItem",
    "Ranking",
    "RequestError",
    "Retries",
    "ScoreRequest",
    "ScoreResult",
    "Scorer",
    "Timings",
    "TooLong",
    "Unserved",
    "UnsupportedModel",
    "Usage",
    "__version__",
]


_LAZY = {
    "Scorer": "onepass.scorer",
    "EngineConfig": "onepass.engine.config",
    "Question": "onepass.decisions.questions",
    "DecisionAnswer": "onepass.decisions.result",
    "DecisionResult": "onepass.decisions.result",
    "Client": "onepass.client.blocking",
    "AsyncClient": "onepass.client.aio",
    "Retries": "onepass.client.calls",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'onepass' has no attribute {name!r}")
