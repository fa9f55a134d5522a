"""`SharedModel`: one model over the bundles of a placement group, used from any process of a Ray cluster.

    model = SharedModel.start(EngineOptions("qwen3-32b"), [{"GPU": 4, "CPU": 8}] * 2)
    model.score_many([ScoreRequest(...)])

When one of its processes dies, the leader's process ends too, Ray restarts the leader, and calls under way run again.
The processes and how they join are `ray_hosts`; serving such a model over HTTP is `ray_serve` with `bundles`.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from onepass.api import ScoreRequest, ScoreResult
from onepass.integrations.ray_hosts import Followers, actor_options
from onepass.server.config import EngineOptions

RESTARTS = 3  # of the leader, and of a call that was under way when it ended
EXIT_STATUS = 70

log = logging.getLogger("onepass.ray_shared_model")


class LeaderActor:
    """A `Scorer` whose model lies in all bundles of this actor's placement group."""

    def __init__(self, engine: EngineOptions, processes: int) -> None:
        from onepass.parallel.hosts import Hosts
        from onepass.scorer import Scorer

        self._followers = Followers.start(engine, processes)
        options = dict(engine.engine)
        for name in ("programs_dir", "cache_dir"):
            if (path := getattr(engine, name)) is not None:
                options[name] = Path(path)
        source = {name: getattr(engine, name) for name in ("dtype", "revision", "offline", "adapter")}
        self._scorer = Scorer.load(engine.model, hosts=Hosts(**self._followers.hosts), **source, **options)

    def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        try:
            return self._scorer.score_many(requests)
        except Exception:
            if self._scorer.engine.failure is not None:
                log.exception("the engine failed, so the leader ends")
                os._exit(EXIT_STATUS)  # Ray restarts it with new followers, which end with their owner
            raise

    def placement(self) -> str:
        return str(self._scorer.arrangement)

    def follower_pids(self) -> list[int]:
        return self._followers.pids()

    def close(self) -> None:
        self._scorer.close()
        self._followers.stop()


class SharedModel:
    def __init__(self, leader: Any, group: PlacementGroup) -> None:
        self._leader, self._group = leader, group

    @classmethod
    def start(
        cls, engine: EngineOptions, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK"
    ) -> "SharedModel":
        """`strategy` STRICT_SPREAD puts every bundle on a node of its own."""
        return cls.in_group(engine, placement_group([dict(bundle) for bundle in bundles], strategy))

    @classmethod
    def in_group(cls, engine: EngineOptions, group: PlacementGroup) -> "SharedModel":
        """In an existing group, such as `ray_hosts.tpu_slice` gives."""
        ray.get(group.ready())
        placed = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        leader = ray.remote(LeaderActor).options(
            **actor_options(group.bundle_specs[0]),
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
            scheduling_strategy=placed,
        )
        return cls(leader.remote(engine, len(group.bundle_specs)), group)

    def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        results: list[ScoreResult] = ray.get(self._leader.score_many.remote(list(requests)))
        return results

    def placement(self) -> str:
        return str(ray.get(self._leader.placement.remote()))

    def follower_pids(self) -> list[int]:
        """Process ids of the followers, each on its own node."""
        pids: list[int] = ray.get(self._leader.follower_pids.remote())
        return pids

    def close(self) -> None:
        ray.get(self._leader.close.remote())
        ray.kill(self._leader)
        remove_placement_group(self._group)
