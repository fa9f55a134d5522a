"""What the server says of itself: health, liveness, the model, its configuration. Nothing here asks the engine."""

import time
from dataclasses import asdict
from typing import Any

from onepass.errors import EngineUnavailable
from onepass.loading.rerankers.templates import template_to_dict
from onepass.server.engines.service import Health, Served, Service
from onepass.server.http.body_limits import Limits
from onepass.server.http.errors import ErrorResponse
from onepass.server.schema.fields import COUNT, TEXT, Schema, answer_schema, check_model
from onepass.version import VERSION

HEALTH: Schema = answer_schema(
    "Health",
    {
        "status": TEXT,
        "ready": {"type": "boolean"},
        "state": TEXT,
        "reason": TEXT,
        "progress": {"type": "object"},
        "restarts": COUNT,
    },
)
ALIVE: Schema = answer_schema("Alive", {"status": {"const": "alive"}})
MODEL: Schema = answer_schema(
    "Model",
    {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT, "max_model_len": COUNT},
)
SYSTEM_ONE_MODEL: Schema = answer_schema("SystemOneModel", {"name": TEXT, "description": TEXT, "release_date": TEXT})
MODELS: Schema = answer_schema(
    "Models",
    {
        "object": {"const": "list"},
        "data": {"type": "array", "items": MODEL},
        "models": {"type": "array", "items": SYSTEM_ONE_MODEL},
    },
)
INFO: Schema = answer_schema(
    "Info",
    {
        "version": TEXT,
        "model": {"anyOf": [TEXT, {"type": "null"}]},
        "health": {"type": "object"},
        "limits": {"type": "object"},
        "ranking": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "details": {"type": "object"},
    },
)
INDEX: Schema = answer_schema("Index", {"name": TEXT, "version": TEXT, "docs": TEXT, "openapi": TEXT, "health": TEXT})


def index() -> dict[str, Any]:
    return {"name": "onepass", "version": VERSION, "docs": "/docs", "openapi": "/openapi.json", "health": "/health"}


def health(current: Health) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers: 200 only when a request would be served; else 503, an error body that says why."""
    out = {"status": "ok" if current.ready else "unavailable", **asdict(current)}
    if current.ready:
        return 200, out, {}
    code = "draining" if current.state == "draining" else "engine_unavailable"
    return 503, {**ErrorResponse(503, code, current.reason).body(), **out}, {"Retry-After": "1"}


def models(served: Served) -> dict[str, Any]:
    """`data` as OpenAI lists models, `models` as System One does."""
    released = time.strftime("%Y-%m-%d", time.gmtime(served.created))
    named = [{"name": name, "description": "Served by onepass.", "release_date": released} for name in served.names]
    return {"object": "list", "data": [model(served, name) for name in served.names], "models": named}


def model(served: Served, name: str) -> dict[str, Any]:
    check_model(name, served.names)
    return {
        "id": served.model if name == "default" else name,
        "object": "model",
        "created": served.created,
        "owned_by": "onepass",
        "max_model_len": served.max_position,
    }


def served_or_none(service: Service) -> Served | None:
    """None until an engine has been ready once."""
    try:
        return service.served
    except EngineUnavailable:
        return None


def info(service: Service, limits: Limits) -> dict[str, Any]:
    """Also before an engine has been ready; then without what only an engine can tell."""
    served = served_or_none(service)
    ranking = served and {
        "method": served.ranker.method,
        "template": template_to_dict(served.ranker.template(served.ranker.method)),
    }
    return {
        "version": VERSION,
        "model": served and served.model,
        "health": asdict(service.health()),
        "limits": asdict(limits),
        "ranking": ranking,
        "details": served.details if served else {},
    }
