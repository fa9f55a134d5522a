"""The wheel has everything in it: installed outside of the checkout, it scores."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tree = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(tree)]
    subprocess.run(command, check=True, cwd=folder)
    (built,) = folder.glob("onepass-*.whl")
    return built


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    package = ROOT / "src" / "onepass"
    kinds = ("*.py", "*.cc", "*.h", "py.typed", "*.css", "*.js", "*.html", "*.svg")
    wanted = {f"onepass/{path.relative_to(package).as_posix()}" for kind in kinds for path in package.rglob(kind)}
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


def test_the_installed_wheel_scores(wheel: Path, tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, cwd=tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = [sys.executable, "-c", "import onepass; print(onepass.__file__)"]
    found = subprocess.run(where, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(site), "this is the wheel, not the checkout"
    command = [sys.executable, "-m", "onepass.cli.main", "score", str(checkpoint("qwen3")), "--query", "The fox"]
    options = ["--items", " jumps", " sleeps", "--labels", " yes", " no", "--json"]
    ran = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert '"scores"' in ran.stdout
