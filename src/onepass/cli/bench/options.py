"""Options of `onepass bench` that say what is timed: workloads and their sizes, modes, repeats, mixed traffic.

Those of a running server are `online`. `onepass profile` and `onepass plan` share some of them.
"""

import argparse
from typing import Any

from onepass.cli.parser import add_quantize
from onepass.cli.types import above_zero, positive, positives
from onepass.errors import RequestError

MODES = ("serial", "packed-dense", "packed-segment", "chunked", "extend", "auto")
DEFAULT_MODES = ("serial", "packed-segment", "extend", "auto")
WORKLOADS = (
    "contract", "track_low", "track_mean", "track_high", "home_low", "home_mean", "home_high", "linkedin", "ragged",
    "repeat-query", "many", "small", "decisions", "grid",
)  # fmt: skip
MIXED = "mixed"
KINDS = ("tiny", "small", "mid", "large", "labels", "branches")  # of mixed traffic
# Options of `onepass bench` that change a named workload or its cases; mixed traffic has none of them.
NOT_MIXED = ("requests", "query_tokens", "items", "item_tokens", "sweep", "speedup_table", "in_flight")


def add_workload_options(group: "argparse._ActionsContainer") -> None:
    """Shared with `onepass profile`."""
    group.add_argument("--workload", metavar="NAME", default="small", help="default: small (512 + 64 x 20 tokens)")
    group.add_argument("--requests", metavar="F", help="real requests instead, a JSON object a line (- is stdin)")
    group.add_argument("--query-tokens", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--items", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--item-tokens", metavar="N", type=positive, help="instead of the workload's")
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of the token ids (default: 0)")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is timed")
    add_workload_options(group)
    group.add_argument("--modes", metavar="M,M", type=_modes, default=DEFAULT_MODES, help=f"some of {','.join(MODES)}")
    group.add_argument("--dtype", metavar="D,D", type=_dtypes, default=("auto",), help="auto, float32, bfloat16")
    add_quantize(group)
    group.add_argument(
        "--sweep",
        metavar="NAME=N,N",
        action="append",
        default=[],
        help="also over values of chunk_size, extend_batch_size, items or query_tokens; may be given again",
    )
    group.add_argument("--speedup-table", action="store_true", help="also over 1, 8, 32, 64, 128 and 500 items")
    group.add_argument(
        "--in-flight",
        metavar="N",
        type=positive,
        default=1,
        help="requests kept in flight: each is sent again when it is answered (default: 1)",
    )
    group.add_argument("--repeats", metavar="N", type=positive, default=10, help="timed calls a row (default: 10)")
    group.add_argument("--warm-up", metavar="N", type=positive, default=2, help="calls before them (default: 2)")
    group.add_argument(
        "--serial-items",
        metavar="N",
        type=positive,
        default=10,
        help="items that are timed and checked one at a time (default: 10)",
    )
    add_traffic_options(parser)
    group.add_argument(
        "--peers", metavar="P,P", type=_names, default=(), help="also these of benchmarks/peers, or cheap, or all"
    )


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic (with --workload mixed, or --url)")
    group.add_argument(
        "--clients", metavar="N,N", type=positives,
        help="each sends its next request when answered; a row each (default: mixed 16, on CPUs 8; else 1,8)",
    )  # fmt: skip
    group.add_argument(
        "--seconds", metavar="S", type=above_zero,
        help="of each window (default: 30; mixed on CPUs 120)",
    )  # fmt: skip
    group.add_argument("--num-requests", metavar="N", type=positive, help="mixed: so many instead of --seconds")
    group.add_argument("--kinds", metavar="K,K", type=_kinds, help=f"mixed: some of {','.join(KINDS)} (default: all)")


def check_traffic_options(args: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Mixed traffic has sizes of its own, and named workloads have no kinds."""
    if args.workload != MIXED:
        given = [f"--{name.replace('_', '-')}" for name in ("num_requests", "kinds") if getattr(args, name) is not None]
        if given:
            raise RequestError("invalid_arguments", f"{', '.join(given)} needs --workload mixed")
        return
    given = [f"--{name.replace('_', '-')}" for name in NOT_MIXED if getattr(args, name) != defaults[name]]
    if given:
        raise RequestError("invalid_arguments", f"workload mixed has sizes of its own; got {', '.join(given)}")
    if args.url is None and args.clients is not None and len(args.clients) > 1:
        raise RequestError(
            "invalid_arguments",
            "without --url, --clients is one number: an engine starts only once",
        )


def _modes(text: str) -> tuple[str, ...]:
    return _among(text, MODES)


def _kinds(text: str) -> tuple[str, ...]:
    return _among(text, KINDS)


def _dtypes(text: str) -> tuple[str, ...]:
    return _among(text, ("auto", "float32", "bfloat16"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _among(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(known)}; got {','.join(unknown)!r}")
    return chosen
