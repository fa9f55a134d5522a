"""Ray Serve: every request of the task, kept contexts, a replica killed under load, and draining.

The application starts with one replica and gets the second by its autoscaling policy.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from cluster import command_line, connected, processes
from ray import serve

from onepass.integrations.ray_serve import MODEL_DEPLOYMENT, serve_app
from onepass.server.config import EngineOptions, ServerOptions

CALLERS = 6
SECONDS = 600
MOMENT = 0.2  # requests sent have arrived
ENGINE_COMMAND = "onepass.server.engines.worker"
AUTOSCALING = {
    "upscale_delay_s": 0.0,
    "downscale_delay_s": 3600.0,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 2.0,
}


class Server:
    def __init__(self, url: str) -> None:
        self.http = httpx2.Client(base_url=url, timeout=SECONDS)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        return {
            "status": answer.status_code,
            "body": answer.json() if "json" in answer.headers["content-type"] else answer.text,
            "replica": answer.headers.get("x-onepass-replica"),
            "request_ids": len(answer.headers.get_list("x-request-id")),
        }


def running_replicas() -> int:
    deployment = serve.status().applications["default"].deployments[MODEL_DEPLOYMENT]
    return int(deployment.replica_states.get("RUNNING", 0))


def replica_processes() -> set[int]:
    """Serve counts a dead replica as running until it notices; processes tell at once."""
    return set(processes(f"ServeReplica:default:{MODEL_DEPLOYMENT}"))


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def scaled_up(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Requests with many tokens until there is a second replica."""
    before = running_replicas()
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            server.post("/v1/score", body)

    with ThreadPoolExecutor(CALLERS) as threads:
        for _ in range(CALLERS):
            threads.submit(send)
        reached = wait_until(lambda: running_replicas() == 2)
        enough.set()
    return {"before": before, "reached_two": reached}


def contexts(server: Server, query: list[int], body: dict[str, Any]) -> dict[str, Any]:
    """A context opened, used, found and closed."""
    opened = server.post("/v1/contexts", {"query": query})
    handle = opened["body"]["id"]
    scored = [server.post("/v1/score", {**body, "context_id": handle}) for _ in range(4)]
    found = server.http.get(f"/v1/contexts/{handle}").status_code
    closed = server.http.delete(f"/v1/contexts/{handle}").status_code
    after = server.post("/v1/score", {**body, "context_id": handle})["status"]
    return {"opened": opened, "scored": scored, "found": found, "closed": closed, "after": after}


def under_load(server: Server, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Callers send all requests; after a third of the answers a replica is killed."""
    answered = threading.Semaphore(0)
    victim = min(replica_processes())

    def send(body: dict[str, Any]) -> dict[str, Any]:
        answer = server.post("/v1/score", body)
        answered.release()
        return answer

    def kill() -> None:
        for _ in range(len(requests) // 3):
            answered.acquire()
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(CALLERS) as threads:
        answers = list(threads.map(send, requests))
    killer.join()
    replaced = wait_until(lambda: len(replica_processes() - {victim}) == 2 and running_replicas() == 2)
    return {"answers": answers, "replaced": replaced}


def drained(server: Server, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The application is deleted while every caller waits for an answer, however fast those come: what is under way is
    answered, and no engine process is left. Serve itself answers 404 to a request that comes after its route has gone.
    """
    engines = processes(ENGINE_COMMAND)
    deleting = threading.Event()
    warm = threading.Barrier(len(requests) + 1)

    def send(body: dict[str, Any]) -> list[dict[str, Any]]:
        answers = [server.post("/v1/score", body)]
        warm.wait(SECONDS)
        while not deleting.is_set():
            answers.append(server.post("/v1/score", body))
        return answers

    with ThreadPoolExecutor(len(requests)) as threads:
        sent = [threads.submit(send, body) for body in requests]
        warm.wait(SECONDS)
        time.sleep(MOMENT)
        deleting.set()
        serve.delete("default")
        answers = [caller.result() for caller in sent]
    gone = wait_until(lambda: not any(ENGINE_COMMAND in command_line(pid) for pid in engines))
    return {"engines": len(engines), "answers": answers, "engines_are_gone": gone}


def main() -> None:
    task = json.load(sys.stdin)
    with connected():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        engine = EngineOptions(task["model"], dtype="float32", programs_dir=task["programs_dir"], engine=task["engine"])
        app = serve_app(
            ServerOptions(engine, drain_seconds=300), replicas=(1, 2), target_tokens=500, autoscaling=AUTOSCALING
        )
        serve.run(app)
        server = Server(f"http://127.0.0.1:{port}")
        report: dict[str, Any] = {"pages": {path: server.http.get(path).status_code for path in task["pages"]}}
        report["dialects"] = [server.post(path, body) for path, body in task["dialects"]]
        report["scaled_up"] = scaled_up(server, task["large"])
        report["repeated"] = [server.post("/v1/score", body) for body in task["repeated"]]
        report["contexts"] = contexts(server, task["context"], task["context_body"])
        report["load"] = under_load(server, task["load"])
        report["drain"] = drained(server, task["drain"])
        serve.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
