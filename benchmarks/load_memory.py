"""How much host memory loading takes: makes a sharded checkpoint with random weights, loads it in a fresh process.

    python benchmarks/load_memory.py [--shape qwen3-1.7b] [--dtype bfloat16] [--folder DIR] [--out DIR]

Only the loader runs (`open_model(...).load(dtype)`), on the default device. Mapped file pages count as resident but can
be dropped by the kernel at any time, so anonymous memory is sampled apart. The checkpoint is deleted at the end; the
last line is one JSON document. Making and loading are processes of their own: a peak is inherited across fork and exec.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SHARDS = 4
SAMPLE_SECONDS = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-1.7b", help="a known configuration (default: qwen3-1.7b)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="loaded as")
    parser.add_argument("--stored", default="bfloat16", choices=("bfloat16", "float32"), help="stored as")
    parser.add_argument("--folder", type=Path, help="where to make the checkpoint (default: the temporary folder)")
    parser.add_argument("--out", type=Path, help="folder for the result as JSON")
    parser.add_argument("--step", choices=("make", "load"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step == "make":
        make_checkpoint(args.folder, args.shape, args.stored)
    elif args.step == "load":
        print(json.dumps(load(args.folder, args.dtype)))
    else:
        result = measure(args)
        if args.out is not None:
            print(write(result, args.out), file=sys.stderr)
        print(json.dumps(result))


def write(result: dict[str, Any], folder: Path) -> Path:
    from onepass.bench.document import require_commit

    require_commit(result["commit"])
    folder.mkdir(parents=True, exist_ok=True)
    day, state = result["date"][:10], result["commit"][:10] + ("-dirty" if result["commit"].endswith("-dirty") else "")
    path = folder / f"load-memory-{result['shape']}-{result['dtype']}-{day}-{state}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="onepass-load-", dir=args.folder) as folder:
        options = ["--shape", args.shape, "--dtype", args.dtype, "--stored", args.stored, "--folder", folder]
        _step("make", options)
        loaded = json.loads(_step("load", options))
    from onepass.evidence.provenance import commit, hardware, versions

    return {
        "object": "load_memory", "shape": args.shape, "stored": args.stored, **loaded,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "commit": commit(), "hardware": hardware(),
        "versions": versions(), "load_average": os.getloadavg(), "command": " ".join(sys.argv),
    }  # fmt: skip


def _step(step: str, options: list[str]) -> str:
    print(f"{step} ...", file=sys.stderr)
    command = [sys.executable, __file__, "--step", step, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def make_checkpoint(folder: Path, shape: str, stored: str) -> None:
    """A Hugging Face folder, one shard in memory at a time. Only the sizes matter, so that values may repeat."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models

    from onepass.loading.export import to_hf
    from onepass.models.known import known_config
    from onepass.models.weights import abstract, named_leaves

    config = known_config(shape)
    kind = np.dtype(ml_dtypes.bfloat16 if stored == "bfloat16" else np.float32)
    values = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(kind)
    shapes = {
        part.name.format(layer=layer): part.shape
        for _, leaf in named_leaves(abstract(config))
        for layer in range(leaf.shape[0] if leaf.stacked else 1)
        for part in leaf.parts
    }
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = list(shapes)[shard::SHARDS]
        save_file({name: np.resize(values, shapes[name]) for name in names}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(to_hf(config, stored)))
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(folder / "tokenizer.json"))


def load(folder: Path, dtype: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from onepass.loading.model import open_model

    jax.block_until_ready(jnp.zeros(1))  # the backend's own memory is in `before`
    model = open_model(str(folder))
    before = _anonymous_bytes()
    sampler = _Sampler()
    start = time.perf_counter()
    weights = jax.block_until_ready(model.load(jnp.dtype(dtype)))
    seconds = time.perf_counter() - start
    peak = sampler.stop()
    weight_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    return {
        "dtype": dtype,
        "device": jax.devices()[0].platform,
        "file_bytes": model.file_bytes,
        "weight_bytes": weight_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_anonymous_bytes": peak,
        "anonymous_bytes_before": before,
        "peak_over_weights": round((peak - before) / weight_bytes, 3),
        "seconds": round(seconds, 2),
    }


class _Sampler:
    """The largest anonymous memory seen from start to stop."""

    def __init__(self) -> None:
        self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, _anonymous_bytes())

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self._peak, _anonymous_bytes())


def _anonymous_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
