"""The rehearsal takes the steps that the engine takes: the same programs, as often, for every mode."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from capacity.deployments import deployed, work_of
from onepass.bench.workloads import Shape, make_workload
from onepass.capacity.rehearsal import DryRunner, rehearse
from onepass.capacity.share import Share
from onepass.engine.config import EngineConfig
from onepass.engine.lowering import Program
from onepass.engine.runner import Runner
from onepass.errors import DoesNotFit, TooLong
from onepass.models.known import known_config
from onepass.scorer import Scorer

LABELS = [0, 1]


def ran_by_the_engine(scorer: Scorer, request: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[Program]:
    """The programs of the steps that a real engine takes."""
    seen: Counter[Program] = Counter()
    original = Runner.run

    def run(self: Runner, program: Program, *rest: Any) -> Any:
        seen[program] += 1
        return original(self, program, *rest)

    monkeypatch.setattr(Runner, "run", run)
    scorer.engine.score([replace(request, label_token_ids=LABELS)])
    return seen


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({"mode": "packed", "mask": "segment"}, False),
        ({"mode": "packed", "mask": "dense"}, False),
        ({"mode": "chunked", "chunk_size": 4}, False),
        ({"mode": "extend", "max_batch_tokens": 64}, False),
        ({"mode": "auto"}, True),
    ],
    ids=lambda value: value.get("mode", "") if isinstance(value, dict) else f"cached={value}",
)
def test_the_rehearsal_takes_the_engines_steps(
    options: dict[str, Any], cached: bool, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onepass.engine.config import describe_device, for_device
    from onepass.loading.model import open_model

    model = open_model(str(checkpoint("llama3")))
    config = EngineConfig(background_compile=False, **options)
    workload = make_workload("tiny", Shape(40, 10, 3, 20, cached), model.config.vocab_size)
    share = Share(model.config, jnp.dtype("float32"))
    device = describe_device()
    rehearsed = rehearse(share, for_device(config, device, False, model.config.head_dim), device, workload)
    with Scorer(model, model.load(jnp.dtype("float32")), config) as scorer:
        request = workload.asked[0].request
        if cached:
            scorer.engine.score([replace(request, label_token_ids=LABELS)])
        seen = ran_by_the_engine(scorer, request, monkeypatch)
        assert dict(rehearsed.steps) == dict(seen)
        assert rehearsed.context_bytes == scorer.engine.contexts.bytes


def test_ten_thousand_items_are_steps_of_bounded_size() -> None:
    rehearsed = deployed("qwen3-0.6b", "v6e").rehearse(work_of("qwen3-0.6b", "many"))
    counts = {(p.kind, p.shape.items): n for p, n in rehearsed.steps}
    assert counts == {("prefill", 0): 1, ("score", 16384): 12, ("score", 3584): 1}


def test_a_rehearsal_takes_no_memory_for_weights_or_contexts() -> None:
    """Eight billion parameters: their arrays are views of one number."""
    share = Share(known_config("qwen3-8b"), jnp.dtype("bfloat16"))
    keys = DryRunner(share)._zeros(36, 4096, 8, 128)
    assert keys.nbytes == 2 * 36 * 4096 * 8 * 128
    assert np.ndarray.__sizeof__(keys) < 1000


def test_what_the_engine_would_refuse_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="GiB"):
        deployed("qwen3-8b", "v5e").rehearse(work_of("qwen3-8b"))
    with pytest.raises(TooLong, match="40,960"):
        deployed("qwen3-0.6b", "v6e").rehearse(work_of("qwen3-0.6b", query=50_000))
