"""`onepass bench MODEL`: how fast each mode is here, with its scores checked, and peers beside it on request.

Timing is `onepass.bench`; this file only turns options into a plan and documents into text. A running server is driven
by `online`; comparing what was kept is `compare`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.bench import compare as bench_compare
from onepass.cli.bench import online as bench_http
from onepass.cli.parser import (
    DEFAULT_MODEL,
    Subcommands,
    add_parallel_options,
    add_quantize,
    add_quiet,
    add_source_options,
)
from onepass.cli.terminal.output import console
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.bench.mixed import Traffic
    from onepass.bench.offline.peers import Peers
    from onepass.bench.offline.run import BenchRun, Plan
    from onepass.bench.row import Row
    from onepass.loading.tensor_reader import Progress

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
DESCRIPTION = f"""\
Times modes side by side on one workload of seeded, distinct token ids. Warm-up is apart from timing, and
every row's scores are compared with one sequence at a time in the same run. A row with a compilation in
its timed window, an error or a score out of tolerance is void and says so. With --url a running server is
driven over HTTP instead, with requests that are all distinct, and its answers are checked the same way.

Workloads: {", ".join(WORKLOADS[:7])},
{", ".join(WORKLOADS[7:])}; NAME-varied has item lengths ±50 %.
decisions is a state and five typed questions; grid a state, 32 candidates and four questions about each, which
peers answer with one prompt per question. With --url --as text both are posted to /v1/decisions.

Workload mixed is traffic as users send it: every request has its own kind ({", ".join(KINDS)})
and its own lengths, clients send their next request when they are answered, and nothing is warmed up. Its
row has p50 and p99 by kind, the share of the roof and tokens/s over those of small alone in the same run; a
compilation at any time from the first request on voids it.

  onepass bench --workload small --modes serial,extend,auto
  onepass bench random:qwen3-0.6b --workload contract --sweep chunk_size=2,8,32 --out benchmarks/results
  onepass bench --url http://127.0.0.1:8000 --workload small --clients 1,8,64 --seconds 30
  onepass bench --url http://127.0.0.1:8000 --mix small,home_low,track_mean:3 --loop ramp --p99-ms 500
  onepass bench --workload mixed --clients 8 --seconds 120 --peers all
  onepass bench --url http://127.0.0.1:8000 --workload mixed --clients 16,64 --seconds 60 --seed 1
  onepass bench compare OLD.json NEW.json        what became slower, and what may be to blame
  onepass bench revisions REV_A REV_B            the same workload at two git revisions

Exit status: 0 all rows stand, 1 some are void."""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "bench",
        help="time modes and peers on this machine, with scores checked",
        usage="onepass bench [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    add_bench_options(parser)
    add_parallel_options(parser.add_argument_group("devices"))
    bench_http.add_http_options(parser)
    add_source_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="also write JSON, Markdown and an HTML page with plots")
    output.add_argument("--json", action="store_true", help="also print one JSON document, on the last line")
    add_quiet(output)
    parser.set_defaults(run=lambda args: run(args, parser))
    bench_compare.add_compare(parser)
    bench_compare.add_revisions(parser, add_bench_options)


def add_workload_options(group: "argparse._ActionsContainer") -> None:
    """Shared with `onepass profile`."""
    group.add_argument("--workload", metavar="NAME", default="small", help="default: small (512 + 64 x 20 tokens)")
    group.add_argument("--requests", metavar="F", help="real requests instead, a JSON object a line (- is stdin)")
    group.add_argument("--query-tokens", metavar="N", type=_at_least_one, help="instead of the workload's")
    group.add_argument("--items", metavar="N", type=_at_least_one, help="instead of the workload's")
    group.add_argument("--item-tokens", metavar="N", type=_at_least_one, help="instead of the workload's")
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
        type=_at_least_one,
        default=1,
        help="requests kept in flight: each is sent again when it is answered (default: 1)",
    )
    group.add_argument("--repeats", metavar="N", type=_at_least_one, default=10, help="timed calls a row (default: 10)")
    group.add_argument("--warm-up", metavar="N", type=_at_least_one, default=2, help="calls before them (default: 2)")
    group.add_argument(
        "--serial-items",
        metavar="N",
        type=_at_least_one,
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
        "--clients", metavar="N,N", type=bench_http.counts,
        help="each sends its next request when answered; a row each (default: mixed 16, on CPUs 8; else 1,8)",
    )  # fmt: skip
    group.add_argument(
        "--seconds", metavar="S", type=bench_http.above_zero,
        help="of each window (default: 30; mixed on CPUs 120)",
    )  # fmt: skip
    group.add_argument("--num-requests", metavar="N", type=_at_least_one, help="mixed: so many instead of --seconds")
    group.add_argument("--kinds", metavar="K,K", type=_kinds, help=f"mixed: some of {','.join(KINDS)} (default: all)")


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if args.out is not None:  # told before anything is measured
        from onepass.bench.document import require_commit
        from onepass.evidence.provenance import commit

        require_commit(commit())
    if args.url is not None:
        return bench_http.run_http(args, {name: parser.get_default(name) for name in vars(args)})
    bench_http.refuse_without_url(args)
    check_traffic_options(args, {name: parser.get_default(name) for name in vars(args)})
    from onepass.bench.document import document

    plan = plan_of(args)
    if plan.traffic is None:
        plan.cases()  # a mistake in the options is told before anything is loaded
    if args.peers and plan.quantize not in (None, "gguf"):
        raise RequestError("invalid_arguments", "peers are not quantized: leave out --quantize or --peers")
    runs, peers = [], []
    with progress_bars(args.quiet) as progress:
        for dtype in args.dtype:
            ran, found = _bench(args, plan, dtype, progress)
            runs.append(ran)
            peers += found
    return show(args, document(runs, plan, ["onepass", *sys.argv[1:]], peers))


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


def show(args: argparse.Namespace, made: dict[str, Any]) -> int:
    """A document as tables, files and a last line; the command's exit status."""
    from onepass.bench.document import write_json
    from onepass.bench.report import tables as report

    out = console()
    for table in report.tables(made):
        out.print(table)
    for line in [*report.remarks(made), report.machine(made)]:
        out.print(line, soft_wrap=True)
    if args.out is not None:
        for path in [write_json(made, args.out), *report.write_report(made, args.out)]:
            print(f"wrote {path}", file=sys.stderr)
    if args.json:
        _print_last_line(made)
    return 1 if made["void"] else 0


def plan_of(args: argparse.Namespace) -> "Plan":
    from onepass.bench.offline.cases import Sweep
    from onepass.bench.offline.measure import Timing
    from onepass.bench.offline.run import Plan

    sizes = {"query": args.query_tokens, "items": args.items, "item_tokens": args.item_tokens}
    overrides = {name: value for name, value in sizes.items() if value is not None}
    if args.requests and overrides:
        raise RequestError(
            "invalid_arguments", f"requests from a file have their own sizes; got {', '.join(overrides)}"
        )
    return Plan(
        workload=_called(args.requests) if args.requests else args.workload,
        modes=("auto",) if args.workload == MIXED and args.modes is DEFAULT_MODES else args.modes,
        requests=_requests(args),
        sweeps=tuple(map(Sweep.parse, args.sweep)),
        speedup_table=args.speedup_table,
        timing=Timing(args.repeats, args.warm_up),
        serial_items=args.serial_items,
        seed=args.seed,
        in_flight=args.in_flight,
        overrides=overrides,
        dp=args.dp or 1,
        quantize=None if args.quantize == "none" else args.quantize,
        quantize_activations=args.quantize_activations,
        traffic=_traffic(args) if args.workload == MIXED else None,
    )


def _traffic(args: argparse.Namespace) -> "Traffic":
    from onepass.bench.mixed import Traffic
    from onepass.engine.config import describe_device

    clients = args.clients[0] if args.clients else None
    return Traffic.decide(describe_device().platform, clients, args.seconds, args.num_requests, args.kinds or ())


def _bench(args: argparse.Namespace, plan: "Plan", dtype: Any, progress: "Progress") -> "tuple[BenchRun, list[Any]]":
    from onepass.bench.offline.peers import run_peers
    from onepass.bench.offline.run import bench
    from onepass.evidence.model_source import ModelSource

    source = ModelSource(args.model, args.revision, args.offline, args.cache_dir, progress, args.tp, args.adapter)
    loaded = source.load(dtype)
    peers = _peers(args, loaded[0])
    if plan.traffic is not None:
        return _bench_mixed(args, loaded, plan, plan.traffic, peers, progress)
    ran = bench(loaded, plan, _silent if args.quiet else _tell, progress)
    return ran, run_peers(peers, ran, plan, _silent if args.quiet else _tell_peer) if peers else []


def _bench_mixed(
    args: argparse.Namespace, loaded: Any, plan: "Plan", traffic: "Traffic", peers: "Peers | None", progress: "Progress"
) -> "tuple[BenchRun, list[Any]]":
    from onepass.bench.offline.mixed_peers import run_mixed_peers
    from onepass.bench.offline.mixed_run import bench_mixed

    ran = bench_mixed(loaded, plan, traffic, _silent if args.quiet else _tell, progress)
    return ran, run_mixed_peers(peers, ran, _silent if args.quiet else _tell_peer) if peers else []


def _peers(args: argparse.Namespace, model: Any) -> "Peers | None":
    from onepass.bench.offline.peers import Peers

    if args.workload == MIXED:
        from onepass.bench.offline.mixed_peers import find_mixed_peers

        return find_mixed_peers(args.peers, model) if args.peers else None
    return Peers.find(args.peers, model) if args.peers else None


def _requests(args: argparse.Namespace) -> tuple[Any, ...]:
    from onepass.cli.inputs.requests import read_requests

    return tuple(read_requests(args.requests)) if args.requests else ()


def _called(name: str) -> str:
    return "stdin" if name == "-" else Path(name).stem


def _tell(row: "Row") -> None:
    """Narration, a line a row."""
    speed = "void" if row.void else f"{row.items_per_second:,.1f} items/s, {row.tokens_per_second:,.0f} tokens/s"
    swept = "".join(f" {name}={value}" for name, value in row.sweep.items())
    print(f"{row.dtype} {row.workload} {row.mode}{swept}: {speed}", file=sys.stderr, flush=True)


def _tell_peer(peer: dict[str, Any]) -> None:
    speed = f"void: {peer['void'][0]}" if peer["void"] else f"{peer['items_per_second']:,.1f} items/s"
    print(f"{peer['dtype']} {peer['workload']} peer {peer['peer']}: {speed}", file=sys.stderr, flush=True)


def _silent(_: object) -> None:
    """With --quiet."""


def _print_last_line(made: dict[str, Any]) -> None:
    """The document is one line whoever reads it, for tables come before it."""
    import json

    print(json.dumps(made, allow_nan=False))


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


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return int(text)
