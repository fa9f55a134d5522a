"""Compiled programs survive the process, and nothing else does: no half file, no foreign one, none of another key."""

import dataclasses
import errno
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from engine.programs.program_process import compiled, key_of, run
from onepass.engine.programs import store as program_store
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.program_file import FORMAT, HEADER, MAGIC, write_payload
from onepass.engine.programs.store import ProgramStore, describe_store

SCRIPT = Path(__file__).with_name("program_process.py")
NOBODY = 65534


def start(command: str, folder: Path, argument: str = "8", **environment: str) -> "subprocess.Popen[str]":
    own = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    arguments = [sys.executable, str(SCRIPT), command, str(folder), argument]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=own)


def answer_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(output)
    return answer


def ask(command: str, folder: Path, argument: str = "8", **environment: str) -> dict[str, Any]:
    return answer_of(start(command, folder, argument, **environment))


@pytest.fixture(scope="module")
def program() -> jax.stages.Compiled:
    return compiled(8)


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path / "programs")


@pytest.fixture
def saved(store: ProgramStore, program: jax.stages.Compiled) -> Path:
    """The one file of a store."""
    assert store.save(key_of(8), program)
    (file,) = store.folder.iterdir()
    return file


@pytest.fixture
def no_unpickling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(program_store.pickle, "loads", refuse)
    monkeypatch.setattr(program_store.serialize_executable, "deserialize_and_load", refuse)


# Round trips


def test_program_loads_in_another_process_with_the_same_results_and_donation(tmp_path: Path) -> None:
    made, kept = ask("save", tmp_path / "new" / "programs"), ask("load", tmp_path / "new" / "programs")
    assert (made["saved"] > 0, kept["found"], made["warnings"], kept["warnings"]) == (True, True, [], [])
    assert (kept["scores"], kept["pool"]) == (made["scores"], made["pool"])
    assert made["in_place"]
    assert kept["in_place"]


def test_program_is_not_found_where_the_process_has_other_devices(tmp_path: Path) -> None:
    assert ask("save", tmp_path)["saved"]
    two = ask("load", tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert (two["found"], two["warnings"]) == (False, [])
    assert ask("load", tmp_path)["found"]


def test_program_of_two_devices_loads_in_another_process(tmp_path: Path) -> None:
    """One program over a mesh of two, and one for the second device of them: a replica's."""
    code = f"""
import sys; sys.path.insert(0, {str(SCRIPT.parents[2])!r})
import dataclasses, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from pathlib import Path
from engine.programs.program_process import key_of
from onepass.engine.programs.key import Toolchain
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.store import ProgramStore
store = ProgramStore(Path({str(tmp_path)!r}))
mesh = NamedSharding(Mesh(np.array(jax.devices()), ("tp",)), P("tp"))
for devices, sharding in ((jax.devices(), mesh), (jax.devices()[1:], SingleDeviceSharding(jax.devices()[1]))):
    key = dataclasses.replace(key_of(8), toolchain=Toolchain.here(devices, source=""))
    x = jax.device_put(jnp.arange(8.0), sharding)
    program = store.load(key, devices)
    found = program is not None
    if program is None:
        program = compile_whole(jax.jit(lambda x: jnp.cumsum(x) + x).lower(x))
        assert store.save(key, program)
    y = program(x)
    print(found, y.devices() == set(devices), float(y.sum()))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    results = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [result.stderr for result in results if result.returncode] == []
    assert [result.stdout for result in results] == ["False True 112.0\n" * 2, "True True 112.0\n" * 2]


def test_program_from_jaxs_own_cache_is_compiled_anew(
    tmp_path: Path, store: ProgramStore, caplog: pytest.LogCaptureFixture
) -> None:
    """JAX's cache gives executables without their machine code, on a CPU: loaded again, they would fail."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        jax_cache.reset_cache()
        for name, value in settings.items():
            jax.config.update(name, value)
        lowered = [jax.jit(lambda x: jnp.cos(x) @ x + 3).lower(jnp.ones((8, 8))) for _ in range(3)]
        lowered[0].compile()
        from_cache, whole = lowered[1].compile(), compile_whole(lowered[2])
        assert jax.config.jax_enable_compilation_cache, "as it was"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()
    assert not store.save(key_of(8), from_cache), "the negative control"
    assert "no machine code" in caplog.text
    assert store.save(key_of(8), whole)


def test_loaded_program_is_not_saved_again(store: ProgramStore, saved: Path) -> None:
    loaded = store.load(key_of(8))
    assert loaded is not None
    assert not store.save(key_of(16), loaded)
    assert [entry.digest for entry in store.entries()] == [key_of(8).digest()]


def test_program_that_cannot_be_serialised_is_a_warning(store: ProgramStore, caplog: pytest.LogCaptureFixture) -> None:
    """XLA's CPU programs that sort cannot, once they have run."""
    sorting = compile_whole(jax.jit(jnp.sort).lower(jnp.ones((8, 8))))
    sorting(jnp.ones((8, 8)))
    assert not store.save(key_of(8), sorting)
    assert "cannot be serialised" in caplog.text
    assert not store.folder.exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_program_with_our_own_cplusplus_loads_where_it_is_registered(tmp_path: Path) -> None:
    """And is a miss, not a crash, where it is not."""
    source, library = tmp_path / "times.cc", tmp_path / "times.so"
    source.write_text(FFI_SOURCE)
    headers = jax.ffi.include_dir()
    subprocess.run(
        ["g++", "-std=c++17", "-w", "-fPIC", "-shared", "-isystem", headers, str(source), "-o", str(library)],
        check=True,
    )
    code = f"""
import sys; sys.path.insert(0, {str(SCRIPT.parents[2])!r})
import ctypes, jax, jax.numpy as jnp, numpy as np
from pathlib import Path
from engine.programs.program_process import key_of
from onepass.engine.programs.compile_whole import compile_whole
from onepass.engine.programs.store import ProgramStore
store = ProgramStore(Path({str(tmp_path / "programs")!r}))
if sys.argv[1] != "unregistered":
    function = jax.ffi.pycapsule(ctypes.CDLL({str(library)!r}).times)
    jax.ffi.register_ffi_target("store_test_times", function, platform="cpu")
def step(pool, x):
    call = jax.ffi.ffi_call("store_test_times", jax.ShapeDtypeStruct(x.shape, x.dtype))
    def layer(carry, number):
        x, pool = carry
        y = call(x, factor=np.int32(3))
        return (jnp.tanh(y), pool.at[number].set(y)), None
    return jax.lax.scan(layer, (x, pool), jnp.arange(3))[0]
arguments = jnp.zeros((3, 8)), jnp.arange(8.0) / 8
if sys.argv[1] == "save":
    program = compile_whole(jax.jit(step, donate_argnums=0).lower(*arguments))
    assert store.save(key_of(8), program)
else:
    program = store.load(key_of(8))
print("miss" if program is None else [np.asarray(each).tobytes().hex() for each in program(*arguments)])
"""
    outputs = [
        subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout
        for how in ("save", "load", "unregistered")
    ]
    assert outputs[0] == outputs[1] != ""
    assert outputs[2] == "miss\n"
    assert not list((tmp_path / "programs").iterdir()), "what does not load is thrown away"


FFI_SOURCE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Times(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y, int32_t factor) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = factor * x.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(times, Times, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>()
    .Ret<ffi::Buffer<ffi::F32>>().Attr<int32_t>("factor"));
"""


# Killed, full, shared


@pytest.mark.parametrize("points", [("opened", "header", "half"), ("fsync", "rename")])
def test_killed_writer_leaves_nothing_that_is_read(
    store: ProgramStore, program: jax.stages.Compiled, points: tuple[str, ...]
) -> None:
    processes = [start("hang", store.folder, point) for point in points]
    for process, point in zip(processes, points, strict=True):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"at": point}
        process.kill()
        assert process.wait() == -9
        process.stdout.close()
    left = [file.name for file in store.folder.iterdir()]
    assert len(left) == len(points)
    assert all(name.endswith(".tmp") for name in left)
    assert (store.load(key_of(8)), store.entries(), store.size) == (None, [], 0)
    assert store.save(key_of(8), program)
    assert len(list(store.folder.iterdir())) == len(points) + 1, "what is young may still be written"
    patient = ProgramStore(store.folder, abandoned_seconds=-1)
    assert patient.load(key_of(8)) is not None
    assert [file.suffix for file in store.folder.iterdir()] == [".program"]


def test_file_size_limit_while_writing_is_a_warning_and_scoring_goes_on(tmp_path: Path) -> None:
    answer = ask("limited", tmp_path)
    assert (answer["saved"], answer["in_place"]) == (0, True)
    assert "File too large" in answer["warnings"][0]
    assert list(tmp_path.iterdir()) == []


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


def test_two_processes_save_load_and_evict_in_one_folder(tmp_path: Path) -> None:
    processes = [start("hammer", tmp_path, "60") for _ in range(2)]
    answers = [answer_of(process) for process in processes]
    assert [answer["wrong"] for answer in answers] == [0, 0]
    assert [answer["warnings"] for answer in answers] == [[], []]
    assert [answer["saved"] for answer in answers] == [60, 60]
    assert all(answer["found"] > 10 for answer in answers)
    assert not list(tmp_path.glob("*.tmp"))


# What is no program of ours


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


def test_program_of_another_version_is_not_found(store: ProgramStore, saved: Path) -> None:
    toolchain = dataclasses.replace(key_of(8).toolchain, versions=("onepass 0.0.1",))
    assert store.load(dataclasses.replace(key_of(8), toolchain=toolchain)) is None
    assert store.load(key_of(8)) is not None


def test_sound_file_whose_program_does_not_load_is_deleted(
    store: ProgramStore, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store._open_folder() as folder:
        write_payload(folder, key_of(8).digest(), pickle.dumps((b"not an executable", None, None)))
    assert store.load(key_of(8)) is None
    assert "does not load, compiling it" in caplog.text
    assert not saved.exists()


def test_evicted_program_is_gone(store: ProgramStore, saved: Path) -> None:
    store.evict(key_of(8))
    assert (saved.exists(), store.load(key_of(8))) == (False, None)
    store.evict(key_of(8))


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


# Who may write


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


def test_file_in_the_folders_place_is_a_warning(tmp_path: Path, program: jax.stages.Compiled) -> None:
    (tmp_path / "programs").write_text("")
    store = ProgramStore(tmp_path / "programs")
    assert (store.load(key_of(8)), store.save(key_of(8), program), store.entries()) == (None, 0, [])
    assert "Not a directory" in str(store.problem())


# Bounds


def test_least_recently_used_programs_make_room(store: ProgramStore, program: jax.stages.Compiled) -> None:
    assert store.save(key_of(8), program)
    size = store.size
    bounded = ProgramStore(store.folder, max_bytes=int(3.5 * size))
    for age, tokens in enumerate((8, 16, 24)):
        assert bounded.save(key_of(tokens), program)
        file = store.folder / f"{key_of(tokens).digest()}.program"
        os.utime(file, (time.time() - 1000 + age, time.time() - 1000 + age))
    assert bounded.load(key_of(8)) is not None, "the oldest, and now the most recently used"
    assert bounded.save(key_of(32), program)
    assert {entry.digest for entry in bounded.entries()} == {key_of(tokens).digest() for tokens in (8, 24, 32)}
    assert bounded.size <= bounded.max_bytes


def test_program_beyond_the_bound_is_not_kept(tmp_path: Path, program: jax.stages.Compiled) -> None:
    store = ProgramStore(tmp_path / "programs", max_bytes=1000)
    assert not store.save(key_of(8), program)
    assert store.entries() == []


def test_other_files_in_the_folder_are_left_alone(store: ProgramStore, program: jax.stages.Compiled) -> None:
    store.folder.mkdir(mode=0o700)
    note = store.folder / "note.txt"
    note.write_text("x" * 100_000)
    os.utime(note, (0, 0))
    assert ProgramStore(store.folder, max_bytes=90_000).save(key_of(8), program)
    assert note.exists()


def test_saving_again_replaces(store: ProgramStore, saved: Path, program: jax.stages.Compiled) -> None:
    assert store.save(key_of(8), program)
    assert list(store.folder.iterdir()) == [saved]
    loaded = store.load(key_of(8))
    assert run(loaded, 8) == run(program, 8)


def test_store_describes_itself(store: ProgramStore, saved: Path) -> None:
    facts = describe_store(store.folder)
    assert facts == {"folder": str(store.folder), "programs": 1, "bytes": saved.stat().st_size, "problem": None}
    assert describe_store(store.folder / "none") == {
        "folder": str(store.folder / "none"), "programs": 0, "bytes": 0, "problem": None,
    }  # fmt: skip
    store.folder.chmod(0o777)
    assert "chmod 700" in describe_store(store.folder)["problem"]
