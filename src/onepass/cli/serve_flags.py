"""Flags of `onepass serve`, a group each: network, engine, bounds, page, several hosts."""

import argparse
from pathlib import Path

from onepass.cli.parser import add_engine_options, add_source_options
from onepass.cli.types import port, positive, whole


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    _add_network(parser.add_argument_group("network"))
    _add_engine(parser.add_argument_group("engine"))
    _add_bounds(parser.add_argument_group("bounds"))
    _add_page(parser.add_argument_group("page"))
    _add_hosts(parser.add_argument_group("several hosts"))
    add_source_options(parser)


def _add_network(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=port, default=8000, metavar="N", help="0 takes a free one (default: 8000)")
    group.add_argument(
        "--served-model-name", action="append", default=[], metavar="NAME",
        help="name that requests may give in place of MODEL (repeatable; /v1/models lists the first one first)",
    )  # fmt: skip
    group.add_argument("--api-keys", type=Path, metavar="F", help="file of name:key lines; requests then need a key")
    group.add_argument("--cors-origin", action="append", default=[], metavar="O", help="allow this origin (repeatable)")
    group.add_argument("--tls-certificate", type=Path, metavar="F", help="serve HTTPS with this certificate chain")
    group.add_argument("--tls-key", type=Path, metavar="F", help="the certificate's private key")
    group.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", metavar="L",
        help="debug, info, warning or error (default: info)",
    )  # fmt: skip
    group.add_argument(
        "--log-format", choices=("auto", "json", "text"), default="auto", metavar="F",
        help="lines on stderr: json, text, or auto: text on a terminal, else json (default: auto)",
    )  # fmt: skip
    group.add_argument(
        "--tracing", action="store_true",
        help="an OpenTelemetry span per request; where they go is OpenTelemetry's set-up (docs/operations.md)",
    )  # fmt: skip


def _add_engine(group: "argparse._ArgumentGroup") -> None:
    add_engine_options(group)
    group.add_argument("--engines", type=positive, default=1, metavar="N", help="engine processes (default: 1)")
    group.add_argument("--chunk-size", type=positive, metavar="N", help="items per copy of the context in mode chunked")
    group.add_argument("--template", type=Path, metavar="F", help="TOML with the words to rank by (docs/rerankers.md)")
    group.add_argument(
        "--rank-by", choices=("auto", "likelihood", "label"), default="auto", metavar="METHOD",
        help="how to rank where a request does not say: auto (as the model tells), likelihood, label",
    )  # fmt: skip
    group.add_argument(
        "--calibration", default="auto", metavar="F",
        help="of decisions: auto (what onepass calibrate stored, or the model's own), none, or a file (default: auto)",
    )  # fmt: skip


def _add_page(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--visualizer", action="store_true",
        help="the view Modes and POST /v1/modes: run a request in every mode. It takes the device for seconds, "
        "compiles programs when it is first used, and needs room for a second cache of 256 MiB",
    )  # fmt: skip


def _add_hosts(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="split the model over several processes; where process 0 is"
    )
    group.add_argument("--num-processes", type=positive, metavar="N", help="how many there are")
    group.add_argument("--process-id", type=whole, metavar="I", help="which of them this is; 0 takes the requests")


def _add_bounds(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--max-body-bytes", type=positive, default=64 << 20, metavar="N", help="default: 64 MiB")
    group.add_argument(
        "--max-queue-tokens", type=positive, default=1 << 20, metavar="N",
        help="tokens that may wait or run; beyond that 429 (default: 1,048,576)",
    )  # fmt: skip
    group.add_argument(
        "--max-queue-seconds", type=float, default=120.0, metavar="S",
        help="of work that may wait, by this server's measured rate; beyond that 429 (default: 120)",
    )  # fmt: skip
    group.add_argument("--max-requests", type=positive, default=1024, metavar="N", help="at a time (default: 1024)")
    group.add_argument(
        "--item-cache-bytes", type=whole, default=64 << 20, metavar="N", help="for tokenised items (default: 64 MiB)"
    )
    group.add_argument(
        "--drain-seconds", type=float, default=60.0, metavar="S", help="for what has begun, after SIGTERM (default: 60)"
    )
    group.add_argument(
        "--silence-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="a silent engine is restarted after (default: 10)",
    )
    group.add_argument(
        "--step-seconds", type=float, default=300.0, metavar="S", help="one step may take (default: 300)"
    )
