"""A program may end without closing its scorer, also with requests under way: its exit status is its own."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import sys
from onepass import Scorer
from onepass.api import ScoreRequest

scorer = Scorer.load(sys.argv[1], dtype="float32")
items = [[n, n + 1] for n in range(40)]
request = ScoreRequest(query=list(range(60)), items=items, label_token_ids=[1, 2], mode="serial")
scorer.score_many([request])
waiting = [scorer.submit(request) for _ in range(int(sys.argv[2]))]
print("ends")
"""


@pytest.mark.parametrize("waiting", [0, 50])
def test_a_program_that_closes_nothing_ends_well(checkpoint: Callable[[str], Path], waiting: int) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint("qwen3")), str(waiting)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
    assert "terminate" not in done.stderr
    assert time.monotonic() - start < 100, "what nobody waits for is not computed"
