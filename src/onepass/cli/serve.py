"""`onepass serve [MODEL]`: the HTTP server. Turns options into `server.config` and runs it until it is told to stop.

The only place that reads the server's environment (`ONEPASS_API_KEYS`). The flags are `serve_flags`; everything else is
`onepass.server`.
"""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_quiet, engine_options
from onepass.cli.serve_flags import add_serve_flags
from onepass.errors import ConfigError, OnepassError

if TYPE_CHECKING:
    from onepass.server.config import ServerOptions
    from onepass.server.logs import Format

DESCRIPTION = """\
Serves a model over HTTP: /v1/score, /v1/contexts, /rerank in the dialects of Cohere, Jina, Voyage, TEI, vLLM
and SGLang, /metrics, /health, /docs. One process takes requests, another has the device and is restarted
when it dies. SIGTERM finishes what has begun and refuses what comes.

  onepass serve                                          the default model on http://127.0.0.1:8000
  onepass serve Qwen/Qwen3-Reranker-0.6B --host 0.0.0.0 --api-keys keys.txt
  curl localhost:8000/v1/score --json '{"query": "The capital of", "items": [" France is"], "labels": [" Paris"]}'

API keys: a file with a line `name:key` each, or ONEPASS_API_KEYS=name:key,name:key.
Exit status: 0 stopped when told to, 2 the options cannot be served."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="onepass serve [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    add_serve_flags(parser)
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        from onepass.server.serve import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server needs the package {error.name}: pip install 'onepass[server]'") from error
    from onepass.server.logs import capture_process, configure_logs

    logger = configure_logs(args.log_level, form=log_format(args, sys.stderr.isatty()))
    capture_process(logger.handlers[0])
    try:
        hosts = hosts_of(args)
        if hosts is not None and hosts["process"] > 0:
            return follow_until_the_end(args, hosts, logger)
        return serve(options_of(args, os.environ.get("ONEPASS_API_KEYS", "")), quiet=args.quiet)
    except OnepassError as error:
        logger.error("%s", error)
        return 2


def log_format(args: argparse.Namespace, terminal: bool) -> "Format":
    """People read text, programs JSON."""
    if args.log_format == "auto":
        return "text" if terminal else "json"
    return cast("Format", args.log_format)


def hosts_of(args: argparse.Namespace) -> dict[str, Any] | None:
    """The fields of `parallel.hosts.Hosts`."""
    given = (args.coordinator, args.num_processes, args.process_id)
    if given == (None, None, None):
        return None
    if None in given:
        raise ConfigError("--coordinator, --num-processes and --process-id belong together; some of them are missing")
    if args.engines != 1:
        raise ConfigError(f"several processes share one model, so --engines must be 1; got {args.engines}")
    return {"coordinator": args.coordinator, "processes": args.num_processes, "process": args.process_id}


def follow_until_the_end(args: argparse.Namespace, hosts: dict[str, Any], logger: logging.Logger) -> int:
    """A process without a server of its own: it computes what process 0 says."""
    from onepass.engine.multihost.follower import follow
    from onepass.parallel.hosts import Hosts

    options = options_of(args, "").engine
    engine = {**options.engine, "programs_dir": args.programs_dir}
    try:
        follow(
            options.model,
            Hosts(**hosts),
            dtype=args.dtype,
            revision=options.revision,
            offline=options.offline,
            cache_dir=args.cache_dir,
            adapter=options.adapter,
            **engine,
        )
    except ConfigError:
        raise
    except OnepassError as error:
        # JAX would end this process with a core dump when it finds that process 0 has gone.
        logger.error("process %s: %s", hosts["process"], error)
        os._exit(70)
    return 0


def options_of(args: argparse.Namespace, keys: str) -> "ServerOptions":
    from onepass.server.config import EngineOptions, ServerOptions, Tls
    from onepass.server.engines.admission import Budget
    from onepass.server.engines.process import Timeouts
    from onepass.server.http.body_limits import Limits

    engine = engine_options(args) | ({} if args.chunk_size is None else {"chunk_size": args.chunk_size})
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together; one of them is missing")
    return ServerOptions(
        engine=EngineOptions(
            model=args.model,
            dtype=args.dtype,
            revision=args.revision,
            offline=args.offline,
            cache_dir=_text(args.cache_dir),
            adapter=_adapter(args.adapter),
            template=_text(args.template),
            rank_by=args.rank_by,
            calibration=calibration_of(args.calibration),
            programs_dir=_text(args.programs_dir),
            engine={**engine, "warm_up": True},
            hosts=hosts_of(args),
            log_level=args.log_level,
            visualizer=args.visualizer,
        ),
        host=args.host,
        port=args.port,
        engines=args.engines,
        served_names=served_names(args.served_model_name),
        keys=read_keys(args.api_keys, keys),
        cors_origins=tuple(args.cors_origin),
        tracing=args.tracing,
        tls=Tls(args.tls_certificate, args.tls_key) if args.tls_certificate else None,
        limits=Limits(max_body_bytes=args.max_body_bytes, max_decompressed_bytes=2 * args.max_body_bytes),
        budget=Budget(args.max_queue_tokens, args.max_requests, args.max_queue_seconds),
        patience=Timeouts(silence=args.silence_seconds, step=args.step_seconds),
        drain_seconds=args.drain_seconds,
        item_cache_bytes=args.item_cache_bytes,
    )


def calibration_of(choice: str) -> str:
    """auto, none, or the whole path of a file, which is read once before any engine starts."""
    from onepass.decisions.calibration_store import chosen_calibration

    if choice in ("auto", "none"):
        return choice
    chosen_calibration(choice)
    return str(Path(choice).absolute())


def served_names(given: list[str]) -> tuple[str, ...]:
    """Names in the order given, each once."""
    if not all(name.strip() for name in given):
        raise ConfigError("--served-model-name must not be empty")
    return tuple(dict.fromkeys(given))


def read_keys(file: Path | None, environment: str) -> dict[str, str]:
    """Names and keys from a file's lines and from the environment's list."""
    lines = environment.split(",")
    if file is not None:
        try:
            lines += file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"--api-keys must be a readable file; {error}") from error
    keys: dict[str, str] = {}
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        if not colon or not name.strip() or not key.strip():
            raise ConfigError("an API key must be a line name:key; a line has no colon, no name or no key")
        if name.strip() in keys or key.strip() in keys.values():
            raise ConfigError(f"API keys must be distinct; {name.strip()!r} or its key is given twice")
        keys[name.strip()] = key.strip()
    if file is not None and not keys:
        raise ConfigError("--api-keys must hold at least one key: without one, everybody would be let in")
    return keys


def _adapter(name: str | None) -> str | None:
    """A folder's whole path, for the engine process; a name on the hub as it is."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
