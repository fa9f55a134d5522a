"""A server with the default model that wants a key, and other people's clients asking it in their own environment."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.build_env import PYTHON, is_built
from clients.task import ALIASES, DOCUMENTS, KEY, MODEL, QUERY
from server.running import serving

SCRIPTS = Path(__file__).with_name("scripts")
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
    if not is_built():
        reason = "there is no .clients-venv, or it is old: python tests/clients/build_env.py"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return PYTHON


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
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")} | SILENT

    def ask(script: Path) -> dict[str, Any]:
        done = subprocess.run(
            [str(clients_python), "-W", "ignore", str(script)],
            input=json.dumps(task),
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    with ThreadPoolExecutor(AT_A_TIME) as threads:
        reports = {script.stem: threads.submit(ask, script) for script in SCRIPTS.glob("*_client.py")}
        yield lambda script: reports[script].result()
