"""docs/extending.md works: its blocks run, its dialect is served, and what it says about keys and rows holds."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from documentation.test_readme import blocks
from onepass.engine.backends import BACKENDS, Backend, Conditions
from onepass.engine.config import KERNELS, Device
from onepass.server import app
from onepass.server.app import build_app
from onepass.server.routes.table import OPERATIONS
from server.asking import check_error
from server.in_process import InProcess

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's blocks define, run from first to last; they hold their own assertions."""
    names: dict[str, Any] = {"__name__": "extending"}
    exec(compile("\n".join(blocks(PAGE, "python")), "docs/extending.md", "exec"), names)
    return names


def test_the_model_and_the_kernel_of_the_page_score_as_they_must(names: dict[str, Any]) -> None:
    assert names["wanted"].shape == (3, 2)
    assert PAGE.count("assert_allclose") == 2, "the blocks compare"


def test_the_row_of_the_page_is_a_backend(names: dict[str, Any]) -> None:
    row = names["row"]
    assert isinstance(row, Backend)
    assert row.problem(Conditions(Device("cpu", 1 << 30), True, 64)) is None
    assert "128" in row.problem(Conditions(Device("cpu", 1 << 30), True, 256))


def test_names_and_rows_of_backends_are_in_the_same_order() -> None:
    assert tuple(backend.name for backend in BACKENDS) == KERNELS


def test_the_dialect_of_the_page_is_served(
    names: dict[str, Any], service: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "OPERATIONS", (*OPERATIONS, names["operation"]))
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        sent = {"question": "the capital of France", "candidates": [" Rome", " Paris"]}
        answer = client.post("/pine", json=sent).json()
        assert answer["best"] == max(range(2), key=answer["scores"].__getitem__)
        check_error(client.post("/pine", json={**sent, "top": 1}), 400, None, "top")
