"""A model over two processes with two devices each scores as in one; a process that dies is an error, not a hang."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.api import ScoreRequest
from onepass.errors import ConfigError
from onepass.parallel.hosts import Hosts
from onepass.scorer import Scorer

SCRIPT = Path(__file__).parent / "host_process.py"
ITEMS = [[7, 8, 9], [4] * 9, [11, 12]]


def request(**fields: Any) -> dict[str, Any]:
    return {"query": [5] * 20, "items": ITEMS, "label_token_ids": [3, 40, 400], **fields}


class Pair:
    """Two processes; what process 0 prints is read line by line."""

    def __init__(self, folder: Path, dtypes: tuple[str, str] = ("float32", "float32")) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), coordinator, str(number), dtype],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
            )
            for number, dtype in enumerate(dtypes)
        ]

    def heard(self, number: int = 0) -> dict[str, Any]:
        out = self.processes[number].stdout
        assert out is not None
        line = next((line for line in out if line.startswith("{")), "")  # gloo prints there too
        assert line, self.errors()
        return json.loads(line)  # type: ignore[no-any-return]

    def ask(self, fields: dict[str, Any]) -> None:
        into = self.processes[0].stdin
        assert into is not None
        into.write(json.dumps(fields) + "\n")
        into.flush()

    def end(self) -> list[int]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        return [process.wait(60) for process in self.processes]

    def errors(self) -> str:
        self.log.seek(0)
        return self.log.read()[-6000:]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.log.close()


@pytest.fixture
def start(checkpoint: Callable[[str], Path]) -> Iterator[Callable[..., Pair]]:
    started: list[Pair] = []

    def begin(*arguments: Any) -> Pair:
        started.append(Pair(checkpoint("qwen3"), *arguments))
        return started[-1]

    yield begin
    for pair in started:
        pair.close()


def test_two_processes_score_as_one(start: Callable[..., Pair], checkpoint: Callable[[str], Path]) -> None:
    pair = start()
    asked = [request(mode="extend"), request(mode="extend"), request(mode="packed"), request(mode="serial")]
    with Scorer.load(str(checkpoint("qwen3")), dtype="float32", keep_programs=False) as scorer:
        wanted = scorer.score_many([ScoreRequest(**asked[0])])[0].scores
    assert pair.heard()["arrangement"].startswith("tp=4, dp=1: one model over the devices of 2 processes")
    for fields in asked:
        pair.ask(fields)
        found = pair.heard()
        assert "error" not in found
        assert found["mode"] == fields["mode"]
        assert np.abs(np.array(found["scores"]) - np.array(wanted)).max() <= 1e-5
        if fields is asked[1]:
            assert found["cached"] == 20, "a context that lies in both processes is found again"
    assert pair.end() == [0, 0]


def test_a_process_that_dies_in_the_midst_of_a_step_is_an_error_and_not_a_hang(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.heard()
    pair.ask(request(mode="packed"))
    assert "scores" in pair.heard()
    pair.processes[1].send_signal(signal.SIGSTOP)  # the next step waits for its part
    pair.ask(request(mode="packed"))
    pair.processes[1].kill()
    assert "process 1 has gone" in pair.heard()["error"]
    pair.ask(request(mode="packed"))
    assert "must be started again" in pair.heard()["error"], "and so is every request after it"


def test_processes_that_would_run_different_things_are_refused(start: Callable[..., Pair]) -> None:
    pair = start(("float32", "bfloat16"))
    assert "all processes must run the same" in pair.heard(0)["error"]
    assert "bfloat16" in pair.heard(1)["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nohost", 2, 0), "a coordinator is HOST:PORT; got 'nohost'"),
        (("host:1", 1, 0), "at least 2 processes; got 1"),
        (("host:1", 2, 2), "one of 0 to 1; got 2"),
    ],
)
def test_a_wrong_place_among_the_processes_is_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hosts(*arguments)
