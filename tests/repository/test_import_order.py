"""A module imports only its own package and what lies below it; JAX stays below the command line and the server.

cli → integrations → capacity | bulk | evaluate → bench | validate | server | client | cluster → evidence → scorer
    → decisions → engine → loading → models → attention → native | parallel → api, errors, version
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import onepass

SOURCE = Path(onepass.__file__).parent
LEVELS = [
    {"errors", "version", "limits"},
    {"tables", "trace", "html_report"},
    {"api"},
    {"ipc"},
    {"parallel"},
    {"attention"},
    {"models"},
    {"kernels"},
    {"loading"},
    {"engine"},
    {"decisions"},
    {"scorer"},
    {"evidence", "visualize"},
    {"bench", "validate", "server", "client", "cluster"},
    {"capacity", "bulk", "evaluate"},
    {"integrations"},
    {"cli"},
    {"__main__"},
]
MAY_IMPORT_JAX = {
    "kernels", "parallel", "attention", "models", "loading", "engine", "scorer", "evidence",
    "bench", "validate", "capacity", "visualize",
}  # fmt: skip
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(module: str) -> str:
    """`onepass.engine.planner` is of the part `engine`."""
    return module.split(".")[1]


def module_name(path: Path) -> str:
    return ".".join(["onepass", *path.relative_to(SOURCE).with_suffix("").parts])


def level(part: str) -> int:
    return next(number for number, parts in enumerate(LEVELS) if part in parts)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that is imported anywhere in the file: on top, inside functions, for types, or by name."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from onepass import x` names a module or a public name; `from onepass.x import y` is of x either way.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def own_imports(path: Path) -> set[str]:
    """The parts of onepass that a file imports."""
    return {part_of(name) for name in imports(path) if name.startswith("onepass.")}


def test_every_module_has_a_level() -> None:
    parts = {part_of(module_name(path)) for path in MODULES}
    assert parts <= set().union(*LEVELS)
    assert {"engine", "models", "attention", "loading", "scorer", "cli"} <= parts, "the files were found"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_only_its_own_package_and_below(path: Path) -> None:
    part = part_of(module_name(path))
    public = set(onepass.__all__)  # `from onepass import Scorer` is the scorer
    for imported in own_imports(path):
        imported = "scorer" if imported in public else imported
        assert imported == part or level(imported) < level(part), f"{module_name(path)} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_jax_is_imported_only_where_the_device_is(path: Path) -> None:
    part = part_of(module_name(path))
    uses = {name.split(".")[0] for name in imports(path)} & {"jax", "jaxlib", "flax"}
    assert not uses or part in MAY_IMPORT_JAX


def test_the_public_names_are_loaded_lazily() -> None:
    """The package itself imports only nouns, errors and the version when it is imported."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    eager = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {name for name in eager if name and name.startswith("onepass.")} <= {
        "onepass.api",
        "onepass.errors",
        "onepass.version",
    }


def test_an_import_that_points_up_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control, with an import inside a function, a relative one, and one by name."""
    folder = tmp_path / "models"
    folder.mkdir()
    file = folder / "leaky.py"
    file.write_text(
        "import importlib\n"
        "def f():\n    from onepass.engine import plan\n"
        "def g():\n    from ..loading import model\n"
        "def h():\n    importlib.import_module('onepass.scorer')\n"
    )
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert own_imports(file) == {"engine", "loading", "scorer"}
