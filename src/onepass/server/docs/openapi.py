"""The OpenAPI 3.1 document, made from the table of routes and the schemas that stand next to each dialect's parser.

Pure data: it is the same for every model, and is built once.
"""

from typing import Any

from onepass.server.http.auth import OPEN_PATHS, PAGE_FILES
from onepass.server.http.errors import TYPES
from onepass.server.routes.operation import Operation
from onepass.server.routes.pages import PAGES, Page
from onepass.server.routes.ranking import RERANK_PATHS
from onepass.server.routes.table import OPERATIONS
from onepass.server.schema.fields import COUNT, TEXT, Schema, answer_schema
from onepass.server.schema.scoring.score_answer import PART
from onepass.version import VERSION

MEANINGS = {
    400: "The request is wrong; `error.code` says how and `error.param` where.",
    401: "An API key is required.",
    404: "There is no such model, context or path.",
    408: "The body was too slow.",
    413: "The body is too large; the message says the limit.",
    415: "The body is not JSON, or in an encoding that is not taken.",
    422: "The body is wrong, in System One's dialect; `detail` says where.",
    429: "Too much is waiting; `Retry-After` says when to try again.",
    500: "An error inside the server; the message has the request's id.",
    503: "No engine is ready, or the server is shutting down; `Retry-After` says when to try again.",
    504: "The time limit in X-Request-Timeout-Ms has passed.",
}
OPTIONAL_TEXT: Schema = {"type": ["string", "null"]}
ERROR: Schema = answer_schema(
    "Error",
    {
        "error": answer_schema(
            "ErrorDetail", {"message": TEXT, "type": {"enum": [*TYPES.values()]}, "param": OPTIONAL_TEXT, "code": TEXT}
        ),
        "object": {"const": "error"},
        "message": TEXT,
        "type": TEXT,
        "param": OPTIONAL_TEXT,
        "code": {**COUNT, "description": "The HTTP status."},
        "detail": TEXT,
    },
)
HEADERS: list[Schema] = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Echoed if it is at most 128 visible ASCII characters; else a new one is made.",
        "schema": TEXT,
    },
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "After this many milliseconds the answer is 504.",
        "schema": {"type": "number", "minimum": 1, "maximum": 86400000},
    },
    {
        "name": "X-Priority",
        "in": "header",
        "description": "Lower goes first among requests of one key.",
        "schema": {"type": "integer", "minimum": -100, "maximum": 100},
    },
]
COMPATIBLE: Schema = {
    "name": "X-Compat",
    "in": "header",
    "description": "Whose answer is wanted, where the body does not say.",
    "schema": {"type": "string", "enum": ["sglang", "infinity"]},
}
NOT_SCHEMAS = ("examples", "enum", "const", "default", "required")


def openapi_document(keys: bool) -> dict[str, Any]:
    """`auth`: whether API keys are required."""
    components: dict[str, Schema] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        for number, path in enumerate(operation.paths):
            described = _operation(operation, number, keys)
            paths.setdefault(path, {})[operation.method.lower()] = _hoisted(described, components)
    for page in PAGES:
        for number, path in enumerate((page.path, *page.aliases)):
            paths[path] = {"get": _hoisted(_page(page, number, keys), components)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "onepass",
            "version": VERSION,
            "description": "Scores many candidates against one context with a causal language model, in one pass.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }
    if keys:
        schemes = {"bearer": {"type": "http", "scheme": "bearer"}}
        schemes["header"] = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        document["components"]["securitySchemes"] = schemes
        document["security"] = [{"bearer": []}, {"header": []}]
    return document


def _operation(operation: Operation, number: int, keys: bool) -> dict[str, Any]:
    """`number` is the path's place among those of the operation; all after the first are its aliases."""
    path = operation.paths[number]
    statuses = [400, 404, 429, 500, 503, 504] + ([408, 413, 415] if operation.bodies else []) + ([401] if keys else [])
    statuses += operation.statuses
    content: dict[str, Any] = {"application/json": {"schema": _one_of(operation.answers)}}
    if operation.name == "score":
        content["application/x-ndjson"] = {"schema": PART}
    described: dict[str, Any] = {
        "operationId": operation.name if number == 0 else f"{operation.name}_{number + 1}",
        "summary": operation.summary,
        "tags": [operation.group],
        "parameters": _parameters(path),
        "responses": {
            "200": _answered(content),
            **{str(status): _fault(status, operation.errors) for status in sorted(statuses)},
        },
    }
    if number:
        described["x-alias-of"] = operation.paths[0]
    if operation.description:
        described["description"] = operation.description
    if operation.bodies:
        body = {"application/json": {"schema": _one_of(operation.bodies)}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _page(page: Page, number: int, keys: bool) -> dict[str, Any]:
    schema = page.answer if page.answer is not None else {"type": "string"}
    content = {page.media_type: {"schema": schema}} | (
        {"text/html": {"schema": {"type": "string"}}} if page.html else {}
    )
    always_open = page.path in OPEN_PATHS or page.path.startswith(PAGE_FILES)
    statuses = sorted({*page.errors, 400, *([401] if keys and not always_open else [])})
    described: dict[str, Any] = {
        "operationId": page.name if number == 0 else f"{page.name}_{number + 1}",
        "summary": page.summary,
        "tags": ["Server"],
        "parameters": _parameters(page.path),
        "responses": {
            "200": _answered(content),
            **{str(status): _fault(status) for status in statuses},
        },
    }
    if number:
        described["x-alias-of"] = page.path
    return described | ({"security": []} if keys and always_open else {})


def _parameters(path: str) -> list[Schema]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    in_path = [{"name": n, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for n in names]
    return [*in_path, *HEADERS, *([COMPATIBLE] if path in RERANK_PATHS else [])]


def _answered(content: dict[str, Any]) -> dict[str, Any]:
    headers = {"x-request-id": {"schema": TEXT, "description": "The request's id, as the log has it."}}
    return {"description": "The answer.", "headers": headers, "content": content}


def _fault(status: int, others: tuple[Schema, ...] = ()) -> dict[str, Any]:
    """`others` are the errors of dialects that have a form of their own."""
    return {"description": MEANINGS[status], "content": {"application/json": {"schema": _one_of((ERROR, *others))}}}


def _one_of(schemas: tuple[Schema, ...]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def _hoisted(value: Any, components: dict[str, Schema]) -> Any:
    """The same with every schema that has a title moved to the components and referred to."""
    if isinstance(value, list):
        return [_hoisted(one, components) for one in value]
    if not isinstance(value, dict):
        return value
    out = {name: one if name in NOT_SCHEMAS else _hoisted(one, components) for name, one in value.items()}
    title = value.get("title")
    if not isinstance(title, str):
        return out
    components[title] = out
    return {"$ref": f"#/components/schemas/{title}"}
