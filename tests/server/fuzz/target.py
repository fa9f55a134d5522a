"""What is shot at: `onepass serve` with a tiny random model, and everything compiled that sound requests need."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from checkpoints import make_checkpoint
from server.fuzz.bodies import SOUND
from server.running import Server, serving

OPTIONS = ("--dtype", "float32")
# Nobody times the model here, and a shape that is new to it should not take seconds to compile.
QUICK_COMPILATION = ("env", "JAX_DISABLE_MOST_OPTIMIZATIONS=1")


@contextmanager
def target(folder: Path) -> Iterator[Server]:
    model = str(make_checkpoint(folder / "qwen3", "qwen3"))
    with serving(model, *OPTIONS, before=QUICK_COMPILATION) as server:
        for path, bodies in SOUND.items():
            for body in bodies:
                answer = httpx2.post(f"{server.url}{path}", json=body, timeout=60)
                assert answer.status_code == 200, f"{path} {body}: {answer.text}"
        yield server
