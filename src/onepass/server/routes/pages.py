"""Pages: what is read with GET and asks nothing of the engine, from health to metrics."""

from dataclasses import dataclass

from onepass.server import status as standing
from onepass.server.schema import completions
from onepass.server.schema.fields import Schema


@dataclass(frozen=True)
class Page:
    """What is read with GET and asks nothing of the engine. `errors` are the statuses besides those of all paths."""

    path: str
    name: str
    summary: str
    answer: Schema | None = None  # None: not JSON
    aliases: tuple[str, ...] = ()  # other paths to the same, as other servers call it
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()
    html: bool = False  # also as a page for people, to clients that accept text/html


PAGES = (
    Page(
        "/",
        "index",
        "The page for people, to clients that accept HTML; to others, where to look",
        standing.INDEX,
        html=True,
    ),
    Page("/page/{file}", "page_file", "Scripts and styles of the page", media_type="text/javascript", errors=(404,)),
    Page(
        "/health",
        "health",
        "200 only when a request would be served (readiness)",
        standing.HEALTH,
        aliases=("/ready", "/readyz"),
        errors=(503,),
    ),
    Page(
        "/live",
        "live",
        "200 as long as the process answers (liveness)",
        standing.ALIVE,
        aliases=("/healthz", "/livez"),
    ),
    Page("/v1/models", "models", "The served model, under each of its names", standing.MODELS, errors=(503,)),
    Page("/v1/models/{model_id}", "model", "The served model by its name", standing.MODEL, errors=(404, 503)),
    Page("/info", "info", "The whole configuration", standing.INFO),
    Page(
        "/tokenizer_info",
        "tokenizer_info",
        "The tokenizer's special tokens and chat template, as vLLM answers it",
        completions.TOKENIZER_INFO,
        errors=(400, 503),
    ),
    Page("/metrics", "metrics", "Prometheus metrics", None, media_type="text/plain"),
    Page("/docs", "docs", "This API for people", None, media_type="text/html"),
    Page("/openapi.json", "openapi", "This API for programs", {"type": "object"}),
)
