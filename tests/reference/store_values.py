"""Writes and reads `values/`: what PyTorch said, for machines without it. Run it from the checkout:

    PYTHONPATH=tests .venv/bin/python -m reference.store_values [NAME ...]

Each file records versions, the seed and checksums, so that a checkpoint that came out otherwise is noticed.
"""

import argparse
import hashlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from checkpoints import VARIANTS, make_checkpoint
from onepass.loading.bundled import bundled_path
from onepass.loading.model import open_model
from onepass.loading.tokenizer import TextTokenizer
from parity.texts import CASES, TINY_CASES, Case
from reference.oracle import Answer, Job, ask

VALUES = Path(__file__).with_name("values")
REAL_MODEL = "smollm2-135m"
NAMES = [*VARIANTS, REAL_MODEL]
NUM_LABELS = 10
# Asked for in every sequence; the likeliest tokens, as the reference sees them, fill up the rest.
FIXED_LABELS = [" yes", " no", "\n"]

Stored = dict[str, Any]


def cases_of(name: str) -> list[Case]:
    return CASES if name == REAL_MODEL else TINY_CASES


def checksums(model: Path) -> dict[str, str]:
    """sha256 of what decides the values: the GGUF file, or the weights and the config."""
    files = [model] if model.is_file() else [*sorted(model.glob("*.safetensors")), model / "config.json"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def load_stored(name: str) -> Stored:
    stored: Stored = json.loads((VALUES / f"{name}.json").read_text(encoding="utf-8"))
    return stored


def save_stored(name: str, stored: Stored) -> None:
    """One case a line, so that a change can be read in a diff."""
    head = {key: value for key, value in stored.items() if key != "cases"}
    lines = ",\n".join("    " + json.dumps(case) for case in stored["cases"])
    text = json.dumps(head, indent=2).removesuffix("\n}") + ',\n  "cases": [\n' + lines + "\n  ]\n}\n"
    (VALUES / f"{name}.json").write_text(text, encoding="utf-8")


def encode_cases(name: str, tokenizer: TextTokenizer) -> list[list[int]]:
    """Query and item are tokenised separately and joined as ids: the one definition."""
    return [tokenizer.encode_query(case.query) + tokenizer.encode_item(case.item) for case in cases_of(name)]


def job_from_stored(model: Path, stored: Stored) -> Job:
    """Ask again what was asked when the values were stored."""
    sequences = [{"tokens": case["tokens"], "labels": case["labels"]} for case in stored["cases"]]
    return {"model": str(model), "dtype": stored["dtype"], "sequences": sequences}


def new_job(name: str, model: Path) -> Job:
    tokenizer = open_model(str(model)).tokenizer
    assert tokenizer is not None
    labels = [ids[0] for ids in map(tokenizer.encode_item, FIXED_LABELS) if len(ids) == 1]
    sequences = [{"tokens": tokens, "labels": labels} for tokens in encode_cases(name, tokenizer)]
    return {"model": str(model), "dtype": "float32", "top": NUM_LABELS, "sequences": sequences}


def to_store(name: str, job: Job, answer: Answer) -> Stored:
    cases = []
    for case, asked, said in zip(cases_of(name), job["sequences"], answer["sequences"], strict=True):
        logprobs = [round(value, 6) for value in said["logprobs"][:NUM_LABELS]]
        cases.append(
            {"name": case.name, "tokens": asked["tokens"], "labels": said["labels"][:NUM_LABELS], "logprobs": logprobs}
        )
    return {
        "model": name,
        "dtype": job["dtype"],
        "seed": 0 if name in VARIANTS else None,
        "versions": answer["versions"],
        "sha256": checksums(Path(job["model"])),
        "cases": cases,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Store what PyTorch transformers says about the parity texts.")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--reference-python", type=Path, default=Path(".reference-venv/bin/python"))
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"names should be of {', '.join(NAMES)}; got {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as folder:
        jobs = [new_job(name, _model(name, Path(folder))) for name in arguments.names]
        for name, job, answer in zip(arguments.names, jobs, ask(arguments.reference_python, jobs), strict=True):
            stored = to_store(name, job, answer)
            save_stored(name, stored)
            best = [math.exp(max(case["logprobs"])) for case in stored["cases"]]
            print(f"{name}: {len(best)} sequences, likeliest token {min(best):.3f} to {max(best):.3f}")


def _model(name: str, folder: Path) -> Path:
    return make_checkpoint(folder / name, name) if name in VARIANTS else bundled_path(name)


if __name__ == "__main__":
    main()
