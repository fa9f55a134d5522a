"""onepass as a Ray Serve application: `serve.run(serve_app(options, replicas=2))`, with every path of the server.

    client ─HTTP─► Serve's proxy ─► Ingress (reads the body, computes the key) ─► ContextRouter ─► ModelReplica

When a replica dies or has no engine before it answered, the ingress sends the request to another replica: scoring
changes nothing, so it may run twice. Once the body has begun a failure ends the connection; no answer is made of two.
Ray restarts, scales and places replicas; what a replica does is `ray_replica`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from onepass.errors import EngineUnavailable, Overloaded
from onepass.integrations.context_affinity import Route, route_of
from onepass.integrations.ray_replica import ForwardedRequest, ModelReplica
from onepass.integrations.ray_router import ContextRouter, TokenAutoscaling
from onepass.server.config import ServerOptions
from onepass.server.http.errors import error_response
from onepass.server.http.middleware import Json

MODEL_DEPLOYMENT = "onepass-model"
INGRESS_DEPLOYMENT = "onepass-ingress"
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.1  # before the second attempt; doubled for each further one
FORWARDED = ("type", "http_version", "method", "scheme", "query_string", "headers", "client", "server")


class Ingress:
    def __init__(self, model: DeploymentHandle, max_body_bytes: int) -> None:
        self._forward = model.options(method_name="forward", stream=True)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                break  # the replica's application answers 413
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        scope = {name: request.scope[name] for name in FORWARDED if name in request.scope}
        scope |= {"path": path, "raw_path": path.encode(), "root_path": ""}
        compressed = "content-encoding" in request.headers
        route = Route() if compressed else route_of(path, bytes(body))
        return ForwardedResponse(self._forward, route, ForwardedRequest(scope, bytes(body)))


class ForwardedResponse(Response):
    """A response that a replica writes. Serve calls it as any ASGI response."""

    def __init__(self, forward: DeploymentHandle, route: Route, request: ForwardedRequest) -> None:
        self._forward, self._route, self._request = forward, route, request
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            problem = await self._attempt(send, last=attempt + 1 == ATTEMPTS)
            if problem is None:
                return
            if isinstance(problem, Overloaded):
                break
        assert problem is not None
        fault = error_response(problem, "")
        await Json(fault.body(), fault.status, headers=dict(fault.headers))(scope, receive, send)

    async def _attempt(self, send: Send, last: bool) -> Exception | None:
        """None when a replica has answered, else why another attempt may be made. A replica's 503 is an answer only
        in the last attempt."""
        held: Message | None = None  # until the body begins: a replica that dies between the two has answered nothing
        began = complete = False
        failure: Exception = ConnectionError("a replica's answer ended early")
        try:
            async for replica, message in self._forward.remote(self._route, self._request):
                if message["type"] == "http.response.start":
                    if message["status"] == 503 and not last:
                        self._route = replace(self._route, avoid=(*self._route.avoid, replica))
                        return EngineUnavailable(f"replica {replica} has no engine", 5.0)
                    held = _without_request_id(message)
                    continue
                if held is not None:
                    await send(held)
                    held, began = None, True
                await send(message)
                complete = not message.get("more_body", False)
        except BackPressureError as error:
            return Overloaded(f"all replicas are full: {error}", 1.0)
        except (RayError, RayServeException) as error:
            failure = error
        if complete:
            return None
        if began:
            raise failure
        return EngineUnavailable(f"a replica failed with this request: {type(failure).__name__}", 5.0)


def _without_request_id(message: Message) -> Message:
    """Serve's proxy adds the header x-request-id, which the application sends as well."""
    return {**message, "headers": [(name, value) for name, value in message["headers"] if name != b"x-request-id"]}


def serve_app(
    options: ServerOptions,
    *,
    replicas: int | tuple[int, int] = 1,
    ingress_replicas: int = 1,
    target_tokens: int = 200_000,
    max_ongoing_requests: int = 64,
    max_queued_requests: int = 1024,
    replica_resources: Mapping[str, Any] | None = None,
    bundles: Sequence[Mapping[str, float]] | None = None,
    autoscaling: Mapping[str, Any] | None = None,
) -> Application:
    """`replicas` is a number or (min, max): then Serve runs one replica per `target_tokens` queued or running, and
    `autoscaling` has further fields of Serve's AutoscalingConfig. `replica_resources` are Ray's actor options
    (`{"num_gpus": 1}`). With `bundles` (`[{"GPU": 4, "CPU": 8}, …]`) a replica is that placement group, and its model
    spans one process per bundle. The router sends a replica `max_ongoing_requests` at a time and then takes the next
    replica for the same key; when all are full, `max_queued_requests` wait per ingress and more are answered 429.
    `options.host` and `options.port` are Serve's to choose (`serve.start`)."""
    settings: dict[str, Any] = {
        "name": MODEL_DEPLOYMENT,
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": max_queued_requests,
        "graceful_shutdown_timeout_s": options.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 5.0,
        "request_router_config": RequestRouterConfig(request_router_class=ContextRouter),
        "ray_actor_options": dict(replica_resources or {"num_cpus": 1}),
    }
    if isinstance(replicas, int):
        settings["num_replicas"] = replicas
    else:
        policy = AutoscalingPolicy(policy_function=TokenAutoscaling, policy_kwargs={"target_tokens": target_tokens})
        bounds = {"min_replicas": replicas[0], "max_replicas": replicas[1]}
        settings["autoscaling_config"] = AutoscalingConfig(**bounds, **(autoscaling or {}), policy=policy)
    if bundles is not None:
        settings |= {
            "placement_group_bundles": [dict(bundle) for bundle in bundles],
            "placement_group_strategy": "PACK",
        }
    model = serve.deployment(ModelReplica, **settings).bind(options, len(bundles or [{}]))
    ingress = serve.deployment(
        Ingress,
        name=INGRESS_DEPLOYMENT,
        num_replicas=ingress_replicas,
        max_ongoing_requests=max_queued_requests,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=options.drain_seconds,
    )
    return ingress.bind(model, options.limits.max_body_bytes)
