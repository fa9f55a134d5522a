"""The server that is driven: what it says of itself, its counts from /metrics, its tokenizer, and one request scored.

Compilations are read from `onepass_engine_compilations_total`, the engine's own count of programs; JAX's count is not
told over HTTP. Engines tell their counts once a second, so `counts` first waits until what has happened is in them.
"""

import asyncio
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import orjson

from onepass.bench.online.connection import Address, Answer, Connections, TransportError
from onepass.bench.online.requests import SCORE, Labels, Requests
from onepass.bench.online.text import English, pieces
from onepass.errors import ConfigError, EngineUnavailable
from onepass.evidence.tolerance import numbers_name

TOLD_WITHIN_SECONDS = 2.2  # two of the server's pings to its engines, and some
COMPILATIONS = "onepass_engine_compilations_total"
COMPILING = "onepass_engine_compiling"
RESTARTS = "onepass_restarts_total"
PAGES = "onepass_cache_peak_bytes"
LONGEST_COMPILATION = 600.0  # seconds


@dataclass(frozen=True)
class Counts:
    """Since the engine started; a restart begins anew."""

    compilations: int
    restarts: int


class Target:
    def __init__(self, connections: Connections, info: dict[str, Any]) -> None:
        self.connections = connections
        self.info = info

    @classmethod
    async def open(cls, address: Address, api_key: str | None = None, timeout: float = 600.0) -> "Target":
        """Raises when nobody answers there, or when requests would not be served now."""
        connections = Connections(address, api_key, timeout)
        try:
            answer = await connections.ask("GET", "/info")
            info = answer.json()
        except TransportError as error:
            raise EngineUnavailable(f"no server answers at {address}: {error}", None, "unreachable") from error
        if answer.status != 200:
            raise ConfigError(f"{address}/info answered with status {answer.status}: {shown(answer)}")
        if not isinstance(info, dict) or "dtype" not in info.get("details", {}):
            reason = info.get("health", {}).get("reason", "it does not say") if isinstance(info, dict) else "no object"
            raise EngineUnavailable(f"the server at {address} is not ready to be measured: {reason}", None)
        return cls(connections, info)

    @property
    def model(self) -> str:
        return str(self.info["model"])

    @property
    def dtype(self) -> str:
        """Of its weights, or how the layers' are quantized."""
        details = self.info["details"]
        return numbers_name(str(details["dtype"]), details.get("engine", {}).get("quantize"))

    @property
    def platform(self) -> str:
        return str(self.info["details"]["hardware"]["platform"])

    @property
    def vocab_size(self) -> int:
        return int(self.info["details"]["model"]["config"]["vocab_size"])

    async def score(self, body: bytes, path: str = SCORE) -> Answer:
        return await self.connections.ask("POST", path, body)

    async def counts(self) -> Counts:
        """What has happened until now; a compilation that is under way is waited for and counted."""
        until = time.monotonic() + LONGEST_COMPILATION
        while True:
            await asyncio.sleep(TOLD_WITHIN_SECONDS)
            answer = await self.connections.ask("GET", "/metrics")
            if answer.status != 200:
                raise ConfigError(f"/metrics answered with status {answer.status}: {shown(answer)}")
            text = answer.body.decode()
            if not _metric(text, COMPILING) or time.monotonic() > until:
                return Counts(_metric(text, COMPILATIONS), _metric(text, RESTARTS))

    async def pages_bytes(self) -> int:
        """The most bytes of the pool ever in use. A CPU's memory is taken page by page, so it grows by as much."""
        answer = await self.connections.ask("GET", "/metrics")
        return _metric(answer.body.decode(), PAGES) if answer.status == 200 else 0

    async def english(self) -> English:
        """Texts for this server's tokenizer."""
        words = pieces()
        body = orjson.dumps({"prompt": words, "add_special_tokens": False})
        answer = await self.connections.ask("POST", "/tokenize", body)
        if answer.status != 200:
            raise ConfigError(f"text needs the server's tokenizer; it answered {answer.status}: {shown(answer)}")
        return English(dict(zip(words, answer.json()["count"], strict=True)))

    async def labels(self, requests: Requests) -> Labels:
        """The likeliest of some candidates, as the engine's benchmark chooses them."""
        candidates = requests.candidates()
        candidate_requests = replace(requests, labels=Labels(tuple(candidates)))
        answer = await self.score(candidate_requests.body(requests.beginning(), mode="serial"))
        if answer.status != 200:
            raise ConfigError(f"the first request was answered with status {answer.status}: {shown(answer)}")
        return Labels.likeliest(candidates, answer.json()["scores"])

    async def close(self) -> None:
        await self.connections.close()


def shown(answer: Answer) -> str:
    """An error's own message, or the beginning of whatever came."""
    try:
        return str(answer.json()["message"])[:300]
    except (TransportError, KeyError, TypeError):
        return answer.body[:200].decode("utf-8", "replace")


def _metric(text: str, name: str) -> int:
    """The sum over its label sets."""
    values = [line.rpartition(" ")[2] for line in text.splitlines() if re.match(rf"{name}(\{{| )", line)]
    if not values:
        raise ConfigError(f"/metrics must tell {name}; without it nobody knows what was compiled in the window")
    return round(sum(map(float, values)))
