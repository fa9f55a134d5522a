"""Programs kept for other processes: found where the devices are the same, whole whoever writes or is killed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from engine.programs.program_process import key_of
from onepass.engine.programs.store import ProgramStore

SCRIPT = Path(__file__).with_name("program_process.py")


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


def test_two_processes_save_load_and_evict_in_one_folder(tmp_path: Path) -> None:
    processes = [start("hammer", tmp_path, "60") for _ in range(2)]
    answers = [answer_of(process) for process in processes]
    assert [answer["wrong"] for answer in answers] == [0, 0]
    assert [answer["warnings"] for answer in answers] == [[], []]
    assert [answer["saved"] for answer in answers] == [60, 60]
    assert all(answer["found"] > 10 for answer in answers)
    assert not list(tmp_path.glob("*.tmp"))
