"""Who may write programs: only folders and files that no other user can write to are read."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from engine.programs.program_process import key_of
from onepass.engine.programs.store import ProgramStore

NOBODY = 65534


def test_new_folder_and_files_are_the_users_alone(store: ProgramStore, saved: Path) -> None:
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.usefixtures("no_unpickling")
def test_folder_that_others_may_write_to_is_refused(
    store: ProgramStore, saved: Path, program: jax.stages.Compiled, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    store.folder.chmod(mode)
    assert store.load(key_of(8)) is None
    assert not store.save(key_of(16), program)
    store.evict(key_of(8))
    assert (store.entries(), list(store.folder.iterdir())) == ([], [saved])
    assert caplog.text.count(f"chmod 700 {store.folder}") == 1, "said once"
    assert f"chmod 700 {store.folder}" in str(store.problem())


@pytest.mark.parametrize("mode", [0o620, 0o602])
@pytest.mark.usefixtures("no_unpickling")
def test_file_that_others_may_write_to_is_deleted(store: ProgramStore, saved: Path, mode: int) -> None:
    saved.chmod(mode)
    assert store.load(key_of(8)) is None
    assert not saved.exists()


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder that another user can reach: pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@needs_root
@pytest.mark.usefixtures("no_unpickling")
def test_folder_file_or_link_of_another_user_is_refused(
    own_folder: Path, program: jax.stages.Compiled, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProgramStore(own_folder / "programs")
    assert store.save(key_of(8), program)
    (file,) = store.folder.iterdir()
    os.chown(store.folder, NOBODY, NOBODY)
    assert store.load(key_of(8)) is None
    assert f"belongs to user {NOBODY}" in caplog.text
    link = ProgramStore(own_folder / "link")
    link.folder.symlink_to(store.folder)
    assert link.load(key_of(8)) is None
    assert "belongs to user" in str(link.problem())
    assert file.exists()
    os.chown(store.folder, 0, 0)
    os.chown(file, NOBODY, NOBODY)
    assert store.load(key_of(8)) is None
    assert not file.exists()


@needs_root
def test_programs_that_root_made_are_used_and_not_written_to(
    own_folder: Path, program: jax.stages.Compiled, caplog: pytest.LogCaptureFixture
) -> None:
    """An image: `onepass compile` as root while it is built, the server as somebody else."""
    store = ProgramStore(own_folder / "programs")
    assert store.save(key_of(8), program)
    (file,) = store.folder.iterdir()
    store.folder.chmod(0o755)
    file.chmod(0o644)
    os.seteuid(NOBODY)
    try:
        assert store.load(key_of(8)) is not None
        assert not store.save(key_of(16), program)
    finally:
        os.seteuid(0)
    assert "Permission denied" in caplog.text
    assert list(store.folder.iterdir()) == [file]


def test_folder_that_cannot_be_read_is_a_warning(
    own_folder: Path, program: jax.stages.Compiled, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProgramStore(own_folder / "programs")
    store.folder.mkdir(mode=0)
    if os.geteuid() == 0:
        os.chown(store.folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        assert store.load(key_of(8)) is None
        assert not store.save(key_of(8), program)
        assert store.entries() == []
        assert "cannot be read: Permission denied" in str(store.problem())
    finally:
        os.seteuid(os.getuid())
    assert caplog.text.count("Permission denied") == 2
