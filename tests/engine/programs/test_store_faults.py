"""Failing disks are warnings; a damaged or foreign file is deleted, and nothing of it is unpickled."""

import errno
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from engine.programs.program_process import key_of
from onepass.engine.programs.program_file import FORMAT, HEADER, MAGIC, write_payload
from onepass.engine.programs.store import ProgramStore


def test_full_disk_is_a_warning(tmp_path: Path, program: jax.stages.Compiled, caplog: pytest.LogCaptureFixture) -> None:
    """A file system of 16 kB, where mounting is permitted."""
    tmp_path.chmod(0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted")
    try:
        store = ProgramStore(tmp_path)
        assert not store.save(key_of(8), program)
        assert "No space left on device" in caplog.text
        assert list(tmp_path.iterdir()) == []
        assert store.load(key_of(8)) is None
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_any_disk_error_while_saving_is_a_warning(
    store: ProgramStore,
    program: jax.stages.Compiled,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert not store.save(key_of(8), program)
    assert os.strerror(number) in caplog.text
    assert list(store.folder.iterdir()) == []
    assert store.save(key_of(8), program), "and works again when there is room"


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in its header": lambda data: data[:50],
    "cut by a byte": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"0",
    "a bit of the payload": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a checksum of zeros": lambda data: data[: HEADER.size - 32] + bytes(32) + data[HEADER.size :],
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: pickle.dumps({"not": "ours"}) * 100,
    "another format": lambda data: MAGIC + (FORMAT + 1).to_bytes(4, "little") + data[20:],
    "a huge length": lambda data: data[:20] + (2**63).to_bytes(8, "little") + data[28:],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.usefixtures("no_unpickling")
def test_damaged_file_is_deleted_before_anything_is_unpickled(store: ProgramStore, saved: Path, damage: str) -> None:
    saved.write_bytes(DAMAGE[damage](saved.read_bytes()))
    assert store.load(key_of(8)) is None
    assert not saved.exists()


@pytest.mark.usefixtures("no_unpickling")
def test_program_of_another_key_does_not_load_under_this_one(store: ProgramStore, saved: Path) -> None:
    shutil.copy2(saved, store.folder / f"{key_of(16).digest()}.program")
    assert store.load(key_of(16)) is None
    assert list(store.folder.iterdir()) == [saved]


def test_sound_file_whose_program_does_not_load_is_deleted(
    store: ProgramStore, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store._open_folder() as folder:
        write_payload(folder, key_of(8).digest(), pickle.dumps((b"not an executable", None, None)))
    assert store.load(key_of(8)) is None
    assert "does not load, compiling it" in caplog.text
    assert not saved.exists()


@pytest.mark.usefixtures("no_unpickling")
def test_links_pipes_and_folders_by_a_programs_name_are_not_read(store: ProgramStore, saved: Path) -> None:
    elsewhere = saved.rename(store.folder.parent / "elsewhere")
    saved.symlink_to(elsewhere)
    assert store.load(key_of(8)) is None
    assert not saved.is_symlink()
    assert elsewhere.exists()
    os.mkfifo(saved)
    assert store.load(key_of(8)) is None
    saved.mkdir()
    assert store.load(key_of(8)) is None


def test_file_in_the_folders_place_is_a_warning(tmp_path: Path, program: jax.stages.Compiled) -> None:
    (tmp_path / "programs").write_text("")
    store = ProgramStore(tmp_path / "programs")
    assert (store.load(key_of(8)), store.save(key_of(8), program), store.entries()) == (None, 0, [])
    assert "Not a directory" in str(store.problem())
