"""One process of a model that spans two: `python host_process.py FOLDER COORDINATOR PROCESS DTYPE`.

Process 0 scores once for each JSON request on its stdin and prints a JSON line each: what came of it, or the error.
"""

import json
import sys

from onepass.api import ScoreRequest
from onepass.engine.multihost.follower import follow
from onepass.errors import OnepassError
from onepass.parallel.hosts import Hosts
from onepass.scorer import Scorer


def main(folder: str, coordinator: str, process: str, dtype: str) -> int:
    hosts = Hosts(coordinator, 2, int(process))
    options = {"dtype": dtype, "max_batch_tokens": 64, "keep_programs": False}
    try:
        if not hosts.leads:
            follow(folder, hosts, **options)  # type: ignore[arg-type]
            return 0
        with Scorer.load(folder, hosts=hosts, **options) as scorer:  # type: ignore[arg-type]
            say({"arrangement": str(scorer.arrangement)})
            for line in sys.stdin:
                say(answer(scorer, json.loads(line)))
    except OnepassError as error:
        say({"error": str(error)})
    return 0


def answer(scorer: Scorer, fields: dict[str, object]) -> dict[str, object]:
    try:
        result = scorer.score_many([ScoreRequest(**fields)])[0]  # type: ignore[arg-type]
    except OnepassError as error:
        return {"error": str(error)}
    return {"scores": result.scores, "mode": result.mode, "cached": result.usage.cached_tokens}


def say(told: dict[str, object]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
