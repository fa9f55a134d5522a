"""How much memory a quantised GGUF file takes in its own blocks, and whether it ranks as the dequantised one does.

    python benchmarks/gguf_memory.py MODEL.gguf [--out DIR]

Each way is a process of its own, from `Scorer.load` to two answers: documents judged by a chat prompt, and ranked.
Peaks are of the whole process, Python and JAX included. Programs are compiled anew where they are not on disk, which
takes memory, too: run it twice. The last line is one JSON document.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAYS = ("gguf", "none")  # of --quantize: the file's blocks, and widened to float32
QUERY = "why does bread dough get bigger"
DOCUMENTS = (
    "Iron turns into rust when it meets water and air.",
    "Yeast gives off gas, so that dough rises.",
    "The Moon pulls the oceans, and tides follow.",
    "Flour and water make a dough.",
    "Bees make honey from nectar.",
    "Bubbles of carbon dioxide from fermentation make a loaf swell.",
    "An oven should be hot before the bread goes in.",
    "Glaciers move a few metres in a year.",
)
PROMPT = f"Query: {QUERY}\nDocument: {{item}}\nDoes the document answer the query? Reply yes or no."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a quantised GGUF file")
    parser.add_argument("--out", type=Path, help="folder for the result as JSON")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(answers(args.model, args.way)))
        return
    result = compare(args.model)
    if args.out is not None:
        print(write(result, args.out), file=sys.stderr)
    print(json.dumps(result))


def answers(model: Path, way: str) -> dict[str, Any]:
    from onepass import Scorer

    start = time.perf_counter()
    with Scorer.load(str(model), dtype="float32", quantize=way) as scorer:
        loaded, seconds = peak_bytes(), time.perf_counter() - start
        messages = [{"role": "user", "content": PROMPT}]
        judged = scorer.score(messages=messages, items=DOCUMENTS, labels=["yes", "no"])
        ranking = scorer.rank(QUERY, DOCUMENTS)
    return {
        "load_seconds": round(seconds, 2),
        "peak_bytes_after_load": loaded,
        "peak_bytes_after_answers": peak_bytes(),
        "judged": [list(row) for row in judged.scores],
        "order": [item.index for item in ranking.items],
    }


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare(model: Path) -> dict[str, Any]:
    from onepass.evidence.provenance import commit, hardware, versions

    ways = {way: _answers_of_a_process(model, way) for way in WAYS}
    size, (blocks, widened) = model.stat().st_size, ways.values()
    pairs = zip(blocks["judged"], widened["judged"], strict=True)
    return {
        "object": "gguf_memory", "model": model.stem, "file_bytes": size, **ways,
        "load_over_file": round(blocks["peak_bytes_after_load"] / size, 3),
        "answers_over_file": round(blocks["peak_bytes_after_answers"] / size, 3),
        "same_order": blocks["order"] == widened["order"],
        "max_difference": max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True)),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "commit": commit(), "hardware": hardware(),
        "versions": versions(), "load_average": os.getloadavg(),
        "command": f"{Path(sys.argv[0]).name} {model.name}",
    }  # fmt: skip


def _answers_of_a_process(model: Path, way: str) -> dict[str, Any]:
    print(f"{way} ...", file=sys.stderr)
    command = [sys.executable, __file__, str(model), "--way", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def write(result: dict[str, Any], folder: Path) -> Path:
    from onepass.bench.document import require_commit

    require_commit(result["commit"])
    folder.mkdir(parents=True, exist_ok=True)
    state = result["commit"][:10] + ("-dirty" if result["commit"].endswith("-dirty") else "")
    path = folder / f"gguf-memory-{result['model']}-{result['date'][:10]}-{state}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
