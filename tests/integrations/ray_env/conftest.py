"""One Ray cluster of one node for all tests of this folder, and scripts that run on it in Ray's own environment.

A script reads its task from standard input as JSON and prints what it found as one line of JSON.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from integrations.ray_env.build_env import RAY
from virtual_environments import require

SCRIPTS = Path(__file__).with_name("scripts")
PROGRAMS = Path(tempfile.gettempdir()) / f"onepass-test-programs-{os.getuid()}"
CPUS = 8  # logical ones: more than all actors of a test reserve
SCRIPT_SECONDS = 900  # a limit, for machines that are very busy
STOP_SECONDS = 60
# Options of `ray start`. For those with a file, Ray's node waits 15 s until an agent has written its port into it.
PORTS = {
    "port": None,
    "node-manager-port": None,
    "object-manager-port": None,
    "dashboard-agent-listen-port": "dashboard_agent_listen_port",
    "dashboard-agent-grpc-port": "metrics_agent_port",
    "runtime-env-agent-port": "runtime_env_agent_port",
    "metrics-export-port": "metrics_export_port",
}
START_ATTEMPTS = 4
STARTED = "Ray runtime started"  # as `ray start` says it
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",  # other users of this machine cannot use the cluster
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
    "TOKENIZERS_PARALLELISM": "false",
}
Script = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def ray_script() -> Iterator[Script]:
    """`ray_script(name, task)`: what a script found on the cluster."""
    require(RAY)
    environment = {**os.environ, **SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for attempt in range(START_ATTEMPTS):
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray's sockets lie in it
        node = start_node(ports, folder, environment)
        if until_started(node, ports, folder):
            break
        log = node_log(folder)
        shutil.rmtree(folder, ignore_errors=True)
        assert attempt + 1 < START_ATTEMPTS, f"Ray's node did not start: {log}"
    environment |= {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}", "ONEPASS_RAY_NODE": str(node.pid)}
    try:
        yield lambda name, task: run_script(SCRIPTS / name, task, environment, folder)
    finally:
        stop(node)
        shutil.rmtree(folder, ignore_errors=True)


def start_node(ports: dict[str, int], folder: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """`--block`: the node's processes stay below this one and end with it."""
    options = [f"--{name}={port}" for name, port in ports.items()]
    fixed = ["--head", "--block", "--disable-usage-stats", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    size = [f"--num-cpus={CPUS}", "--object-store-memory=200000000", f"--temp-dir={folder}"]
    # One host of a TPU slice, as Ray's own start on such a machine would describe it; there is no TPU here.
    resources = '--resources={"TPU": 4, "TPU-v6e-4-head": 1}'
    host = {"slice-name": "slice-0", "worker-id": "0", "pod-type": "v6e-4", "topology": "2x2"}
    labels = "--labels=" + ",".join(f"ray.io/tpu-{name}={value}" for name, value in host.items())
    with (folder / "node.log").open("wb") as log:
        return subprocess.Popen(
            [str(RAY.python.with_name("ray")), "start", *fixed, *size, resources, labels, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def until_started(node: "subprocess.Popen[bytes]", ports: dict[str, int], folder: Path) -> bool:
    """False when the node has ended. Meanwhile writes the agents' port files: on a busy machine the agents take longer
    than the node waits for these, and the node removes what was there before it started."""
    while STARTED not in node_log(folder):
        if node.poll() is not None:
            return False
        for gcs_file in (folder / "session_latest").glob("gcs_server_port_*"):
            node_id = gcs_file.name.removeprefix("gcs_server_port_")
            for option, name in PORTS.items():
                if name is not None and not (file := gcs_file.with_name(f"{name}_{node_id}")).exists():
                    file.write_text(str(ports[option]), encoding="utf-8")
        time.sleep(0.05)
    return True


def node_log(folder: Path) -> str:
    return (folder / "node.log").read_text(encoding="utf-8", errors="replace")


def stop(node: "subprocess.Popen[bytes]") -> None:
    node.send_signal(signal.SIGTERM)
    try:
        node.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def run_script(script: Path, task: dict[str, Any], environment: dict[str, str], folder: Path) -> dict[str, Any]:
    with subprocess.Popen(
        [str(RAY.python), "-W", "ignore", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        try:
            out, errors = process.communicate(json.dumps(task), timeout=SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, f"{out[-4000:]}\n{errors[-8000:]}\n{node_log(folder)[-2000:]}"
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def free_ports(count: int) -> list[int]:
    """All different: each is held until the last is known."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listening.getsockname()[1]) for listening in sockets]
