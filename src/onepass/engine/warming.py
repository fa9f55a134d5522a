"""What is compiled before the first request: programs for requests of given shapes, cold and with their contexts kept.

Which programs a plan runs in is `gather`'s knowledge; compiling them is `runner`'s work.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from onepass.api import ScoreRequest
from onepass.engine.engine import Engine
from onepass.engine.gather import programs_of
from onepass.engine.lowering import Program
from onepass.loading.checkpoint import Progress, silent


def warm_up_requests(engine: Engine, shapes: Sequence[tuple[int, int, int]]) -> list[ScoreRequest]:
    """Requests of the given shapes (query tokens, items, tokens an item), to be run once before serving."""
    random = np.random.default_rng(0)
    vocab = engine.model.config.vocab_size
    return [
        ScoreRequest(
            query=random.integers(0, vocab, query).tolist(),
            items=random.integers(0, vocab, (items, tokens)).tolist(),
            label_token_ids=[0, 1],
        )
        for query, items, tokens in shapes
    ]


def compile_for(engine: Engine, requests: Sequence[ScoreRequest], progress: Progress = silent) -> None:
    """What these need, alone. While one program is compiled the next is lowered, which is Python's work: nearly half of
    the whole on a Hopper GPU."""
    most = engine.config.max_batch_tokens
    assert most is not None
    wanted: dict[Program, None] = {}
    for encoded in map(engine.encoder.encode, requests):
        context, cold = len(encoded.context), engine.planner.plan(encoded)
        wanted |= dict.fromkeys(programs_of(cold, context, most))
        if cold.keep or cold.prefill:
            wanted |= dict.fromkeys(programs_of(engine.planner.plan(encoded, context), 0, most))
    with ThreadPoolExecutor(engine.runner.compiled_at_once, "onepass-compile-ahead") as pool:
        for done, _ in enumerate(pool.map(engine.runner.compile, wanted)):
            progress("compile", done + 1, len(wanted))
