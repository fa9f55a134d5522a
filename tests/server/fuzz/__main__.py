"""`PYTHONPATH=tests python -m server.fuzz --requests 20000`: a tiny model served, shot at, and asked once more.

Prints the figures as JSON; exit status 1 where anything was wrong. `--seed` repeats a run.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from server.fuzz.bodies import IDS
from server.fuzz.drive import MOST_BYTES, Tally, drive
from server.fuzz.grammar import shots
from server.fuzz.target import target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with target(Path(folder)) as server:
            before = server.score(IDS).json()["scores"]
            url = urlsplit(server.url)
            assert url.hostname is not None
            assert url.port is not None
            address, pid = (url.hostname, url.port), server.process.pid
            tally = drive(address, shots(args.seed), args.requests, args.connections, pid)
            right = server.score(IDS).json()["scores"] == before
        internal = [line for line in server.lines if "internal error" in line]
    print(json.dumps(figures(tally) | {"right_at_the_end": right, "internal_errors": len(internal)}, indent=1))
    print("\n".join(tally.kept), *internal[:5], file=sys.stderr)
    return 0 if right and not tally.complaints and not internal and max(tally.memory) < MOST_BYTES else 1


def figures(tally: Tally) -> dict[str, object]:
    megabyte = 1 << 20
    return {
        "requests": tally.requests,
        "seconds": round(tally.seconds, 1),
        "statuses": dict(tally.statuses.most_common()),
        "complaints": dict(tally.complaints),
        "slowest_seconds": {came: round(seconds, 2) for came, seconds in tally.slowest.items()},
        "memory_mb": {
            "before": tally.memory[0] // megabyte,
            "peak": max(tally.memory) // megabyte,
            "twentieths": [size // megabyte for size in tally.memory[:: max(1, len(tally.memory) // 20)]],
        },
        "rules": dict(tally.rules.most_common()),
    }


if __name__ == "__main__":
    sys.exit(main())
