"""A soak of the server: many clients of mixed sizes, every answer compared with the library's, and then overload.

    python benchmarks/soak.py [MODEL] [--minutes 10] [--clients 64] [--hostile 10] [--kinds tiny,...] [--out DIR]

Starts `onepass serve` on the loopback, once with its usual queue and once with a small one for the overload. Requests
are those of workload `mixed` (`onepass.bench.mixed`), each of its own kind and lengths; a pool of them is scored
beforehand by a `Scorer` in this process. No server is warmed up. Verdicts (`onepass.bench.online.soak`):

- no wrong answer, no 5xx, no connection that broke; memory of front and engine, less the pages of contexts that were
  used, does not grow (from 5 minutes on)
- beside hostile clients (`onepass.bench.online.hostile`), each answered as it must be: p99 of `GET /live` <= 50 ms
- no program compiled from the first request on
- p99 of kind `small` under load <= 5 x its unloaded p99 + one step, the longest seen in the answers. Clients
  join over the first minute: 64 requests at one instant wait for each other however they are ordered.
- at 4 x capacity: 429s, each with Retry-After; goodput (tokens/s) >= 80 % of peak; 10 s later, latency within 2 x

Exit status: 0 all hold, 1 some do not. --out gets soak-*.json and soak-*.md; the last line on stdout is the JSON.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bench.mixed import ALL_KINDS, MixedStream
from onepass.bench.online.connection import Address
from onepass.bench.online.hostile import HostileClients
from onepass.bench.online.live import live_samples
from onepass.bench.online.loops import arrivals, closed_loop, open_loop, send
from onepass.bench.online.mixed import MixedRequests
from onepass.bench.online.pool import ComparedWindow, Pool, expected_rows
from onepass.bench.online.requests import PreparedRequest
from onepass.bench.online.server import OwnServer, growth_per_minute, own_server, peak_growth_per_minute
from onepass.bench.online.soak import judge, markdown
from onepass.bench.online.target import Target
from onepass.bench.row import latencies
from onepass.evidence.provenance import commit, hardware, versions
from onepass.evidence.tolerance import BETWEEN_MODES, Tolerance

SMALL = "small"  # whose latencies are judged
UNLOADED_REQUESTS = 30
RECOVERY_SECONDS = 10.0
OVERLOAD = 4.0
JOINING_SECONDS = 60.0
FEW_CLIENTS = 8
CAPACITY_SECONDS = 20.0
LIVE_SECONDS = 0.02


@dataclass(frozen=True)
class Known:
    """The pool and what its answers must be."""

    stream: MixedStream
    prepared: list[PreparedRequest]
    expected: dict[int, np.ndarray]
    tolerance: Tolerance
    dtype: str

    def window(self) -> ComparedWindow:
        return ComparedWindow(expected=self.expected, tolerance=self.tolerance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=10.0, help="under load (default: 10)")
    parser.add_argument("--overload-seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--clients", type=int, default=64, help="at a time (default: 64)")
    parser.add_argument("--hostile", type=int, default=10, help="hostile clients beside them (default: 10)")
    parser.add_argument(
        "--kinds", default=",".join(ALL_KINDS), help="of mixed traffic, small among them (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default: 0)")
    parser.add_argument("--pool", type=int, default=84, help="distinct requests (default: 84)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument(
        "--queue-tokens", type=int, default=65536, help="queue of the overloaded server (default: 65536)"
    )
    parser.add_argument("--serve-option", action="append", default=[], help="for both servers, such as --cache-bytes=0")
    parser.add_argument("--out", type=Path, help="folder for the results")
    args = parser.parse_args()
    made = asyncio.run(soak(args))
    text = markdown(made)
    print(text)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^\w.]+", "-", f"soak-{Path(args.model).name}-{made['date'].replace(':', '')}").lower()
        (args.out / f"{stem}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        (args.out / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(made))
    return 1 if any(verdict["holds"] is False for verdict in made["verdicts"]) else 0


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    tell("scoring the pool with the library")
    known = known_pool(args)
    options = ["--dtype", known.dtype]
    options += [word for option in args.serve_option for word in option.split("=", 1)]
    with own_server(args.model, options) as server:
        load = await under_load(args, known, server)
    with own_server(args.model, [*options, "--max-queue-tokens", str(args.queue_tokens)]) as server:
        overload = await overloaded(args, known, server, load)
    return {
        "object": "soak", "model": args.model, "dtype": known.dtype, "workload": known.stream.name,
        "seed": args.seed,
        "minutes": args.minutes, "clients": args.clients, "pool": len(known.prepared), "load": load,
        "overload": overload, "verdicts": [vars(verdict) for verdict in judge(args.minutes, load, overload)],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "commit": commit(), "hardware": hardware(),
        "versions": versions(), "command": " ".join(sys.argv),
    }  # fmt: skip


def known_pool(args: argparse.Namespace) -> Known:
    from onepass.scorer import Scorer

    with Scorer.load(args.model, dtype=args.dtype) as scorer:
        dtype = str(scorer.weights.embed.dtype)
        stream = MixedStream(scorer.model.config.vocab_size, args.seed, tuple(args.kinds.split(",")), args.clients)
        requests = MixedRequests(stream)
        prepared = [requests.prepare(number) for number in range(args.pool)]
        expected = expected_rows(scorer, stream, range(args.pool))
    return Known(stream, prepared, expected, BETWEEN_MODES[dtype], dtype)


async def under_load(args: argparse.Namespace, known: Known, server: OwnServer) -> dict[str, Any]:
    target = await Target.open(Address.parse(server.url))
    small, everything = Pool(known.prepared, SMALL), Pool(known.prepared, seed=1)
    before = await target.counts()
    unloaded = await one_at_a_time(target, known, small)
    tell(f"{args.clients} clients for {args.minutes:g} minutes")
    samples: list[tuple[float, int, int, int]] = []
    watching = asyncio.create_task(watch_memory(server, target, samples))
    address, seconds = Address.parse(server.url), 60 * args.minutes
    hostile = HostileClients(address, small.take().body)
    # Clients that would join after the end would only be waited for, and their waiting counted as time under load.
    joining = min(JOINING_SECONDS, seconds / 4)
    async with live_samples(address, LIVE_SECONDS) as live:
        attack = asyncio.create_task(hostile.run(args.hostile, seconds))
        window = await closed_loop(target, everything, args.clients, seconds, known.window(), joining)
        await attack
    watching.cancel()
    after = await target.counts()
    batch = int(target.info["details"]["engine"]["max_batch_tokens"])
    await target.close()
    fronts = [(at, front) for at, front, _, _ in samples]
    engines = [(at, engine - pages) for at, _, engine, pages in samples]
    return {
        **told(window),
        "unloaded_ms": latencies(unloaded.latencies),
        "small_ms": latencies([one.seconds for one in window.scored if one.part == small.part]),
        "longest_step_ms": max(step_ms(one, known.stream, batch) for one in window.scored),
        "compilations": after.compilations - before.compilations,
        "live_ms": live.milliseconds(),
        "hostile": {
            "clients": args.hostile, "unexpected": hostile.unexpected(),
            "statuses": {kind: dict(seen) for kind, seen in hostile.statuses.items()},
        },
        "memory": {
            "front_bytes": fronts[-1][1], "front_growth_per_minute": growth_per_minute(fronts),
            "engine_bytes": samples[-1][2], "pages_bytes": samples[-1][3],
            # Without pages of contexts: one that is given out and not yet written makes this lower for a while.
            "engine_growth_per_minute": peak_growth_per_minute(engines),
            "samples": [(round(at, 1), *sizes) for at, *sizes in samples[:: max(1, len(samples) // 200)]],
        },
    }  # fmt: skip


async def overloaded(args: argparse.Namespace, known: Known, server: OwnServer, load: dict[str, Any]) -> dict[str, Any]:
    """At so many times what the server did at best, for many clients or for few, with a queue that is soon full."""
    target = await Target.open(Address.parse(server.url), timeout=120 + args.overload_seconds)
    small, everything = Pool(known.prepared, SMALL), Pool(known.prepared, seed=2)
    unloaded = await one_at_a_time(target, known, small)
    few = told(await closed_loop(target, everything, FEW_CLIENTS, CAPACITY_SECONDS, known.window()))
    peak = max(load, few, key=lambda part: float(part["tokens_per_second"]))
    rate = OVERLOAD * peak["requests_per_second"]
    tell(f"{rate:.1f} requests a second for {args.overload_seconds:g} s")
    due = arrivals(rate, args.overload_seconds, 0)
    window = await open_loop(target, everything, due, rate, known.window())
    await asyncio.sleep(RECOVERY_SECONDS)
    recovered = await one_at_a_time(target, known, small)
    await target.close()
    return {
        **told(window),
        "offered_per_second": rate,
        "peak_tokens_per_second": peak["tokens_per_second"],
        "few_clients": few,
        "without_retry_after": sum(after is None for after in window.retry_after),
        "unloaded_ms": latencies(unloaded.latencies),
        "recovered_ms": latencies(recovered.latencies),
    }


async def one_at_a_time(target: Target, known: Known, pool: Pool) -> ComparedWindow:
    window = known.window()
    for _ in range(UNLOADED_REQUESTS):
        await send(target, pool.take(), time.perf_counter(), window)
    return window


async def watch_memory(server: OwnServer, target: Target, samples: list[tuple[float, int, int, int]]) -> None:
    """Seconds, and bytes of the front, of the engine, and of the pages of contexts that the engine has used."""
    start = time.monotonic()
    while True:
        pages, memory = await target.pages_bytes(), server.memory()
        samples.append((time.monotonic() - start, memory.front, memory.engine, pages))
        await asyncio.sleep(1.0)


def step_ms(one: Any, stream: MixedStream, batch: int) -> float:
    """Device time a step, from below: the time is of all steps that a request was in, and it was in at least these."""
    query = stream.sizes(one.number).query
    separate = one.mode == "extend" and not one.cached_tokens
    steps = -(-query // batch) + -(-(one.tokens - query) // batch) if separate else -(-one.tokens // batch)
    return float(one.timings["device_ms"]) / steps


def told(window: ComparedWindow) -> dict[str, Any]:
    seconds = max(window.seconds, 1e-9)
    return {
        "requests": window.sent, "answered": len(window.scored), "wrong": window.wrong,
        "most_difference": window.most_difference, "errors": window.errors, "num_errors": window.num_errors,
        "statuses": {str(status or "none"): n for status, n in sorted(window.statuses.items())},
        "seconds": seconds, "requests_per_second": len(window.scored) / seconds,
        "items_per_second": window.items / seconds,
        "tokens_per_second": sum(one.tokens for one in window.scored) / seconds,
        "latency_ms": latencies(window.latencies) if window.scored else {}, "client_cpu": window.client_cpu,
    }  # fmt: skip


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
