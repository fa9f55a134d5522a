"""`onepass run` killed with SIGKILL at random moments: the output has the bytes of an undisturbed run, memory is flat.

    python benchmarks/bulk_kill.py --rows 100000 --out result.json

Rows are small requests in token ids for the default model's shape with two layers and random weights.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bulk.job_files import folder_of
from onepass.evidence.provenance import hardware

MODEL = "random:smollm2-135m?layers=2&seed=1"
ROWS_PER_QUERY = 20
SAMPLE_SECONDS = 0.5
FIRST_SHARE = 0.2  # of the rows, before memory is looked at: programs and buffers are made


def write_rows(path: Path, count: int) -> None:
    """Twenty rows in a row have one query; every thousandth row is wrong."""
    draw = np.random.default_rng(7)
    with path.open("w", encoding="utf-8") as file:
        query: list[int] = []
        for number in range(count):
            if number % ROWS_PER_QUERY == 0:
                query = draw.integers(10, 40000, 12).tolist()
            items = [draw.integers(10, 40000, 3).tolist()]
            row = {"id": number, "query": query if number % 1000 != 999 else [], "items": items}
            file.write(json.dumps(row) + "\n")


def start(source: Path, out: Path, window: int) -> "subprocess.Popen[bytes]":
    options = {"label_token_ids": [11, 12], "apply_softmax": True, "label_mass": False}
    command = [sys.executable, "-m", "onepass.cli.main", "run", str(source), "--out", str(out), "--quiet"]
    command += ["--model", MODEL, "--dtype", "float32", "--window", str(window)]
    for name, value in options.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    return subprocess.Popen(command)


def rows_done(out: Path) -> int:
    """By the journal's last whole line."""
    journal = folder_of(out) / "journal.jsonl"
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.is_file() else []
    return int(json.loads(lines[-1])["rows"]) if lines else 0


def resident_bytes(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) * 1024 if found else 0


def undisturbed(source: Path, out: Path, window: int, rows: int) -> dict[str, Any]:
    began, first = time.monotonic(), None
    samples: list[tuple[int, int]] = []
    process = start(source, out, window)
    while process.poll() is None:
        done, memory = rows_done(out), resident_bytes(process.pid)
        if done and memory:
            first = first or (time.monotonic(), done)
            samples.append((done, memory))
        time.sleep(SAMPLE_SECONDS)
    if process.returncode != 0 or first is None:
        sys.exit(f"the undisturbed run ended with status {process.returncode}")
    seconds = time.monotonic() - first[0]
    later = np.array([sample for sample in samples if sample[0] > FIRST_SHARE * rows], float)
    slope, _ = np.polyfit(later[:, 0], later[:, 1], 1)
    return {
        "wall_s": time.monotonic() - began,
        "rows_per_s": (rows - first[1]) / seconds,
        "resident_bytes": {"after_first_fifth": later[0, 1], "at_end": later[-1, 1], "max": later[:, 1].max()},
        "slope_bytes_per_1000_rows": 1000 * slope,
        "samples": len(later),
    }


def killed(source: Path, out: Path, window: int, moments: list[int], draw: random.Random) -> list[dict[str, int]]:
    """Killed a little after each of these numbers of rows, then run to its end."""
    kills = []
    for moment in moments:
        process = start(source, out, window)
        while rows_done(out) < moment and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.5))
        if process.poll() is not None:
            sys.exit("the run ended before it was killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills.append({"wanted_after_rows": moment, "rows_in_journal": rows_done(out)})
    if start(source, out, window).wait() != 0:
        sys.exit("the run did not end well after its kills")
    return kills


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        source, whole, resumed = (Path(folder) / name for name in ("in.jsonl", "whole.jsonl", "resumed.jsonl"))
        write_rows(source, options.rows)
        plain = undisturbed(source, whole, options.window, options.rows)
        moments = sorted(draw.randrange(1, options.rows * 9 // 10) for _ in range(options.kills))
        kills = killed(source, resumed, options.window, moments, draw)
        lines = whole.read_bytes().splitlines()
        ids = [json.loads(line)["id"] for line in lines]
        document = {
            "date": time.strftime("%Y-%m-%d"),
            "model": MODEL,
            "rows": options.rows,
            "window": options.window,
            "hardware": hardware(),
            "load_average": os.getloadavg(),
            "undisturbed": plain,
            "kills": kills,
            "rows_once_and_in_order": ids == list(range(options.rows)),
            "rows_with_error": sum(json.loads(line)["error"] is not None for line in lines),
            "sha256": {"undisturbed": digest(whole), "killed": digest(resumed)},
            "same_bytes": digest(whole) == digest(resumed),
        }
    options.out.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1, default=str))
    if not document["same_bytes"] or not document["rows_once_and_in_order"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
