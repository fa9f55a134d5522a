"""No folder has more than 20 tracked files side by side: a newcomer takes a folder in at a glance.

Folders inside a folder are not counted, nor is what git ignores.
"""

import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES = 20


def tracked_files(folder: Path) -> list[str]:
    """Every file that git tracks below `folder`, relative to it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True)
    return listed.stdout.rstrip("\0").split("\0")


def crowded_folders(files: Iterable[str]) -> dict[str, int]:
    """The folders with more than `MOST_FILES` of these files, and how many each has."""
    counts = Counter(str(PurePosixPath(file).parent) for file in files)
    return {folder: count for folder, count in sorted(counts.items()) if count > MOST_FILES}


def test_no_folder_has_more_than_20_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: only git tells which files are ours")
    files = tracked_files(ROOT)
    assert {"README.md", "src/onepass/scorer.py", "tests/conftest.py"} <= set(files), "the files were found"
    assert crowded_folders(files) == {}, f"a folder has at most {MOST_FILES} files: sort what it has into folders"


def test_a_crowded_folder_would_be_noticed(tmp_path: Path) -> None:
    """The negative control, with git's own list: 20 files may be there, 21 may not, ignored ones do not count."""
    for name in ("many", "few", "few/inner"):
        (tmp_path / name).mkdir()
        for number in range(MOST_FILES + (name == "many")):
            (tmp_path / name / f"ä file {number}.txt").touch()
    (tmp_path / "few" / "ignored.o").touch()
    (tmp_path / ".gitignore").write_text("*.o\n", encoding="utf-8")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert crowded_folders(tracked_files(tmp_path)) == {"many": MOST_FILES + 1}
    assert crowded_folders(f"{number}.md" for number in range(MOST_FILES + 1)) == {".": MOST_FILES + 1}
