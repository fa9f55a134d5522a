"""What all tests share: the platform they run on, tiny checkpoints, the real small model, the PyTorch reference.

How checkpoints are made is `checkpoints`; how the reference is asked is `reference.oracle`.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before any test imports JAX, which reads this once.
os.environ["JAX_PLATFORMS"] = os.environ.get("ONEPASS_TEST_PLATFORM", "cpu")
# Threads of XLA's pool. In Pallas's GPU interpreter each warpgroup that waits holds one of them: with as many as this
# machine has cores, all would wait for one that is never started. The interpreter's tests make the pool as they are
# collected; processes that tests start have one of their own.
os.environ["NPROC"] = str(max(8, os.cpu_count() or 1))

from checkpoints import make_checkpoint
from compiling import compile_as, share_compilations
from shape_checks import check_as, check_signatures
from tiers import is_extended, place_in_order

share_compilations(os.environ)
check_signatures()
settings.register_profile("onepass", deadline=None)  # no test depends on the machine's speed
settings.load_profile("onepass")

# The TPU compiler, which `make test` keeps apart from .venv. Only tests that describe a TPU import it.
sys.path.append(str(Path(__file__).parents[1] / ".libtpu"))

TESTS = Path(__file__).parent
REFERENCE_PYTHON = Path(__file__).parents[1] / ".reference-venv" / "bin" / "python"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference-python",
        type=Path,
        help="a Python with the packages of tests/reference/requirements.txt (default: .reference-venv's, if built)",
    )


def find_reference_python(config: pytest.Config) -> Path | None:
    """The Python that was asked for, which must be there; else the built one; else none."""
    asked: Path | None = config.getoption("--reference-python")
    if asked is not None and not asked.exists():
        raise pytest.UsageError(f"--reference-python should be an existing Python; there is no {asked}")
    return asked or (REFERENCE_PYTHON if REFERENCE_PYTHON.exists() else None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `tiers` leaves to `make test-all`, and puts long files first."""
    for item in items:
        node = item.path.relative_to(TESTS).as_posix() + "::" + item.nodeid.partition("::")[2]
        call = getattr(item, "callspec", None)
        if is_extended(node, tuple(getattr(item, "fixturenames", ())), call.indices if call else {}):
            item.add_marker(pytest.mark.extended)
    items.sort(key=lambda item: place_in_order(item.path.relative_to(TESTS).as_posix()))


def pytest_report_header(config: pytest.Config) -> str:
    live = find_reference_python(config)
    return f"PyTorch reference: {'live, ' + str(live) if live else 'stored values only (no .reference-venv)'}"


@pytest.fixture(scope="session")
def reference_python(request: pytest.FixtureRequest) -> Path | None:
    """The reference environment's Python, or None where it was not cheap to build."""
    return find_reference_python(request.config)


@pytest.fixture(scope="session")
def trec_eval() -> Any:
    """trec_eval's own code. Its wheels are for x86-64 alone, and building it fetches its source from elsewhere."""
    return pytest.importorskip("pytrec_eval", reason="trec_eval is installed on x86-64 alone")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M, fetched once into the user's cache."""
    from onepass.loading.bundled import bundled_path

    return bundled_path("smollm2-135m")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint(name)`: the folder of a tiny checkpoint, made once per session and not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoints")

    @cache
    def make(name: str) -> Path:
        return make_checkpoint(folder / name, name)

    return make


@pytest.fixture(scope="session")
def built_kernels() -> None:
    """For tests of all that is printed: the first process to need the C++ kernels says that it builds them."""
    from onepass.kernels.cpu import build

    for load, weights in ((build.load_cpu, ""), (build.load_cpu, "gguf"), (build.load_amx, "")):
        with suppress(build.NotBuilt):
            load(weights)


@pytest.fixture
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """`onepass bench` measures this machine's ceilings with a small product and a small copy: milliseconds."""
    from onepass.bench.ceilings import measure_ceilings
    from onepass.bench.offline import run

    monkeypatch.setattr(run, "measure_ceilings", partial(measure_ceilings, product_size=256, copy_bytes=1 << 20))


def pytest_collection_finish() -> None:
    os.environ.pop("NPROC", None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test: those of a session or module compile and are checked as its first test is."""
    node = item.path.relative_to(TESTS).as_posix()
    compile_as(node, os.environ)
    check_as(node, os.environ)
