"""`onepass bench MODEL`: how fast each mode is here, with its scores checked, and peers beside it on request.

Timing is `onepass.bench`; this file turns options (`options`) into a plan, and hands the document to `show`. A running
server is driven by `online`; comparing what was kept is `compare`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.bench import compare as bench_compare
from onepass.cli.bench import online as bench_http
from onepass.cli.bench.options import DEFAULT_MODES, KINDS, MIXED, WORKLOADS, add_bench_options, check_traffic_options
from onepass.cli.bench.show import show
from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_parallel_options, add_quiet, add_source_options
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.bench.mixed import Traffic
    from onepass.bench.offline.peers import Peers
    from onepass.bench.offline.run import BenchRun, Plan
    from onepass.bench.row import Row
    from onepass.engine.config import Quantize
    from onepass.loading.tensor_reader import Progress

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
    bench_compare.add_revisions(parser)


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
    if args.peers:
        check_quantized_peers(plan)
    runs, peers = [], []
    with progress_bars(args.quiet) as progress:
        for dtype in args.dtype:
            ran, answers = _bench(args, plan, dtype, progress)
            runs.append(ran)
            peers += answers
    return show(args, document(runs, plan, ["onepass", *sys.argv[1:]], peers))


def check_quantized_peers(plan: "Plan") -> None:
    """Peers have forms of int8; weights in the blocks of a GGUF file are the same numbers as the peers'."""
    if plan.quantize == "fp8":
        raise RequestError("invalid_arguments", "peers have no fp8: leave out --quantize or --peers, or try int8")
    if plan.quantize == "int8" and plan.traffic is not None:
        raise RequestError("invalid_arguments", "peers on mixed traffic are not quantized: name another workload")


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
    peers = _peers(args, loaded[0], plan.quantize)
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


def _peers(args: argparse.Namespace, model: Any, quantize: "Quantize | None") -> "Peers | None":
    from onepass.bench.offline.peers import Peers

    if args.workload == MIXED:
        from onepass.bench.offline.mixed_peers import find_mixed_peers

        return find_mixed_peers(args.peers, model) if args.peers else None
    return Peers.find(args.peers, model, quantize=quantize) if args.peers else None


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
