"""Everything `onepass serve` decides before anything starts, as frozen nouns. Reading a command line is `cli.serve`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onepass.server.engines.admission import Budget
from onepass.server.engines.process import Timeouts
from onepass.server.http.body_limits import Limits


@dataclass(frozen=True)
class EngineOptions:
    """What an engine process is started with; `engine` holds fields of `engine.config.EngineConfig`."""

    model: str
    dtype: str = "auto"
    revision: str | None = None
    offline: bool = False
    cache_dir: str | None = None
    adapter: str | None = None  # a LoRA adapter: a folder, or a name on the hub
    template: str | None = None  # a file with the words to rank by
    rank_by: str = "auto"  # the method of rerank requests that name none
    calibration: str = "auto"  # of decisions: auto, none, or a file
    programs_dir: str | None = None  # where compiled programs are kept; None: in the user's cache
    engine: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, Any] | None = None  # fields of `parallel.hosts.Hosts`: the model spans several processes
    log_level: str = "info"
    visualizer: bool = False  # run requests of /v1/modes in every mode


@dataclass(frozen=True)
class Tls:
    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerOptions:
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000
    engines: int = 1
    served_names: tuple[str, ...] = ()  # that requests may give; none: the model's own name
    keys: dict[str, str] = field(default_factory=dict)  # name → key
    cors_origins: tuple[str, ...] = ()
    tracing: bool = False  # a span per request
    tls: Tls | None = None
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=lambda: Budget(tokens=1 << 20, requests=1024))
    patience: Timeouts = field(default_factory=Timeouts)
    drain_seconds: float = 60.0
    item_cache_bytes: int = 64 << 20
