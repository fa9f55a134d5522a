"""`onepass profile MODEL`: where a request's time goes, on the device and on the host, and the trace for a viewer.

Tracing is `onepass.bench.offline.profile`; this file only prints it.
"""

import argparse
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.bench.options import MODES, add_workload_options
from onepass.cli.parser import DEFAULT_MODEL, Subcommands, add_json, add_quantize, add_quiet, add_source_options
from onepass.cli.terminal.output import console, print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.cli.types import positive

if TYPE_CHECKING:
    from onepass.bench.offline.profile import Profile
    from onepass.bench.workloads import Workload
    from onepass.loading.model import Model

DESCRIPTION = """\
Traces one request after warm-up and tells where its time went: parts of the network on the device, stages on
the host, and idling. The tracer slows the host down; the engine's own times without it are told beside it.
The trace opens in Perfetto (its .trace.json.gz) or XProf (the folder).

  onepass profile --workload small --mode extend"""


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "profile",
        help="trace one request: where device and host time goes",
        usage="onepass profile [MODEL] [OPTION ...]",
        description=DESCRIPTION,
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    group = parser.add_argument_group("what is traced")
    add_workload_options(group)
    group.add_argument("--mode", choices=MODES, default="auto", metavar="M", help=f"one of {','.join(MODES)}")
    group.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"), default="auto", metavar="D", help="default: auto"
    )
    add_quantize(group)
    group.add_argument("--tp", metavar="N", type=positive, help="devices that share the model (default: as fits)")
    add_source_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="folder of the trace (default: a new one in artifacts)")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from onepass.bench.offline.profile import compile_afresh, profile
    from onepass.evidence.model_source import ModelSource

    with compile_afresh(), progress_bars(args.quiet) as progress:
        source = ModelSource(args.model, args.revision, args.offline, args.cache_dir, progress, args.tp, args.adapter)
        loaded = source.load(args.dtype)
        progress("tracing", 0, 0)
        workload = _workload(args, loaded[0])
        folder = args.out or _new_folder(loaded[0].name, workload.name)
        profiled = profile(loaded, workload, args.mode, folder, args.quantize, args.quantize_activations)
    if args.json:
        print_json(
            {"model": loaded[0].name, "quantize": args.quantize, "workload": workload.describe(), **profiled.to_dict()}
        )
    else:
        _print(profiled, f"{loaded[0].name} · {workload.name} · {profiled.mode}")
    return 0


def _workload(args: argparse.Namespace, model: "Model") -> "Workload":
    from onepass.bench.offline.run import Plan
    from onepass.bench.workloads import make_workload, workload_of
    from onepass.cli.inputs.requests import read_requests
    from onepass.engine.encoding.encode import Encoder

    if args.requests:
        limits = (model.config.vocab_size, model.config.max_position)
        encoder = Encoder(model.tokenizer, *limits, model.chat, model.class_head)
        return workload_of(Path(args.requests).stem, read_requests(args.requests), encoder)
    sizes = {"query": args.query_tokens, "items": args.items, "item_tokens": args.item_tokens}
    plan = Plan(args.workload, overrides={name: value for name, value in sizes.items() if value is not None})
    shape = plan.shape()
    assert shape is not None
    return make_workload(args.workload, shape, model.config.vocab_size, args.seed).with_labels([0, 1, 2])


def _new_folder(model: str, workload: str) -> Path:
    when = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    return Path("artifacts") / "-".join(re.sub(r"[^\w.]+", "-", part) for part in ("profile", model, workload, when))


def _print(profiled: "Profile", title: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading in ("where", "what", "ms", "share"):
        table.add_column(heading, justify="left" if heading in ("where", "what") else "right")
    spent = profiled.spent
    whole = sum(spent.device.values()) or 1.0
    rows: list[tuple[Any, ...]] = [("device", what, ms, ms / whole) for what, ms in spent.device.items()]
    rows.append(("device", "idle", spent.idle_ms, spent.idle_ms / spent.wall_ms))
    rows += [("host", what, ms, ms / spent.wall_ms) for what, ms in spent.host.items()]
    for where, what, ms, share in rows:
        table.add_row(where, what, f"{ms:,.3f}", f"{share:.1%}")
    out = console()
    out.print(table)
    out.print(
        f"wall {spent.wall_ms:,.1f} ms with the tracer, of which the device was busy {spent.busy_ms:,.1f} ms. "
        "Shares of device parts are of their sum, others of the wall time.",
        soft_wrap=True,
    )
    own = ", ".join(f"{name} {ms:,.2f} ms" for name, ms in profiled.untraced_ms.items())
    out.print(f"without the tracer, by the engine's own clock: {own}", soft_wrap=True)
    out.print(f"ran as {profiled.ran_as}: {profiled.reason}", soft_wrap=True)
    out.print(f"trace: {profiled.trace}", soft_wrap=True)
