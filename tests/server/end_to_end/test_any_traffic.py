"""A real server under requests that all differ, from 16 clients at once: every answer comes, nothing is compiled."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from onepass.api import MODES
from server.running import serving

REQUESTS, CLIENTS, COMPARED = 3000, 16, 30
COMPILATIONS = "onepass_engine_compilations_total"


def ids(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(3, 500) for _ in range(rng.randint(least, most))]


def body(number: int) -> dict[str, Any]:
    """Lengths beyond a step of 64 tokens, empty items, one label or most of the vocabulary, in every mode."""
    rng = random.Random(number)
    made: dict[str, Any] = {
        "query": ids(rng, 1, rng.choice([8, 30, 120])),
        "items": [ids(rng, 0, rng.choice([3, 12, 90])) for _ in range(rng.choice([0, 1, 2, 5, 9]))],
        "label_token_ids": rng.sample(range(3, 500), rng.choice([1, 2, 3, 40, 400])),
        "apply_softmax": rng.random() < 0.5,
        "item_first": rng.random() < 0.1,
        "mode": rng.choice(MODES),
    }
    if rng.random() < 0.2:
        made["continuations"] = [ids(rng, 1, rng.choice([4, 80])) for _ in range(rng.randint(1, 3))]
    return made


def numbers(answer: dict[str, Any]) -> np.ndarray:
    scores = [score for row in answer["scores"] for score in row]
    texts = [c["mean_logprob"] for row in answer.get("continuations") or [] for c in row]
    return np.array([*scores, *np.exp(texts)])


def test_nothing_is_compiled_after_ready_whatever_sixteen_clients_send(checkpoint: Callable[[str], Path]) -> None:
    options = ("--dtype", "float32", "--max-batch-tokens", "64", "--cache-bytes", str(1 << 22))
    with (
        serving(str(checkpoint("qwen3")), *options) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
        httpx2.Client(timeout=300, limits=httpx2.Limits(max_connections=CLIENTS)) as http,
    ):
        before = server.metric(COMPILATIONS)

        def send(made: dict[str, Any]) -> dict[str, Any]:
            answer = http.post(f"{server.url}/v1/score", json=made)
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        answers = list(pool.map(send, map(body, range(REQUESTS))))
        assert server.metric(COMPILATIONS) == before
        for number in range(0, REQUESTS, REQUESTS // COMPARED):
            alone = send({**body(number), "mode": "serial"})
            np.testing.assert_allclose(numbers(answers[number]), numbers(alone), atol=1e-5)
