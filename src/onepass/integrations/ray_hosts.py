"""A model over several processes that Ray places: one per bundle of a placement group, joined by our `Hosts`.

    bundle 0   the leader, which takes requests: `ray_shared_model`'s actor, or a Serve replica's engine
    bundle n   a `FollowerActor`, which runs `follower_process` and starts it again when it ends

When a process dies, the model's engine fails with an error; then all processes start again and join anew. Ray restarts
the actors, on another node if need be. `tpu_slice` reserves the hosts of one TPU slice.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from onepass.errors import ConfigError
from onepass.server.config import EngineOptions

PAUSE_SECONDS = 0.5  # before a follower is started again
RAY_TPU_VERSIONS = {"v5e": "v5litepod"}  # where Ray's name of a generation differs


class FollowerActor:
    """Supervises one process of the model. JAX cannot join twice in one process, so the follower is a child."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._command = [sys.executable, "-m", "onepass.integrations.follower_process", json.dumps(options)]
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE)  # the child ends when this pipe does

    def run(self) -> None:
        while True:
            self._process.wait()
            time.sleep(PAUSE_SECONDS)
            self._process = self._start()

    def pid(self) -> int:
        return self._process.pid


@dataclass(frozen=True)
class Followers:
    """The other processes of a model; `hosts` are the fields of `parallel.hosts.Hosts` for the leader."""

    hosts: dict[str, Any]
    actors: tuple[Any, ...]

    @classmethod
    def start(cls, engine: EngineOptions, processes: int) -> "Followers":
        """Called in bundle 0 of a placement group: the coordinator is on this node."""
        group = get_current_placement_group()
        if group is None or len(group.bundle_specs) < processes:
            raise ConfigError(f"a model over {processes} processes needs a placement group with a bundle for each")
        coordinator = f"{ray.util.get_node_ip_address()}:{_free_port()}"
        hosts = [{"coordinator": coordinator, "processes": processes, "process": number} for number in range(processes)]
        actors = [_follower(group, number, asdict(engine) | {"hosts": hosts[number]}) for number in range(1, processes)]
        return cls(hosts[0], tuple(actors))

    def pids(self) -> list[int]:
        return ray.get([actor.pid.remote() for actor in self.actors])

    def stop(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def _follower(group: PlacementGroup, number: int, options: dict[str, Any]) -> Any:
    placed = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
    actor_class = ray.remote(FollowerActor).options(
        **actor_options(group.bundle_specs[number]),
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=2,  # `run` does not return
        scheduling_strategy=placed,
    )
    actor = actor_class.remote(options)
    actor.run.remote()
    return actor


def actor_options(bundle: Mapping[str, float]) -> dict[str, Any]:
    """A bundle's resources as options of the actor that takes all of it."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus"}
    options: dict[str, Any] = {named[name]: amount for name, amount in bundle.items() if name in named}
    others = {name: amount for name, amount in bundle.items() if name not in named}
    return {"num_cpus": 0} | options | ({"resources": others} if others else {})


def tpu_slice(topology: str) -> Any:
    """Ray's handle of a TPU slice such as `v6e:4x4`. Its `placement_group` has one bundle per host;
    `shutdown()` gives the slice back. Waits until Ray has found a free slice."""
    from onepass.parallel.topology import Topology

    wanted = Topology.parse(topology)
    try:
        from ray.util.tpu import slice_placement_group
    except ImportError as error:
        raise ConfigError(f"TPU slices need ray.util.tpu of Ray 2.60; this is Ray {ray.__version__}") from error
    version = RAY_TPU_VERSIONS.get(wanted.generation, wanted.generation)
    return slice_placement_group(topology="x".join(map(str, wanted.shape)), accelerator_version=version)


def _free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])
