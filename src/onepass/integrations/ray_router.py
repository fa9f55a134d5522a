"""Request router and autoscaling policy of a Ray Serve deployment of onepass.

`ContextRouter` sends requests with the same shared text to one replica while that has room, and requests with a context
handle to the replica that holds the context. `TokenAutoscaling` sizes the deployment by queued and running tokens: a
count of requests says little, as a request has ten tokens or a million. Keys and handles are `context_affinity`.
"""

import math
from typing import Any

from ray.serve.config import AutoscalingContext
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from onepass.integrations.context_affinity import Route, ranks

QUEUED_TOKENS = "queued_tokens"  # the metric that replicas record


class ContextRouter(RequestRouter):
    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas. Serve takes the first replica that accepts another request (`max_ongoing_requests`)."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # all replicas full: wait before choosing again
        route = pending_request.args[0] if pending_request.args else None
        if not isinstance(route, Route):
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_name[name] for name in rank] for rank in ranks(route, list(by_name))]


class TokenAutoscaling:
    """One replica per `target_tokens` queued or running, and one more while requests wait for any replica. Serve
    applies the deployment's bounds and delays to the number."""

    def __init__(self, target_tokens: int) -> None:
        self._target_tokens = target_tokens

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        tokens = sum(((context.aggregated_metrics or {}).get(QUEUED_TOKENS) or {}).values())
        replicas = math.ceil(tokens / self._target_tokens)
        if context.total_queued_requests:
            replicas = max(replicas, context.current_num_replicas + 1)
        return max(1, replicas), {}
