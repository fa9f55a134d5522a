"""Mixed traffic over HTTP: the stream of `mixed` as JSON bodies, one cold window a row, then workload `small` alone.

Nothing is sent before the window: what the server compiles from the first request on is counted in its row. Sending is
`loops`, judging `row`, scorers in this process `mixed_window`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from onepass.bench.mixed import KINDS, MixedStream, Traffic, fields_of, some_items
from onepass.bench.offline.mixed_row import traffic_notes
from onepass.bench.online.check import CheckResult, score_serially
from onepass.bench.online.loops import Source, closed_loop
from onepass.bench.online.requests import SCORE, Labels, PreparedRequest
from onepass.bench.online.row import Criteria, HttpRow, http_row
from onepass.bench.online.target import Target
from onepass.bench.online.window import Window
from onepass.bench.roofline import cost_model_of, traffic_needed
from onepass.bench.row import Differences

PREPARED_PER_CLIENT = 64
CHECKED_PER_KIND = 2


@dataclass(frozen=True)
class MixedOptions:
    """What was asked for; what was not is decided by the server's platform. A row for each number of clients."""

    clients: tuple[int, ...] = ()
    seconds: float | None = None
    num_requests: int | None = None
    kinds: tuple[str, ...] = ()
    roof_tflops: float | None = None  # what the server's machine reaches in a large product

    def traffic(self, platform: str) -> list[Traffic]:
        return [
            Traffic.decide(platform, clients, self.seconds, self.num_requests, self.kinds)
            for clients in self.clients or (None,)
        ]


@dataclass(frozen=True)
class MixedRequests:
    """The stream as `loops` sends it. Labels are the stream's own, a set a request."""

    stream: MixedStream
    labels: Labels = field(default_factory=Labels)

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def checksum(self) -> str:
        return self.stream.checksum

    @property
    def path(self) -> str:
        return SCORE

    def prepare(self, number: int) -> PreparedRequest:
        request = self.stream.request(number)
        return PreparedRequest(number, request.kind, len(request.sizes.items), orjson.dumps(fields_of(request.request)))

    def serial(self, number: int, items: Sequence[int]) -> bytes:
        chosen = some_items(self.stream.request(number).request, items)
        return orjson.dumps({**fields_of(chosen), "mode": chosen.mode})

    def describe(self) -> dict[str, Any]:
        return {**self.stream.describe(), "kind": "ids"}


@dataclass
class KindsWindow(Window):
    """Keeps the last answers of every kind, so that rare kinds are checked as often as others."""

    _by_kind: dict[str, list[tuple[int, list[list[float]]]]] = field(default_factory=dict)

    def see(self, number: int, rows: list[list[float]]) -> None:
        kept = self._by_kind.setdefault(self.scored[-1].part, [])
        kept.append((number, rows))
        del kept[:-CHECKED_PER_KIND]
        self.kept = [one for some in self._by_kind.values() for one in some]


async def mixed_row_over_http(
    target: Target, source: Source, judged: Criteria, traffic: Traffic, check_items: int, roof_tflops: float | None
) -> HttpRow:
    """One window from the first request on; `source` may have sent some to other clients before."""
    ahead = PREPARED_PER_CLIENT * traffic.clients
    source.prepare(min(ahead, traffic.num_requests or ahead))
    before = await target.counts()
    window = KindsWindow()
    seconds = float("inf") if traffic.seconds is None else traffic.seconds
    await closed_loop(target, source, traffic.clients, seconds, window, most=traffic.num_requests)
    after = await target.counts()
    most_items = max(check_items, len(window.kept))
    answers = await score_serially(target, judged.requests, window, most_items, CHECKED_PER_KIND * len(KINDS))
    differences = Differences.of_drawn_labels(answers.pairs) if answers.pairs and answers.problem is None else None
    checked = CheckResult(differences, answers.problem)
    row = http_row(f"http-closed-{traffic.clients}", window, before, after, checked, judged)
    notes = [note for note in row.notes if "were made within the window" not in note]
    reached, flops = _reached(target, judged, window, roof_tflops)
    row = replace(row, in_flight=traffic.clients, reached=reached, flops_needed=flops)
    return replace(row, notes=list(dict.fromkeys([*traffic_notes(len(window.scored)), *notes])))


def _reached(target: Target, judged: Criteria, window: Window, roof: float | None) -> tuple[dict[str, float], float]:
    """A server does not tell what its machine reaches in a large product; whoever knows gives it."""
    requests = judged.requests
    assert isinstance(requests, MixedRequests)
    work = cost_model_of(target.info["details"]["model"]["config"], target.dtype)
    flops = traffic_needed(work, (requests.stream.sizes(one.number) for one in window.scored)).flops
    tflops = flops / max(window.seconds, 1e-9) / 1e12
    return {"tflops": tflops} | ({} if roof is None else {"fraction": tflops / roof}), flops
