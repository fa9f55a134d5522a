"""`onepass bench --url URL`: drives a running server the way those who call it would, and checks what it answers.

Only options and printing are here; sending, checking and judging are `onepass.bench.online.run` and its neighbours.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onepass.cli.bench.options import check_traffic_options
from onepass.cli.bench.show import show
from onepass.cli.types import above_zero
from onepass.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from onepass.bench.online.row import HttpRow
    from onepass.bench.online.run import HttpPlan

DEFAULTS: dict[str, Any] = {
    "loop": "closed",
    "clients": (1, 8),
    "rates": (),
    "p99_ms": 500.0,
    "seconds": 30.0,
    "warm_up_seconds": 120.0,
    "sent_as": "ids",
    "mix": (),
    "api_key": None,
    "overload": False,
    "roof_tflops": None,
}
TRAFFIC = ("clients", "seconds")  # also of mixed traffic without a server
# Options of `onepass bench` that say how an engine in this process is timed.
ENGINE_ONLY = (
    "modes", "dtype", "quantize", "quantize_activations", "sweep", "speedup_table", "in_flight", "repeats", "warm_up",
    "peers", "requests",
    "tp", "dp", "revision", "offline", "cache_dir", "adapter",
)  # fmt: skip


def add_http_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a running server (with --url)")
    group.add_argument("--url", metavar="URL", help="drive the server at http://HOST:PORT instead of an engine here")
    group.add_argument(
        "--loop", choices=("closed", "open", "ramp"), metavar="L",
        help="closed: clients wait for answers; open: Poisson arrivals; ramp: the highest rate (default: closed)",
    )  # fmt: skip
    group.add_argument("--rates", metavar="R,R", type=_rates, help="open: requests a second; ramp: where to begin")
    group.add_argument("--p99-ms", metavar="MS", type=above_zero, help="ramp: limit of the p99 (default: 500)")
    group.add_argument(
        "--warm-up-seconds", metavar="S", type=above_zero, help="at most, before each window (default: 120)"
    )
    group.add_argument("--as", dest="sent_as", choices=("ids", "text"), metavar="K", help="ids (default) or text")
    group.add_argument(
        "--mix", metavar="NAME:W,...", type=_names, help="sizes with weights instead of --workload: small,track_mean:3"
    )
    group.add_argument("--api-key", metavar="K", help="the server's; default: $ONEPASS_API_KEY")
    group.add_argument(
        "--roof-tflops", metavar="F", type=above_zero, help="mixed: what a large product reaches there, for the share"
    )
    group.add_argument("--overload", action="store_true", help="closed: refusals (429) are expected, no error")
    parser.set_defaults(**dict.fromkeys(DEFAULTS), url=None)


def refuse_without_url(args: argparse.Namespace) -> None:
    """Options of a driver mean nothing without something to drive."""
    mixed = args.workload == "mixed"
    meant = [name for name in DEFAULTS if not (mixed and name in TRAFFIC)]
    given = [_spelled(name) for name in meant if getattr(args, name) not in (None, False)]
    if given:
        raise RequestError("invalid_arguments", f"{', '.join(given)} needs --url, a running server")


def run_http(args: argparse.Namespace, parser_defaults: dict[str, Any]) -> int:
    import asyncio

    _refuse_engine_options(args, parser_defaults)
    check_traffic_options(args, parser_defaults)
    try:
        from onepass.bench.online.document import http_document
        from onepass.bench.online.run import bench_http
    except ModuleNotFoundError as error:
        raise ConfigError(f"--url needs the package {error.name}: pip install 'onepass[server]'") from error
    plan = plan_of(args)
    key = args.api_key or os.environ.get("ONEPASS_API_KEY") or None
    ran = asyncio.run(bench_http(plan, key, _silent if args.quiet else _tell))
    return show(args, http_document(ran, plan, ["onepass", *without_key(sys.argv[1:])]))


def plan_of(args: argparse.Namespace) -> "HttpPlan":
    from onepass.bench.online.requests import MixPart
    from onepass.bench.online.run import HttpPlan
    from onepass.bench.workloads import resized

    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    if args.workload == "mixed":
        return _mixed_plan(args, given)
    chosen = {**DEFAULTS, **given}
    if chosen.pop("roof_tflops") is not None:
        raise RequestError("invalid_arguments", "--roof-tflops needs --workload mixed")
    mix = tuple(map(MixPart.parse, chosen.pop("mix") or (args.workload,)))
    sizes = (args.query_tokens, args.items, args.item_tokens)
    if any(sizes):
        mix = tuple(MixPart(part.name, resized(part.shape, *sizes), part.weight) for part in mix)
    chosen.pop("api_key")
    kind = chosen.pop("sent_as")
    return HttpPlan(url=args.url, mix=mix, kind=kind, check_items=args.serial_items, seed=args.seed, **chosen)


def _mixed_plan(args: argparse.Namespace, given: dict[str, Any]) -> "HttpPlan":
    from onepass.bench.mixed import check_kinds
    from onepass.bench.online.mixed import MixedOptions
    from onepass.bench.online.requests import MixPart
    from onepass.bench.online.run import HttpPlan

    refused = [name for name in ("loop", "rates", "p99_ms", "sent_as", "mix") if given.get(name)]
    if refused:
        spelled = ", ".join(map(_spelled, refused))
        raise RequestError("invalid_arguments", f"workload mixed is token ids in a closed loop; got {spelled}")
    kinds = check_kinds(args.kinds or ())
    options = MixedOptions(args.clients or (), args.seconds, args.num_requests, kinds, args.roof_tflops)
    mix = (MixPart.parse("small"),)
    kept = {name: given[name] for name in ("seconds", "warm_up_seconds", "overload") if name in given}
    return HttpPlan(
        url=args.url, mix=mix, clients=(), check_items=args.serial_items, seed=args.seed, mixed=options, **kept
    )


def without_key(words: Sequence[str]) -> list[str]:
    """A command line that may be kept: an API key is not shown."""
    out = list(words)
    for n, word in enumerate(out):
        if word.startswith("--api-key="):
            out[n] = "--api-key=…"
        elif n and out[n - 1] == "--api-key":
            out[n] = "…"
    return out


def _refuse_engine_options(args: argparse.Namespace, defaults: dict[str, Any]) -> None:
    given = [_spelled(name) for name in ENGINE_ONLY if getattr(args, name) != defaults[name]]
    if args.model != defaults["model"]:
        given.insert(0, f"a model ({args.model})")
    if given:
        raise RequestError("invalid_arguments", f"the server at --url decides that itself; got {', '.join(given)}")


def _tell(row: "HttpRow") -> None:
    """Narration, a line a row."""
    if row.void:
        speed = f"void: {row.void[0]}"
    else:
        speed = f"{row.items_per_second:,.1f} items/s, p99 {row.latency_ms['p99']:,.0f} ms"
    print(f"{row.dtype} {row.workload} {row.mode}: {speed}", file=sys.stderr, flush=True)


def _silent(_: object) -> None:
    """With --quiet."""


def _spelled(name: str) -> str:
    return "--as" if name == "sent_as" else f"--{name.replace('_', '-')}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(above_zero(part) for part in text.split(","))
