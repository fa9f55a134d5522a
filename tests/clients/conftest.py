"""A server with the default model that wants a key, and other people's clients asking it in their own environment."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.build_env import RERANK_CLIENTS
from clients.task import ALIASES, DOCUMENTS, KEY, MODEL, QUERY
from server.running import serving
from virtual_environments import require

SCRIPTS = Path(__file__).with_name("scripts")
SCRIPT_SECONDS = 600  # a limit, for machines that are very busy
AT_A_TIME = 2  # scripts: most of their time is importing
SILENT = {  # no telemetry, no look-ups: the scripts let nothing but loopback be reached anyway
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "*",
}


@pytest.fixture(scope="session")
def clients_python() -> Path:
    return require(RERANK_CLIENTS)


@pytest.fixture(scope="session")
def keyed_url(clients_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Only started where there are clients to ask it."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"tests:{KEY}\n", encoding="utf-8")
    names = [option for name in (MODEL, *ALIASES) for option in ("--served-model-name", name)]
    with serving(MODEL, "--api-keys", str(keys), "--dtype", "float32", *names) as server:
        yield server.url


@pytest.fixture(scope="session")
def asked(clients_python: Path, keyed_url: str) -> Iterator[Callable[[str], dict[str, Any]]]:
    """`asked(script)`: what a family of clients got for the task and for each mistake in it; asked once a session."""
    task = {"url": keyed_url, "key": KEY, "model": MODEL, "query": QUERY, "documents": DOCUMENTS}
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        scripts = SCRIPTS.glob("*_client.py")
        reports = {script.stem: threads.submit(run_script, clients_python, script.name, task) for script in scripts}
        yield lambda script: reports[script].result()


def run_script(python: Path, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """What a script says of the calls that it made, as the last line of its output: litellm prints advice before."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")} | SILENT
    done = subprocess.run(
        [str(python), "-W", "ignore", str(SCRIPTS / name)],
        input=json.dumps(task),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
