"""The HTTP application: `build_app` joins the routes, the layers around them and a `Service` into one ASGI app.

Nothing here knows JAX or processes; running it with uvicorn, signals and draining is `serve`.
"""

import logging
from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onepass.server import status as standing
from onepass.server.docs.assets import HEADERS as DOCS_HEADERS
from onepass.server.docs.openapi import openapi_document
from onepass.server.docs.page import DocsPage, origin_of
from onepass.server.endpoint import Endpoint, PageEndpoint
from onepass.server.engines.service import Service
from onepass.server.http.accept import HTML, accepts
from onepass.server.http.auth import Keys
from onepass.server.http.body_limits import BodyBudget, Limits
from onepass.server.http.errors import error_response
from onepass.server.http.middleware import AccessLogMiddleware, ErrorMiddleware, Json, fault_response
from onepass.server.http.request_context import exchange_of
from onepass.server.http.tracing import Spans
from onepass.server.logs import NAME
from onepass.server.metrics import CONTENT_TYPE, Metrics
from onepass.server.page.files import PageFiles
from onepass.server.routes.operation import Operation
from onepass.server.routes.pages import PAGES
from onepass.server.routes.table import OPERATIONS
from onepass.server.schema.completions import tokenizer_info


def build_app(
    service: Service,
    limits: Limits | None = None,
    keys: Mapping[str, str] | None = None,
    *,
    cors_origins: Sequence[str] = (),
    logger: logging.Logger | None = None,
    spans: bool = False,
) -> Starlette:
    """`auth` maps names to API keys; without any, everyone may ask."""
    limits = limits or Limits()
    checked = Keys(keys)
    logger = logger or logging.getLogger(NAME)
    metrics = Metrics(service)
    middleware = [
        Middleware(AccessLogMiddleware, metrics=metrics, logger=logger, spans=Spans() if spans else None),
        *_cors(cors_origins),
        Middleware(ErrorMiddleware, keys=checked, logger=logger),
    ]
    routes = [*_operation_routes(service, limits, logger), *_page_routes(service, limits, metrics, checked.required)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _routing_fault})
    app.router.redirect_slashes = False  # `AccessLogMiddleware` takes "/rerank/" for "/rerank"
    app.state.metrics = metrics
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    exposed = ["x-request-id", "retry-after"]
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=exposed,
        )
    ]


def _operation_routes(service: Service, limits: Limits, logger: logging.Logger) -> list[Route]:
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            by_path.setdefault(path, {})[operation.method] = operation
    room = BodyBudget(limits)
    return [Route(path, Endpoint(path, methods, service, limits, room, logger)) for path, methods in by_path.items()]


def _page_routes(service: Service, limits: Limits, metrics: Metrics, keys: bool) -> list[Route]:
    document = openapi_document(keys)
    docs_page = DocsPage(document)
    page_files = PageFiles()

    def index(request: Request) -> Response:
        if accepts(request.headers, HTML):
            return page_files.index(request)
        return Json(standing.index(), headers={"Vary": "Accept"})

    def docs(request: Request) -> Response:
        origin = origin_of(request.url.scheme, request.headers.get("host", ""))
        page = docs_page.render(standing.served_or_none(service), service.health(), origin)
        return HTMLResponse(page, headers=DOCS_HEADERS)

    def health(request: Request) -> Response:
        status, body, headers = standing.health(service.health())
        return Json(body, status, headers=headers)

    answers = {
        "index": index,
        "page_file": page_files.file,
        "health": health,
        "live": lambda request: Json({"status": "alive"}),
        "models": lambda request: Json(standing.models(service.served)),
        "model": lambda request: Json(standing.model(service.served, request.path_params["model_id"])),
        "info": lambda request: Json(standing.info(service, limits)),
        "tokenizer_info": lambda request: Json(tokenizer_info(service.served)),
        "metrics": lambda request: Response(metrics.render(), media_type=CONTENT_TYPE),
        "docs": docs,
        "openapi": lambda request: Json(document),
    }
    return [
        Route(_with_slashes(path), PageEndpoint(path, answers[page.name]))
        for page in PAGES
        for path in (page.path, *page.aliases)
    ]


def _with_slashes(path: str) -> str:
    """The name of a model and the path of a file may hold slashes."""
    return path.replace("{model_id}", "{model_id:path}").replace("{file}", "{file:path}")


async def _routing_fault(request: Request, error: Exception) -> Response:
    """Paths that are not there: raised by the router, and else answered by Starlette in plain text."""
    exchange = exchange_of(request.scope)
    fault = error_response(error, exchange.request_id)
    exchange.code = fault.code
    return fault_response(fault, exchange)
