"""A program's key changes with everything that could change the program, and with nothing else."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from engine.programs.program_process import key_of
from onepass.attention.base import StepShape
from onepass.engine.programs import key as program_key
from onepass.engine.programs.key import PACKAGE, STEP_SOURCES, ProgramKey, Toolchain, signature, source_digest

KEY = ProgramKey(
    name="step",
    model="ModelConfig(layers=2)",
    dtype="bfloat16",
    quantize=None,
    kernels=("xla", "xla"),
    shape=StepShape(512, 64, 128, 256, 64),
    pool_pages=100,
    mesh="one device",
    toolchain=Toolchain.here(jax.devices()[:1], source="source"),
)
# Packages that define no step; a new package belongs here or in STEP_SOURCES.
OTHER_PACKAGES = {
    "bulk",
    "evaluate",
    "html_report",
    "visualize",
    "decisions",
    "integrations",
    "bench",
    "capacity",
    "cli",
    "client",
    "evidence",
    "loading",
    "server",
    "validate",
}


def changed(value: Any) -> Any:
    match value:
        case int():
            return value + 1
        case None:
            return "fp8"
        case tuple():
            return (*value, 7) if value and isinstance(value[0], int) else (*value, "more")
        case _:
            return value + "x"


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(ProgramKey) if f.name not in ("shape", "toolchain")]
)
def test_digest_changes_with_each_field(field: str) -> None:
    other = dataclasses.replace(KEY, **{field: changed(getattr(KEY, field))})
    assert other.digest() != KEY.digest()


@pytest.mark.parametrize("part", ["shape", "toolchain"])
def test_digest_changes_with_each_field_of_shape_and_toolchain(part: str) -> None:
    value = getattr(KEY, part)
    names = [field.name for field in dataclasses.fields(value)]
    others = [dataclasses.replace(value, **{name: changed(getattr(value, name))}) for name in names]
    digests = {dataclasses.replace(KEY, **{part: other}).digest() for other in others} | {KEY.digest()}
    assert len(digests) == len(names) + 1


def test_digest_does_not_run_neighbouring_fields_together() -> None:
    one = dataclasses.replace(KEY, model="ab", dtype="c")
    assert one.digest() != dataclasses.replace(KEY, model="a", dtype="bc").digest()
    assert dataclasses.replace(KEY, quantize="None").digest() != KEY.digest()


def digest_in_process(environment: dict[str, str], code: str = "pass") -> str:
    script = f"import jax; {code}; from engine.programs.program_process import key_of; print(key_of(8).digest())"
    path = {"PYTHONPATH": str(Path(__file__).parents[2]), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=path | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_digest_is_the_same_in_another_process_and_changes_with_xla_flags_and_jax_settings() -> None:
    """XLA says itself which options it has; nothing here reads the environment."""
    plain = digest_in_process({})
    assert digest_in_process({"JAX_LOGGING_LEVEL": "ERROR", "JAX_COMPILATION_CACHE_DIR": "/nowhere"}) == plain
    others = [
        digest_in_process({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}),
        digest_in_process({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}),
        digest_in_process({}, "jax.config.update('jax_default_matmul_precision', 'float32')"),
    ]
    assert len({plain, *others}) == 4


def test_settings_of_the_calling_thread_count() -> None:
    plain = key_of(8).digest()
    with jax.default_matmul_precision("float32"):
        assert key_of(8).digest() != plain
    assert key_of(8).digest() == plain


def test_cpu_is_part_of_the_key_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = program_key._host_cpu()
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else pytest.skip("not Linux")
    line = next(line for line in text.splitlines() if line.startswith(("flags", "Features")))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text.replace(line, line + " amx_of_tomorrow"))
    assert program_key._host_cpu.__wrapped__() != mine


def test_signature_tells_shape_dtype_and_structure_apart() -> None:
    array = jnp.zeros((2, 3))
    trees = [array, array.T, array.astype(jnp.bfloat16), (array,), [array], {"a": array}]
    assert len({signature(tree) for tree in trees}) == len(trees)
    assert signature(jnp.ones((2, 3))) == signature(array), "values are no part of it"


@pytest.fixture
def source_tree(tmp_path: Path) -> tuple[Path, ...]:
    """A copy of what defines a step, with its own C++ where the package has none."""
    for name in STEP_SOURCES:
        if (PACKAGE / name).exists():
            shutil.copytree(PACKAGE / name, tmp_path / name)
    return program_key.step_sources(tmp_path)


@pytest.mark.parametrize("suffix", [".py", ".cc", ".h"])
def test_source_digest_changes_with_one_character(source_tree: tuple[Path, ...], suffix: str) -> None:
    digest = source_digest.__wrapped__
    before = digest(source_tree)
    assert digest(source_tree) == before
    for root in source_tree:
        for path in sorted(root.rglob(f"*{suffix}"))[:2]:
            text = path.read_text()
            number = next((i for i, letter in enumerate(text) if letter.isdigit()), 0)
            path.write_text(text[:number] + ("1" if text[number] != "1" else "2") + text[number + 1 :])
            assert digest(source_tree) != before, path
            path.write_text(text)
    assert digest(source_tree) == before
    assert any(list(root.rglob(f"*{suffix}")) for root in source_tree), "there was something to change"


def test_source_digest_changes_with_a_name_and_not_with_what_is_no_source(source_tree: tuple[Path, ...]) -> None:
    digest = source_digest.__wrapped__
    before = digest(source_tree)
    (source_tree[0] / "__pycache__").mkdir(exist_ok=True)
    (source_tree[0] / "__pycache__" / "base.pyc").write_bytes(b"1")
    assert digest(source_tree) == before
    (source_tree[0] / "base.py").rename(source_tree[0] / "basis.py")
    assert digest(source_tree) != before


def test_source_digest_of_a_copy_elsewhere_is_the_same(source_tree: tuple[Path, ...]) -> None:
    assert source_digest(source_tree) == source_digest(program_key.step_sources())


def test_every_package_is_decided_on() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert packages <= {*STEP_SOURCES} | OTHER_PACKAGES, "a new package: is it part of a step?"
