"""Builds `.reference-venv`, the environment with PyTorch that parity is checked against, where that is cheap.

Cheap means: pip would take a torch archive that is local or small, and nothing of CUDA with it. Otherwise this says
why, leaves no environment and exits 0; tests then use the stored values. Packages come through the user's own pip
settings.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ENVIRONMENT = Path(__file__).parents[2] / ".reference-venv"
STAMP = "built-from.sha256"
LARGEST_TORCH_MB = 400
MEGABYTES = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
GPU_PACKAGE = re.compile(r"nvidia|cuda|triton|rocm", re.IGNORECASE)
# Lines of pip's output: "Collecting triton==3.7.1 (from torch)", "  Downloading torch-2.13.0-...whl (531.2 MB)".
COLLECTING = re.compile(r"Collecting (?P<name>[A-Za-z0-9._-]+)")
FETCHING_TORCH = re.compile(r"\s*Downloading torch-\S+\.whl \((?P<size>[\d.]+) (?P<unit>bytes|kB|MB|GB)\)")
# From 23.3 on a dry run reads metadata alone, where the index serves it by itself.
OLDEST_PIP = (23, 3)


class NotCheap(Exception):
    """Why no environment was built; the message is for the user."""


def main() -> None:
    built_from = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = ENVIRONMENT / STAMP
    if stamp.is_file() and stamp.read_text().strip() == built_from and python_of(ENVIRONMENT).exists():
        print(f"reference environment: {ENVIRONMENT.name} is up to date")
        return
    reasons = []
    for interpreter in interpreters():
        try:
            build(interpreter, ENVIRONMENT)
        except NotCheap as reason:
            reasons.append(f"  with {Path(interpreter).name}: {reason}")
        else:
            stamp.write_text(built_from + "\n")
            print(f"reference environment: built {ENVIRONMENT.name} with {Path(interpreter).name}")
            return
        finally:
            if not stamp.is_file() or stamp.read_text().strip() != built_from:
                shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    print("reference environment: none, so parity is checked against stored values\n" + "\n".join(reasons))


def interpreters() -> list[str]:
    """Python 3.11 first, as PyTorch has wheels for it everywhere; then the Python that runs this."""
    found = [shutil.which("python3.11"), sys.executable]
    return list(dict.fromkeys(path for path in found if path))


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def build(interpreter: str, environment: Path) -> None:
    """An environment with all requirements, or `NotCheap`; half of one may be left behind for the caller to remove."""
    shutil.rmtree(environment, ignore_errors=True)
    run([interpreter, "-m", "venv", str(environment)], "a virtual environment could not be made")
    python = python_of(environment)
    if pip_version(python) < OLDEST_PIP:
        wanted = ".".join(map(str, OLDEST_PIP))
        pip(python, ["install", f"pip>={wanted}"], f"pip {wanted} or later could not be installed")
    check_plan(python)
    print("reference environment: installing", ", ".join(requirements()), flush=True)
    pip(python, ["install", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)], "pip failed")


def requirements() -> list[str]:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def pip_version(python: Path) -> tuple[int, int]:
    said = pip(python, ["--version"], "the virtual environment has no pip")
    major, minor = re.findall(r"\d+", said)[:2]
    return int(major), int(minor)


def check_plan(python: Path) -> None:
    """Raises `NotCheap` where pip's own plan for torch, made without installing anything, holds anything for GPUs."""
    (torch,) = [line for line in requirements() if line.startswith("torch==")]
    report = ENVIRONMENT / "plan.json"
    plan = ["install", "--dry-run", "--only-binary", ":all:", "--report", str(report), torch]
    pip(python, plan, f"pip finds no wheel of {torch}")
    planned = [package["metadata"]["name"] for package in json.loads(report.read_text(encoding="utf-8"))["install"]]
    gpu = sorted(name for name in planned if GPU_PACKAGE.search(name))
    if gpu:
        raise NotCheap(f"pip would install {len(gpu)} packages for GPUs ({', '.join(gpu[:3])}, ...)")


def objection(line: str) -> str | None:
    """Why pip should be stopped at this line of its output, before it fetches what the line announces.

    Without this, an index that does not serve metadata by itself makes even a dry run fetch gigabytes.
    """
    collecting = COLLECTING.match(line)
    if collecting and GPU_PACKAGE.search(collecting["name"]):
        return f"pip would install {collecting['name']}, which is for GPUs"
    fetching = FETCHING_TORCH.match(line)
    if fetching and float(fetching["size"]) * MEGABYTES[fetching["unit"]] > LARGEST_TORCH_MB:
        return f"torch should be local or at most {LARGEST_TORCH_MB} MB; it is {fetching['size']} {fetching['unit']}"
    return None


def pip(python: Path, arguments: list[str], complaint: str) -> str:
    return run([str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments], complaint)


def run(command: list[str], complaint: str) -> str:
    """The command's output; `NotCheap` where it fails, or where `objection` stops it."""
    lines: list[str] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            reason = objection(line)
            if reason:
                process.terminate()
                raise NotCheap(reason)
    if process.returncode != 0:
        errors = [line.strip() for line in lines if line.startswith("ERROR")] or ["".join(lines[-3:]).strip()]
        raise NotCheap(f"{complaint}: {errors[-1]}")
    return "".join(lines)


if __name__ == "__main__":
    main()
