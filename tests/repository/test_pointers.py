"""A docstring that points to another module by its dotted path points to one that exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import onepass

SOURCE = Path(onepass.__file__).parent
PACKAGES = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
POINTER = re.compile(r"`((?:[a-z_0-9]+\.)+\w+)`")
MODULES = sorted(SOURCE.rglob("*.py"))


def docstrings(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def dangling(text: str, folder: Path) -> list[str]:
    """Pointers that begin with one of our packages and name neither a module nor a name in one, in `folder` either."""
    found = [pointer for docstring in docstrings(text) for pointer in POINTER.findall(docstring)]
    ours = [pointer for pointer in found if pointer.split(".")[0] in PACKAGES]
    return [pointer for pointer in ours if not (exists(pointer, SOURCE) or exists(pointer, folder))]


def exists(pointer: str, folder: Path) -> bool:
    path = folder.joinpath(*pointer.split("."))
    if path.with_suffix(".py").is_file() or path.is_dir():
        return True
    module, name = path.parent.with_suffix(".py"), path.name
    return module.is_file() and re.search(rf"\b{name}\b", module.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pointers_lead_somewhere(path: Path) -> None:
    assert dangling(path.read_text(encoding="utf-8"), path.parent) == []


def test_a_pointer_to_a_module_that_has_moved_would_be_noticed() -> None:
    """The negative control."""
    text = '''"""See `engine.planner`, `engine.planner.Planner`, `engine.nowhere` and `engine.planner.Nothing`."""'''
    assert dangling(text, SOURCE) == ["engine.nowhere", "engine.planner.Nothing"]
