"""Bad input of every kind, from many connections: never a 5xx, never a hang, always the one error, and no memory lost.

The long run is `PYTHONPATH=tests python -m server.fuzz --requests 20000`.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clients.build_env import RERANK_CLIENTS
from server.fuzz.bodies import IDS
from server.fuzz.drive import MOST_BYTES, drive
from server.fuzz.exchange import Answer, Outcome, Shot
from server.fuzz.grammar import shots
from server.fuzz.target import target
from server.fuzz.verdict import complaint
from server.running import Server
from virtual_environments import require

REQUESTS = 600
CONNECTIONS = 32
JUDGEMENT = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with target(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


def test_bad_input_never_breaks_the_server(server: Server) -> None:
    before = server.score(IDS).json()["scores"]
    url = urlsplit(server.url)
    assert url.hostname is not None
    assert url.port is not None
    address = (url.hostname, url.port)
    tally = drive(address, shots(20), REQUESTS, CONNECTIONS, server.process.pid)
    assert not tally.complaints, "\n".join(tally.kept)
    assert tally.requests == REQUESTS
    assert tally.statuses["400"] > REQUESTS / 3, "most of it is bad"
    assert tally.statuses["200"] > REQUESTS / 10, "some of it is not"
    assert max(tally.memory) < MOST_BYTES
    assert "internal error" not in server.text
    assert server.score(IDS).json()["scores"] == before


@pytest.mark.parametrize(
    ("phases", "examples"),
    [("examples,fuzzing", "3"), pytest.param("examples,coverage,fuzzing,stateful", "100", marks=pytest.mark.slow)],
)
def test_schemathesis_finds_nothing(server: Server, tmp_path: Path, phases: str, examples: str) -> None:
    """It makes requests from /openapi.json, right and wrong ones, and checks that answers are as described there."""
    command = [str(require(RERANK_CLIENTS)), "-m", "schemathesis.cli", "--no-color", "--config-file", str(JUDGEMENT)]
    command += ["run", f"{server.url}/openapi.json", "--phases", phases, "--max-examples", examples]
    command += ["--seed", "5", "--no-shrink", "--request-timeout", "30"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "internal error" not in server.text


ERROR = (
    b'{"error":{"message":"m","type":"BadRequestError","param":null,"code":"c"},"object":"error","message":"m",'
    b'"type":"BadRequestError","param":null,"code":400,"detail":"m"}'
)
ID = {"x-request-id": "1"}


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome([Answer(400, ID, ERROR)]), None),
        (Outcome([Answer(500, ID, ERROR)]), "the status must be"),
        (Outcome([Answer(404, ID, ERROR)]), "the one body"),
        (Outcome([Answer(400, ID, ERROR.replace(b"null", b"1", 1))]), "the one body"),
        (Outcome([Answer(400, ID, b'{"error": "m"}')]), "the one body"),
        (Outcome([Answer(400, ID, b"Bad Request")]), "the one body"),
        (Outcome([Answer(400, {}, ERROR)]), "x-request-id"),
        (Outcome([Answer(400, ID, ERROR)] * 2), "1 answers must come; got 2"),
        (Outcome([]), "1 answers must come; got 0"),
        (Outcome([], "no answer"), "no answer"),
        (Outcome([Answer(400, ID, ERROR)], seconds=11), "must come within 10 s"),
    ],
)
def test_the_verdict_sees_what_is_wrong(outcome: Outcome, words: str | None) -> None:
    """Else the fuzzing would pass whatever came."""
    found = complaint(Shot("rule", (b"",), frozenset({400, 404})), outcome)
    assert found is None if words is None else found is not None and words in found
