"""Prometheus metrics in a registry of their own: what the front measures, and what the engines tell when scraped.

Nothing here is global, so that several applications can live in one process, as in tests.
"""

from collections.abc import Iterator
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onepass.server.engines.service import Service
from onepass.server.engines.token_cache import TokenCache
from onepass.server.http.request_context import RequestContext

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
KEPT_SERIES = 512  # pairs of route and status, both of which have few values
RATIOS = (1.0, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0, 3.0, 5.0)
# Of `Service.stats()`: these only grow, whatever else it tells may fall.
GROWING = {
    "engine_steps": "Steps that the engines ran.",
    "engine_rows": "Rows in those steps; rows / steps is the batch size.",
    "engine_compilations": "Programs compiled.",
    "engine_device_seconds": "Time the device worked.",
    "engine_padding_flops_done": "Arithmetic done, padding included.",
    "engine_padding_flops_needed": "Arithmetic that was needed.",
    "cache_evictions": "Contexts that gave way to others.",
    "cache_hit_tokens": "Tokens found in kept contexts.",
    "restarts": "Engine processes started again.",
}
STANDING = {
    "engine_compiling": "Programs being compiled or read.",
    "cache_bytes": "Bytes of kept contexts.",
    "cache_budget_bytes": "Bytes that kept contexts may take.",
    "cache_peak_bytes": "The most bytes of pages ever in use; on a CPU memory is taken when a page is first used.",
    "cache_contexts": "Kept contexts.",
    "queue_requests": "Requests waiting or running.",
    "queue_tokens": "Tokens of those requests.",
}


class Metrics:
    """`token_cache` is set once there is one."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered.", ("route", "status"))
        self.items = self._counter("items", "Items scored.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of requests, the query counted once.")
        self.cached_tokens = self._counter("cached_tokens", "Tokens of requests that were not computed again.")
        self.seconds = self._histogram("request_seconds", "From arrival to answer.", SECONDS, ("route",))
        self.queue_seconds = self._histogram("queue_seconds", "Waiting for the device.", SECONDS)
        self.device_seconds = self._histogram("device_seconds", "On the device, a request.", SECONDS)
        self.padding = self._histogram("padding_ratio", "Work done over work needed, a request.", RATIOS)
        self.in_flight = Gauge("onepass_in_flight", "Requests being answered.", registry=self.registry)
        self.registry.register(_Told(service))
        self._by_route = lru_cache(maxsize=KEPT_SERIES)(self._series)

    def observe(self, exchange: RequestContext) -> None:
        requests, seconds = self._by_route(exchange.route, exchange.status)
        requests.inc()
        seconds.observe(exchange.seconds)
        if exchange.mode is None:  # nothing was computed
            return
        self.items.inc(exchange.items)
        self.prompt_tokens.inc(exchange.prompt_tokens)
        self.cached_tokens.inc(exchange.cached_tokens)
        self.queue_seconds.observe((exchange.queue_ms or 0.0) / 1e3)
        self.device_seconds.observe((exchange.device_ms or 0.0) / 1e3)
        self.padding.observe(exchange.padding_ratio or 1.0)

    def _series(self, route: str, status: int) -> tuple[Counter, Histogram]:
        return self.requests.labels(route, str(status)), self.seconds.labels(route)

    def render(self) -> bytes:
        return generate_latest(_WithoutCreated(self.registry))

    def _counter(self, name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"onepass_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(f"onepass_{name}", what, labels, registry=self.registry, buckets=buckets)


class _WithoutCreated(Collector):
    """A registry without the `_created` series, which repeat the time of the start for every counter and histogram."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _Told(Collector):
    """What the service says of itself at the moment of a scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        health = self._service.health()
        yield GaugeMetricFamily("onepass_ready", "1 when a request would be served.", float(health.ready))
        for name, value in self._service.stats().items():
            if name in GROWING:
                yield CounterMetricFamily(f"onepass_{name}", GROWING[name], value)
            else:
                yield GaugeMetricFamily(f"onepass_{name}", STANDING.get(name, name.replace("_", " ")), value)
        cache = getattr(self._service, "token_cache", None)
        if isinstance(cache, TokenCache):
            yield CounterMetricFamily("onepass_item_cache_hits", "Items whose tokens were known.", cache.hits)
            yield CounterMetricFamily("onepass_item_cache_misses", "Items that were tokenised.", cache.misses)
            yield GaugeMetricFamily("onepass_item_cache_bytes", "Bytes of known items.", cache.bytes)
