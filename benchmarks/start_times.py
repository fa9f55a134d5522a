"""How long a server takes to be ready: with nothing on disk, started again, and after `onepass compile`.

    python benchmarks/start_times.py [MODEL] [--dtype auto] [--again 3] [--out DIR]

Folders of its own stand for the user's cache, so that nothing of an earlier run is found; on CPUs a checkout's first
start then builds our C++, too. Seconds are those from the command to the first 200 of /health, and to the answer of a
first request sent at once. `compiled` counts programs that a start compiled instead of reading them.
The last line is one JSON document. Exit status: 0; 1 something was compiled that had been kept, or after ready.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from onepass.bench.document import require_commit
from onepass.bench.online.server import OwnServer, own_server
from onepass.evidence.provenance import commit, hardware, versions

BODY = {"query": list(range(100, 200)), "items": [[5, 6, 7], [8, 9]], "label_token_ids": [11, 12]}
COUNTS_SECONDS = 1.5  # the engine tells its counts once a second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--again", type=int, default=3, help="starts with what the first has kept (default: 3)")
    parser.add_argument("--out", type=Path, help="folder for the result as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onepass-start-") as folder:
        first = start(args, Path(folder))
        second = [start(args, Path(folder)) for _ in range(args.again)]
    with tempfile.TemporaryDirectory(prefix="onepass-start-") as folder:
        compiling = compile_ahead(args, Path(folder))
        ahead = start(args, Path(folder))
    later = [*second, ahead]
    passed = not any(one["compiled"] for one in later) and not any(one["compiled_after"] for one in [first, *later])
    result = {
        "object": "start_times", "model": args.model, "dtype": args.dtype, "first_start": first,
        "second_start": second, "onepass_compile_seconds": compiling, "start_after_compile": ahead,
        "passed": passed, "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "commit": commit(),
        "hardware": hardware(), "versions": versions(), "load_average": os.getloadavg(), "command": command(),
    }  # fmt: skip
    if args.out is not None:
        print(write(result, args.out), file=sys.stderr)
    print(json.dumps(result))
    return 0 if passed else 1


def start(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One server, from its command to its first answer."""
    began = time.perf_counter()
    with own_server(args.model, ["--dtype", args.dtype], environment(folder)) as server:
        ready, compiled = time.perf_counter() - began, compilations(server)
        ask(server)
        answered = time.perf_counter() - began
        time.sleep(COUNTS_SECONDS)
        after = compilations(server) - compiled
    seconds = {"ready_seconds": round(ready, 2), "answer_seconds": round(answered, 2)}
    print(f"ready after {ready:.1f} s, answered after {answered:.1f} s", file=sys.stderr, flush=True)
    return {**seconds, "compiled": compiled, "compiled_after": after}


def ask(server: OwnServer) -> None:
    headers = {"content-type": "application/json"}
    request = Request(f"{server.url}/v1/score", json.dumps(BODY).encode(), headers)
    with urlopen(request, timeout=60) as answer:
        json.load(answer)


def compilations(server: OwnServer) -> int:
    with urlopen(f"{server.url}/metrics", timeout=30) as answer:
        found = re.search(r"^onepass_engine_compilations_total(?:{.*})? (\S+)$", answer.read().decode(), re.MULTILINE)
    if found is None:
        raise SystemExit("the server does not tell how many programs it has compiled")
    return int(float(found.group(1)))


def compile_ahead(args: argparse.Namespace, folder: Path) -> float:
    began = time.perf_counter()
    told = [sys.executable, "-m", "onepass.cli.main", "compile", args.model, "--dtype", args.dtype, "--quiet"]
    subprocess.run(told, check=True, stdout=subprocess.DEVNULL, env=environment(folder))
    return round(time.perf_counter() - began, 2)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(folder)}


def command() -> str:
    given = iter(sys.argv[1:])
    kept = [word for word in given if word != "--out" or not next(given)]
    return " ".join(["python benchmarks/start_times.py", *kept])


def write(result: dict[str, Any], folder: Path) -> Path:
    require_commit(result["commit"])
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{result['hardware']['device']} {result['hardware']['cores']} cores"
    state = result["commit"][:10] + ("-dirty" if result["commit"].endswith("-dirty") else "")
    parts = ("start-times", result["model"], machine, result["date"][:10].replace("-", ""), state)
    path = folder / ("-".join(re.sub(r"[^\w.]+", "-", part).strip("-").lower() for part in parts) + ".json")
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
