"""What one caller can do to the others: large and broken requests, with `/live` sampled every 10 ms meanwhile.

    python benchmarks/hostile.py [MODEL] [--url URL --pid PID] [--only NAME,...] [--out FILE]

Starts `onepass serve` on the loopback, or takes a server that runs already (`--pid`: its front process, for memory).
For each case it stores the answers, how long they took, the machine's load average, the resident memory of the front
before, at its peak and ten seconds after, and the latency of `GET /live` on a connection of its own while the case ran:
a sample that had to wait behind another counts from when it was due. A server that tokenises or parses while it holds
the interpreter's lock shows as a maximum of seconds. Exit status: 0, or 1 if an answer was 5xx other than 504 or never
came.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onepass.bench.online.connection import Address
from onepass.bench.online.live import live_samples
from onepass.bench.online.server import own_server, resident_bytes
from onepass.evidence.provenance import commit, hardware, versions

LIVE_SECONDS = 0.01
QUIET_SECONDS = 3.0
MB = 1 << 20
PATIENCE_SECONDS = 300.0
WORDS = "word "


@dataclass(frozen=True)
class Request:
    """One request of a case. `gone_after`: seconds after sending at which the client closes its connection."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    gone_after: float | None = None


@dataclass(frozen=True)
class Case:
    name: str
    requests: Callable[[], list[Request]]


def post(path: str, body: Any, headers: dict[str, str] | None = None, gone_after: float | None = None) -> Request:
    return Request(path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers or {}, gone_after)


def query(text: str, **options: Any) -> Request:
    return post("/v1/score", {"query": text, "items": ["b"], "labels": [" Paris"]}, **options)


def words(megabytes: float) -> str:
    return WORDS * int(megabytes * MB / len(WORDS))


def ids_body(count: int) -> bytes:
    return b'{"query":[' + b"300," * count + b'1],"items":[[1]],"label_token_ids":[3]}'


CASES = [
    Case("nothing", list),
    Case("query of 10 MB, one letter", lambda: [query("a" * (10 * MB))]),
    Case("query of 10 MB, words", lambda: [query(words(10))]),
    Case("item of 10 MB", lambda: [post("/v1/score", {"query": "q", "items": [words(10)], "labels": [" Paris"]})]),
    Case("document of 10 MB, max_tokens_per_doc 20",
         lambda: [post("/rerank", {"query": "q", "documents": [words(10)], "max_tokens_per_doc": 20})]),
    Case("label of 10 MB", lambda: [post("/v1/score", {"query": "q", "items": ["b"], "labels": [words(10)]})]),
    Case("three queries of 10 MB at once", lambda: [query(words(10)) for _ in range(3)]),
    Case("three queries of 10 MB, clients gone at once", lambda: [query(words(10), gone_after=0.0) for _ in range(3)]),
    Case("query of 5 MB, X-Request-Timeout-Ms 500",
         lambda: [query(words(5), headers={"X-Request-Timeout-Ms": "500"})]),
    Case("query of 30 MB", lambda: [query(words(30))]),
    Case("/tokenize of 10 MB", lambda: [post("/tokenize", {"prompt": words(10)})]),
    Case("query of 600 kB, words (within the bytes of 8,192 tokens)", lambda: [query(words(0.57))]),
    Case("query of 600 kB, one letter", lambda: [query("a" * 600_000)]),
    Case("100 items of 600 kB, one letter",
         lambda: [post("/v1/score", {"query": "q", "items": ["a" * 600_000] * 100, "labels": [" Paris"]})]),
    Case("60 MB of documents of 30 kB each, X-Request-Timeout-Ms 2000",
         lambda: [post("/rerank", {"query": "q", "documents": [f"{n} " + words(0.03) for n in range(2000)]},
                       {"X-Request-Timeout-Ms": "2000"})]),
    Case("the same, cut to 20 tokens each, client gone after 2 s",
         lambda: [post("/rerank", {"query": "q", "documents": [f"{n} " + words(0.03) for n in range(2000)],
                                   "max_tokens_per_doc": 20}, gone_after=2.0)]),
    Case("continuation of 10 MB",
         lambda: [post("/v1/score", {"query": "q", "items": ["b"], "continuations": [words(10)]})]),
    Case("60 MB of JSON, one text", lambda: [query(words(60))]),
    Case("60 MB of token ids", lambda: [post("/v1/score", ids_body(15 * MB))]),
    Case("4 MB of token ids", lambda: [post("/v1/score", ids_body(MB))]),
    Case("60 MB of empty objects",
         lambda: [post("/v1/score", b'{"query":"q","labels":[" a"],"items":[' + b"{}," * (20 * MB) + b"1]}")]),
    Case("1,000,000 documents of one letter",
         lambda: [post("/rerank", b'{"query":"q","documents":[' + b'"a",' * 1_000_000 + b'"a"]}')]),
    Case("32,768 documents of one letter",
         lambda: [post("/rerank", {"query": "q", "documents": ["a"] * 32_768}, {"X-Request-Timeout-Ms": "20000"})]),
    Case("40,000 label ids",
         lambda: [post("/v1/score", {"query": "q", "items": ["b"], "label_token_ids": list(range(40_000))})]),
    Case("/detokenize of 1,000,000 ids", lambda: [post("/detokenize", {"tokens": [300] * 1_000_000})]),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="process of that server's front, to read its memory")
    parser.add_argument("--only", default="", help="cases whose names contain one of these, comma separated")
    parser.add_argument("--revision", default="", help="of a server that runs already, for the record")
    parser.add_argument("--serve-option", action="append", default=[], help="such as --cache-bytes=0")
    parser.add_argument("--out", type=Path, help="file for the results")
    args = parser.parse_args()
    if (args.url is None) != (args.pid is None):
        parser.error("--url and --pid are given together")
    options = [word for option in args.serve_option for word in option.split("=", 1)]
    with nullcontext() if args.url else own_server(args.model, options) as server:
        url, pid = (args.url, args.pid) if server is None else (server.url, server.process.pid)
        rows = asyncio.run(run_cases(url, pid, [part for part in args.only.split(",") if part]))
    document = {
        "object": "hostile", "model": args.model, "rows": rows, "commit": args.revision or commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "hardware": hardware(), "versions": versions(),
        "command": " ".join(sys.argv),
    }  # fmt: skip
    print(markdown(rows))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(not sound(status) for row in rows for status in row["statuses"]) else 0


def sound(status: int | None) -> bool:
    return status is not None and (status < 500 or status == 504)


async def run_cases(url: str, pid: int, only: list[str]) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        if only and not any(part in case.name for part in only):
            continue
        rows.append(await run_case(case, url, pid))
        print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


async def run_case(case: Case, url: str, pid: int) -> dict[str, Any]:
    requests = await asyncio.to_thread(case.requests)
    before = resident_bytes(pid)
    peak = [before]
    stop = asyncio.Event()
    watching = asyncio.create_task(sample_memory(pid, peak, stop))
    async with live_samples(Address.parse(url), LIVE_SECONDS) as live:
        began = time.perf_counter()
        answers = await asyncio.gather(*(send(url, request) for request in requests))
        seconds = time.perf_counter() - began
        await asyncio.sleep(QUIET_SECONDS)  # work that goes on after its client is gone shows here
    stop.set()
    await watching
    await asyncio.sleep(10.0 - QUIET_SECONDS)
    return {
        "case": case.name, "bytes": sum(len(request.body) for request in requests),
        "statuses": [answer.status for answer in answers if not answer.gone],
        "codes": [answer.code for answer in answers if not answer.gone],
        "seconds": round(max([answer.seconds for answer in answers] or [seconds]), 3),
        "live_ms": live.milliseconds(), "load_average": round(os.getloadavg()[0], 1),
        "rss_mb": {"before": mb(before), "peak": mb(max(peak)), "after": mb(resident_bytes(pid))},
    }  # fmt: skip


@dataclass(frozen=True)
class Answer:
    status: int | None
    code: str | None
    seconds: float
    gone: bool = False


async def send(url: str, request: Request) -> Answer:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await connect(url)
            fields = {"Host": "hostile", "Content-Type": "application/json", **request.headers}
            fields |= {"Content-Length": str(len(request.body)), "Connection": "close"}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"POST {request.path} HTTP/1.1\r\n{head}\r\n".encode() + request.body)
            try:
                await writer.drain()
                if request.gone_after is not None:
                    await asyncio.sleep(request.gone_after)
                    return Answer(None, None, time.perf_counter() - began, gone=True)
                text = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        return Answer(None, type(error).__name__, time.perf_counter() - began)
    status = re.match(rb"HTTP/1\.1 (\d+)", text)
    code = re.search(rb'"code":"(\w+)"', text[:4096])
    return Answer(int(status[1]) if status else None, code[1].decode() if code else None, time.perf_counter() - began)


async def sample_memory(pid: int, peak: list[int], stop: asyncio.Event) -> None:
    while not stop.is_set():
        peak.append(resident_bytes(pid))
        await asyncio.sleep(0.05)


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    at = urlsplit(url)
    return await asyncio.open_connection(at.hostname, at.port, limit=1 << 26)


def mb(size: int) -> int:
    return round(size / 1e6)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | answer | s | /live p50, p99, max, ms | front before, peak, 10 s after, MB |",
        "|---|---|---:|---|---|",
    ]
    for row in rows:
        answers = ", ".join(f"{s} {c or ''}".strip() for s, c in zip(row["statuses"], row["codes"], strict=True))
        live, rss = row["live_ms"], row["rss_mb"]
        lines.append(
            f"| {row['case']} | {answers or 'none wanted'} | {row['seconds']:.2f} | {live['p50']}, {live['p99']}, "
            f"{live['max']} | {rss['before']}, {rss['peak']}, {rss['after']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
