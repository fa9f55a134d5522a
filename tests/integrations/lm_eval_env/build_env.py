"""Builds the two environments with lm-evaluation-harness, below `.eval-venv`: `hf` above the packages of
`.reference-venv` (torch, transformers) and `onepass` above those of `.venv`. They differ in the version of Python.

Neither torch nor JAX is fetched or stored twice. Packages come through the user's own pip settings, once per version of
the requirements. Without `.reference-venv` there is no `hf`, and what needs it is skipped. Where an environment cannot
be built, this says why, leaves none and exits 0; with CI=true it exits 1.
"""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from clients.build_env import CannotBuild, run

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
SHARED_REQUIREMENTS = HERE / "requirements.txt"
WITHOUT_WHEEL = "sqlitedict,word2number"


@dataclass(frozen=True)
class EvalEnvironment:
    requirements: Path
    folder: Path
    below: Path  # the environment whose packages it shares

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.folder / "built-from.sha256"

    def is_built(self) -> bool:
        built = self.python.exists() and self.stamp.is_file() and bool(self.packages_below())
        return built and self.stamp.read_text(encoding="utf-8").strip() == self.built_from()

    def built_from(self) -> str:
        """Of what was asked for, and of the environment below: its folder names the version of Python."""
        files = SHARED_REQUIREMENTS.read_bytes() + self.requirements.read_bytes()
        return hashlib.sha256(files + "".join(map(str, self.packages_below())).encode()).hexdigest()

    def packages_below(self) -> list[Path]:
        return sorted(self.below.glob("lib/python*/site-packages"))

    def build(self) -> None:
        """Every package is named, so pip need not search; that they agree is checked afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)
        python = str(self.below / "bin" / "python")
        run([python, "-m", "venv", "--without-pip", str(self.folder)], "a virtual environment could not be made")
        print("lm-eval's environment: installing", self.requirements.name, flush=True)
        listed = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--no-binary", WITHOUT_WHEEL, "--requirement"]
        self.pip(["install", *listed, str(self.requirements)], "pip failed")
        (below,) = self.packages_below()
        (packages,) = self.folder.glob("lib/python*/site-packages")
        line = f"import site; site.addsitedir({str(below)!r})\n"
        (packages / "packages-below.pth").write_text(line, encoding="utf-8")
        self.pip(["check"], "the packages do not agree")
        self.stamp.write_text(self.built_from() + "\n", encoding="utf-8")

    def pip(self, arguments: list[str], complaint: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "--no-input"]
        run([*pip, *arguments], complaint)


HF = EvalEnvironment(HERE / "hf_requirements.txt", ROOT / ".eval-venv" / "hf", ROOT / ".reference-venv")
ONEPASS = EvalEnvironment(HERE / "onepass_requirements.txt", ROOT / ".eval-venv" / "onepass", Path(sys.prefix))


def main() -> int:
    failed = 0
    for environment in (HF, ONEPASS):
        name = f"{environment.folder.parent.name}/{environment.folder.name}"
        if not environment.packages_below():
            print(f"lm-eval's environment: no {name}, for there is no {environment.below.name}")
        elif environment.is_built():
            print(f"lm-eval's environment: {name} is up to date")
        else:
            try:
                environment.build()
            except CannotBuild as reason:
                shutil.rmtree(environment.folder, ignore_errors=True)
                print(f"lm-eval's environment: no {name}, so the harness is not tried\n  {reason}")
                failed = 1
            else:
                print(f"lm-eval's environment: built {name}")
    return failed if os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
