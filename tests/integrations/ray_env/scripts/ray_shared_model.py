"""Two processes that Ray places in the bundles of one group share a model; one is killed; a TPU slice is found."""

import json
import os
import signal
import sys
import time

import ray
from cluster import connected

from onepass.api import ScoreRequest
from onepass.integrations.ray_hosts import tpu_slice
from onepass.integrations.ray_shared_model import SharedModel
from onepass.server.config import EngineOptions


def main() -> None:
    task = json.load(sys.stdin)
    with connected():
        free = ray.available_resources()["CPU"]
        engine = EngineOptions(task["model"], dtype="float32", engine=task["engine"])
        model = SharedModel.start(engine, [{"CPU": 1}, {"CPU": 1}])
        requests = [ScoreRequest(**fields) for fields in task["requests"]]
        report = {"placement": model.placement(), "scores": scores(model, requests)}
        pids = model.follower_pids()
        os.kill(pids[0], signal.SIGKILL)
        report["scores_after_kill"] = scores(model, requests)
        report["killed"], report["followers_after_kill"] = pids, model.follower_pids()
        model.close()
        report["cpus_are_free_again"] = wait_for_cpus(free)
        report["slice"] = slice_bundles()
    print(json.dumps(report))


def scores(model: SharedModel, requests: list[ScoreRequest]) -> list[list[list[float]]]:
    return [result.scores for result in model.score_many(requests)]


def wait_for_cpus(count: float) -> bool:
    end = time.monotonic() + 300
    while ray.available_resources().get("CPU", 0) != count and time.monotonic() < end:
        time.sleep(0.2)
    return ray.available_resources().get("CPU", 0) == count


def slice_bundles() -> list[dict[str, float]]:
    """The node has the resources of a host of a slice, though no TPU."""
    reserved = tpu_slice("v6e:2x2")
    ray.get(reserved.placement_group.ready())
    bundles: list[dict[str, float]] = reserved.placement_group.bundle_specs
    reserved.shutdown()
    return bundles


if __name__ == "__main__":
    main()
