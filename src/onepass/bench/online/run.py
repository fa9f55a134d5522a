"""A benchmark of a running server from beginning to end: labels, warm-up, windows and checks, a row after another.

Every row is warmed up by its own loop until a whole round of it compiles nothing. Sending is `loops`, judging is
`row`, and what is kept of it all is `document`.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from onepass.bench.mixed import MixedStream
from onepass.bench.offline.mixed_run import ALONE, beside_small
from onepass.bench.online.check import check
from onepass.bench.online.connection import Address
from onepass.bench.online.decisions import DecisionRequests
from onepass.bench.online.loops import Source, arrivals, closed_loop, open_loop
from onepass.bench.online.mixed import MixedOptions, MixedRequests, mixed_row_over_http
from onepass.bench.online.ramp import Step, best_of, ramp
from onepass.bench.online.requests import Kind, MixPart, Requests, RequestStream
from onepass.bench.online.row import Criteria, HttpRow, http_row
from onepass.bench.online.target import Counts, Target
from onepass.bench.online.window import Window
from onepass.errors import ConfigError
from onepass.evidence.tolerance import BETWEEN_MODES

Loop = Literal["closed", "open", "ramp"]
Tell = Callable[[HttpRow], None]
Send = Callable[[float], Awaitable[Window]]  # for so many seconds
ROUND_SECONDS = 5.0  # of warm-up
FIRST_ROUND = 64  # requests that are prepared for it
SPARE = 1.5  # times as many requests are prepared as the warm-up's rate asks for


@dataclass(frozen=True)
class HttpPlan:
    """What a benchmark over HTTP is asked for. `rates` are requests a second; a ramp begins with the first of them."""

    url: str
    mix: tuple[MixPart, ...]
    kind: Kind = "ids"
    loop: Loop = "closed"
    clients: tuple[int, ...] = (1, 8)
    rates: tuple[float, ...] = ()
    p99_ms: float = 500.0
    seconds: float = 30.0
    warm_up_seconds: float = 120.0
    check_items: int = 10
    attempts: int = 3  # at a window in which nothing compiles
    overload: bool = False
    seed: int = 0
    timeout: float = 600.0
    mixed: MixedOptions | None = None  # mixed traffic first, and then `mix` alone beside it

    def __post_init__(self) -> None:
        if self.loop == "open" and not self.rates:
            raise ConfigError("an open loop needs --rates, requests a second, such as --rates 2,4,8")
        Address.parse(self.url)


@dataclass
class HttpBenchRun:
    """`others` are streams of rows beside those of `requests`."""

    target: Target
    requests: RequestStream
    rows: list[HttpRow] = field(default_factory=list)
    others: list[RequestStream] = field(default_factory=list)


class HttpBench:
    def __init__(self, plan: HttpPlan, target: Target, requests: RequestStream) -> None:
        dtype = target.dtype
        if dtype not in BETWEEN_MODES:
            known = ", ".join(BETWEEN_MODES)
            raise ConfigError(f"a benchmark runs in one of {known}; the server's weights are {dtype}")
        tolerance = BETWEEN_MODES[dtype]
        self.plan = plan
        self.target = target
        self.source = Source(requests)
        self.judged = Criteria(requests, requests.checksum, dtype, tolerance, plan.overload)
        self._last: Counts | None = None  # after the row before; the check since then may have compiled

    async def closed(self, clients: int) -> HttpRow:
        async def send(seconds: float) -> Window:
            return await closed_loop(self.target, self.source, clients, seconds)

        return await self._row(f"http-closed-{clients}", send, clients)

    async def mixed(self, options: MixedOptions) -> list[HttpRow]:
        """A row for each number of clients. Requests go on where the row before ended: none comes twice."""
        rows = []
        for traffic in options.traffic(self.target.platform):
            items, roof = self.plan.check_items, options.roof_tflops
            rows.append(await mixed_row_over_http(self.target, self.source, self.judged, traffic, items, roof))
        return rows

    async def open(self, rate: float) -> HttpRow:
        async def send(seconds: float) -> Window:
            due = arrivals(rate, seconds, self.plan.seed)
            self.source.prepare(len(due))
            return await open_loop(self.target, self.source, due, rate)

        return await self._row(f"http-open-{rate:g}", send, round(rate * self.plan.seconds))

    async def ramp(self, tell: Tell) -> HttpRow:
        """One row: that of the highest rate within the limit, or of the lowest tried, and void."""
        limit = self.plan.p99_ms
        rows: dict[float, HttpRow] = {}

        async def attempt(rate: float) -> Step:
            row = rows[rate] = await self.open(rate)
            tell(row)
            why = beyond(row, limit)
            return Step(rate, not why, why)

        first = self.plan.rates[0] if self.plan.rates else await self._first_rate()
        steps = await ramp(first, attempt)
        found = best_of(steps)
        chosen = rows[found.rate if found else min(rows)]
        void = chosen.void if found else [*chosen.void, f"no rate is within the limit: {steps[-1].why}"]
        told = [{**asdict(step), "p99_ms": rows[step.rate].latency_ms.get("p99")} for step in steps]
        return replace(chosen, mode="http-ramp", limit_ms=limit, steps=told, void=list(dict.fromkeys(void)))

    async def _first_rate(self) -> float:
        """Half of what one client alone gets."""
        window = await closed_loop(self.target, self.source, 1, ROUND_SECONDS)
        if not window.scored:
            raise ConfigError(f"no request was answered with scores: {'; '.join(window.errors[:2])}")
        return 0.5 * len(window.scored) / window.seconds

    async def _row(self, mode: str, send: Send, expected: int) -> HttpRow:
        warm, before = await self._warm_up(send)
        rate = len(warm.scored) / max(warm.seconds, 1e-9)
        self.source.prepare(max(expected, round(SPARE * self.plan.seconds * rate)))
        thrown_away = 0
        while True:
            window = await send(self.plan.seconds)
            after = await self.target.counts()
            if after == before or window.num_errors or thrown_away == self.plan.attempts - 1:
                break
            before, thrown_away = after, thrown_away + 1
        self._last = after
        checked = await check(self.target, self.judged.requests, window, self.plan.check_items)
        row = http_row(mode, window, before, after, checked, self.judged)
        told = [f"windows thrown away before this one, because something compiled in them: {thrown_away}"]
        return replace(row, notes=[*row.notes, *told]) if thrown_away else row

    async def _warm_up(self, send: Send) -> tuple[Window, Counts]:
        """Rounds until one compiles nothing and finds its requests prepared, so that its rate is the server's and not
        the driver's; or until the time for it is up: the row will tell what still compiles then."""
        until = time.monotonic() + self.plan.warm_up_seconds
        before = self._last or await self.target.counts()
        expected = FIRST_ROUND
        while True:
            self.source.prepare(expected)
            window = await send(min(ROUND_SECONDS, self.plan.seconds))
            after = await self.target.counts()
            is_warm = after == before and not window.made_late
            if is_warm or not window.scored or time.monotonic() > until:
                return window, after
            before, expected = after, max(expected, 2 * round(SPARE * window.sent))


def beyond(row: HttpRow, limit_ms: float) -> str:
    """Why a rate is not within the limit; "" when it is."""
    if row.void:
        return row.void[0]
    if row.overloaded:
        return f"{row.overloaded} of {row.requests} requests were refused with status 429"
    p99 = row.latency_ms["p99"]
    return f"p99 {p99:.0f} ms is above {limit_ms:g} ms" if p99 > limit_ms else ""


async def bench_http(plan: HttpPlan, api_key: str | None, tell: Tell) -> HttpBenchRun:
    target = await Target.open(Address.parse(plan.url), api_key, plan.timeout)
    try:
        if plan.mixed is not None:
            return await _bench_mixed(plan, plan.mixed, target, tell)
        requests = await _requests(plan, target)
        bench, ran = HttpBench(plan, target, requests), HttpBenchRun(target, requests)
        if plan.loop == "ramp":
            ran.rows.append(await bench.ramp(tell))
        for clients in plan.clients if plan.loop == "closed" else ():
            ran.rows.append(await bench.closed(clients))
            tell(ran.rows[-1])
        for rate in plan.rates if plan.loop == "open" else ():
            ran.rows.append(await bench.open(rate))
            tell(ran.rows[-1])
        return ran
    finally:
        await target.close()


async def _requests(plan: HttpPlan, target: Target) -> RequestStream:
    """Typed questions as text go to /v1/decisions; all else is scored with the likeliest labels."""
    names = [part.name for part in plan.mix]
    if "grid" in names and (plan.kind != "text" or len(names) > 1):
        raise ConfigError("over HTTP workload grid is questions about candidates: give --as text, and no other --mix")
    english = await target.english() if plan.kind == "text" else None
    if english is not None and names in (["decisions"], ["grid"]):
        return DecisionRequests(plan.mix[0], english, plan.seed)
    requests = Requests(plan.mix, target.vocab_size, plan.seed, english=english)
    return replace(requests, labels=await target.labels(requests))


async def _bench_mixed(plan: HttpPlan, options: MixedOptions, target: Target, tell: Tell) -> HttpBenchRun:
    """The traffic meets the server as it is; labels for `small` are asked for after it."""
    chosen = options.traffic(target.platform)[-1]
    requests = MixedRequests(MixedStream(target.vocab_size, plan.seed, chosen.kinds, chosen.clients))
    rows = await HttpBench(plan, target, requests).mixed(options)
    small = Requests(plan.mix, target.vocab_size, plan.seed)
    small = replace(small, labels=await target.labels(small))
    alone = replace(await HttpBench(plan, target, small).closed(chosen.clients), purpose=ALONE)
    rows = [beside_small(row, alone) for row in rows]
    for row in (*rows, alone):
        tell(row)
    return HttpBenchRun(target, requests, [*rows, alone], [small])
