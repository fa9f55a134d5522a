"""Builds `.ray-venv`, the environment with Ray: the packages of requirements.txt, above those of the Python that runs
this (`.venv`), so that JAX and onepass are neither fetched nor stored twice.

Wheels through the user's own pip settings, once per version of requirements.txt; pip keeps what it has fetched.
Bytecode is compiled here, for Ray gives its processes little time to start. Where the environment cannot be built,
this says why, leaves none and exits 0, and the tests that need it are skipped; with CI=true it exits 1.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from clients.build_env import CannotBuild, run

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = Path(__file__).parents[3] / ".ray-venv"
PYTHON, STAMP = FOLDER / "bin" / "python", FOLDER / "built-from.sha256"


def is_built() -> bool:
    return PYTHON.exists() and STAMP.is_file() and STAMP.read_text(encoding="utf-8").strip() == built_from()


def built_from() -> str:
    below = f"{sys.version} {sysconfig.get_path('purelib')}"
    return hashlib.sha256(REQUIREMENTS.read_bytes() + below.encode()).hexdigest()


def build() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(FOLDER)], "a virtual environment could not be made")
    print("Ray's environment: installing", REQUIREMENTS.name, flush=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run([*pip, "install", "--no-deps", "--only-binary", ":all:", "--requirement", str(REQUIREMENTS)], "pip failed")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(FOLDER)}))
    above = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "packages-of-venv.pth").write_text(above, encoding="utf-8")
    run([*pip, "check"], "the packages do not agree")
    STAMP.write_text(built_from() + "\n", encoding="utf-8")


def main() -> int:
    if is_built():
        print(f"Ray's environment: {FOLDER.name} is up to date")
        return 0
    try:
        build()
    except CannotBuild as reason:
        shutil.rmtree(FOLDER, ignore_errors=True)
        print(f"Ray's environment: no {FOLDER.name}, so Ray is not tried\n  {reason}")
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"Ray's environment: built {FOLDER.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
