"""What a shared object needs is read from its file, and a library that not every Linux can load is refused."""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

RELEASE = Path(__file__).parents[2] / "release"
NUMPY = next(Path(np.__file__).parent.glob("_core/_multiarray_umath*.so"), None)
pytestmark = pytest.mark.skipif(
    NUMPY is None or platform.system() != "Linux", reason="NumPy's libraries are not ELF files here"
)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """`elf` and `build_wheels`."""
    monkeypatch.syspath_prepend(str(RELEASE))
    import build_wheels
    import elf

    return elf, build_wheels


def test_machine_libraries_and_versions_are_read(scripts: tuple[ModuleType, ModuleType]) -> None:
    library = scripts[0].read_shared_object(NUMPY)
    assert library.machine == platform.machine()
    assert "libc.so.6" in library.libraries
    assert (2, 2) < library.glibc < (3, 0)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_readelf_reads_the_same(scripts: tuple[ModuleType, ModuleType]) -> None:
    for path in (NUMPY, Path(sys.executable).resolve()):
        library = scripts[0].read_shared_object(path)
        text = subprocess.run(["readelf", "-W", "-d", "-V", path], capture_output=True, text=True, check=True).stdout
        assert set(library.libraries) == set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
        needs = text.partition("Version needs section")[2]
        assert set(library.versions) == set(re.findall(r"Name: (\S+) +Flags", needs))


def test_a_library_that_asks_too_much_is_refused(
    scripts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elf, wheels = scripts
    system = elf.read_shared_object(NUMPY).libraries
    monkeypatch.setattr(wheels, "SYSTEM_LIBRARIES", system)
    monkeypatch.setattr(wheels, "GLIBC", (2, 99))
    wheels.check_library(NUMPY, platform.machine())
    with pytest.raises(wheels.WheelError, match="not for riscv64"):
        wheels.check_library(NUMPY, "riscv64")
    monkeypatch.setattr(wheels, "GLIBC", (2, 2))
    with pytest.raises(wheels.WheelError, match=r"needs glibc 2\.\d+; the limit is 2\.2"):
        wheels.check_library(NUMPY, platform.machine())
    monkeypatch.setattr(wheels, "SYSTEM_LIBRARIES", ("libm.so.6",))
    with pytest.raises(wheels.WheelError, match=r"needs .*libc\.so\.6"):
        wheels.check_library(NUMPY, platform.machine())
    (tmp_path / "text.so").write_text("INPUT(libc.so.6)")
    with pytest.raises(ValueError, match="not a 64-bit"):
        elf.read_shared_object(tmp_path / "text.so")
