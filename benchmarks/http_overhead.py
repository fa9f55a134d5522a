"""What HTTP costs: the same requests through a `Scorer` in this process and over HTTP, one at a time, interleaved.

    python benchmarks/http_overhead.py [MODEL] [--workload contract] [--items N] [--repeats 10] [--dtype auto]

Starts a server on the loopback with the same dtype and options; while one side works the other is idle. The engine
alone always scores token ids; over HTTP the same tokens go as ids, or as the text they came from. Making the JSON and
reading the answer's is part of what HTTP costs. Every query is cold. Limits: ids +15 %, text +40 %.
The last line is one JSON document. Exit status: 0 within the limits, 1 not, or scores differ, or something compiled.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

LIMITS = {"ids": 0.15, "text": 0.40}
FEWEST_REPEATS = 10
WARM_UP = 2


@dataclass
class Side:
    """Seconds of the engine alone and over HTTP for one kind of body, and how far scores were apart."""

    kind: str
    engine: list[float] = field(default_factory=list)
    http: list[float] = field(default_factory=list)
    server_ms: list[dict[str, float]] = field(default_factory=list)
    difference: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--workload", default="contract", help="default: contract (2000 + 500 x 20 tokens)")
    parser.add_argument("--query-tokens", type=int, help="instead of the workload's")
    parser.add_argument("--items", type=int, help="instead of the workload's")
    parser.add_argument("--item-tokens", type=int, help="instead of the workload's")
    parser.add_argument("--repeats", type=int, default=FEWEST_REPEATS, help="of each kind (default: 10)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    args = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two processes share a GPU
    found = asyncio.run(measure(args))
    show(found)
    print(json.dumps(found, allow_nan=False))
    return 0 if found["verdict"] == "ok" else 1


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    from onepass.bench.online.connection import Address
    from onepass.bench.online.pool import library_labels
    from onepass.bench.online.requests import MixPart, Requests
    from onepass.bench.online.server import own_server
    from onepass.bench.online.target import Target
    from onepass.bench.workloads import resized, shape_named
    from onepass.scorer import Scorer

    shape = resized(shape_named(args.workload), args.query_tokens, args.items, args.item_tokens)
    mix = (MixPart(args.workload, shape),)
    with Scorer.load(args.model, dtype=args.dtype, warm_up=True) as scorer:
        dtype = str(scorer.weights.embed.dtype)
        ids = Requests(mix, scorer.model.config.vocab_size)
        ids = replace(ids, labels=library_labels(scorer, ids))
        options = ["--dtype", dtype]
        with own_server(args.model, options) as server:
            target = await Target.open(Address.parse(server.url))
            requests = {"ids": ids, "text": replace(ids, english=await target.english())}
            sides = {kind: Side(kind) for kind in requests}
            for n in range(WARM_UP):
                for kind, stream in requests.items():
                    await both(scorer, target, stream, n, Side(kind))
            before = scorer.engine.runner.compilations, await target.counts()
            for n in range(args.repeats):
                for kind, stream in requests.items():
                    # Numbers of their own: the server must not know a query already. Who goes first alternates.
                    await both(scorer, target, stream, WARM_UP + n, sides[kind], http_first=n % 2 == 1)
                print(f"{n + 1} of {args.repeats}", file=sys.stderr, flush=True)
            after = scorer.engine.runner.compilations, await target.counts()
            await target.close()
    return judge(args, dtype, shape, sides, before != after)


async def both(scorer: Any, target: Any, requests: Any, number: int, side: Side, http_first: bool = False) -> None:
    """One request on either side. The engine's context cache is emptied; the server has never seen the query."""
    from onepass.api import ScoreRequest

    content, labels = requests.content(number), requests.labels
    query, items = content.query, content.items
    if requests.kind == "text":
        query, items = scorer.tokenizer.encode_query(query), scorer.tokenizer.encode_items(items)
    alone = ScoreRequest(query=query, items=items, label_token_ids=list(labels.ids), apply_softmax=labels.softmax)

    def engine() -> Any:
        scorer.engine.contexts.clear()
        start = time.perf_counter()
        result = scorer.score_many([alone])[0]
        side.engine.append(time.perf_counter() - start)
        return result.scores

    async def http() -> Any:
        start = time.perf_counter()
        answer = await target.score(requests.body(content))
        told = answer.json()
        side.http.append(time.perf_counter() - start)
        if answer.status != 200:
            raise SystemExit(f"the server answered with status {answer.status}: {told}")
        side.server_ms.append(told["timings"])
        return told["scores"]

    if http_first:
        over_http, scores = await http(), engine()
    else:
        scores, over_http = engine(), await http()
    gaps = (abs(a - b) for row, other in zip(scores, over_http, strict=True) for a, b in zip(row, other, strict=True))
    side.difference = max([side.difference, *gaps])


def judge(args: argparse.Namespace, dtype: str, shape: Any, sides: dict[str, Side], compiled: bool) -> dict[str, Any]:
    from statistics import median

    from onepass.evidence.provenance import commit, hardware, versions
    from onepass.evidence.tolerance import BETWEEN_MODES

    rows, problems = [], ["something compiled while it was timed"] if compiled else []
    for kind, side in sides.items():
        alone, over = median(side.engine), median(side.http)
        row = {
            "kind": kind, "engine_ms": 1e3 * alone, "http_ms": 1e3 * over, "overhead": over / alone - 1,
            "limit": LIMITS[kind], "max_difference": side.difference, "repeats": len(side.http),
            "engine_times_ms": [round(1e3 * t, 3) for t in side.engine],
            "http_times_ms": [round(1e3 * t, 3) for t in side.http],
            "server_ms": {name: median(told[name] for told in side.server_ms) for name in side.server_ms[0]},
        }  # fmt: skip
        rows.append(row)
        if row["overhead"] > row["limit"]:
            problems.append(f"{kind}: HTTP costs {row['overhead']:+.1%}; the limit is {row['limit']:+.0%}")
        if not side.difference <= BETWEEN_MODES[dtype].most:  # type: ignore[index]
            problems.append(f"{kind}: scores differ by {side.difference:.1e}")
    notes = []
    if args.repeats < FEWEST_REPEATS:
        notes.append(f"only {args.repeats} repeats; a figure to keep needs {FEWEST_REPEATS}")
    if args.workload != "contract" or any((args.query_tokens, args.items, args.item_tokens)):
        notes.append(f"not the contract's shape: {shape.query} + {shape.items} x {shape.item_tokens} tokens")
    return {
        "object": "http_overhead", "model": args.model, "dtype": dtype, "workload": args.workload,
        "shape": vars(shape), "rows": rows, "problems": problems, "notes": notes, "commit": commit(),
        "hardware": hardware(), "versions": versions(), "command": " ".join(sys.argv),
        "verdict": "failed" if problems else "ok",
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    shape = found["shape"]
    print(f"{found['model']} {found['dtype']}: {shape['query']} + {shape['items']} x {shape['longest']} tokens")
    print(f"{'as':<6}{'engine ms':>12}{'http ms':>12}{'overhead':>10}{'limit':>8}{'max diff':>10}{'repeats':>9}")
    for row in found["rows"]:
        print(
            f"{row['kind']:<6}{row['engine_ms']:>12.1f}{row['http_ms']:>12.1f}{row['overhead']:>+10.1%}"
            f"{row['limit']:>+8.0%}{row['max_difference']:>10.1e}{row['repeats']:>9}"
        )
    for line in [*found["notes"], *found["problems"], found["verdict"].upper()]:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
