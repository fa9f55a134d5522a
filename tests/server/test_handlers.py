"""What the handlers decide by themselves: whose answer a rerank request gets. The dialects have tests of their own."""

import pytest
from starlette.testclient import TestClient

from server.asking import RERANK, check_error


@pytest.mark.parametrize("path", ["/rerank", "/infinity/rerank"])
@pytest.mark.parametrize("asked", ["", "cohere", "sglang, infinity"])
def test_an_answer_that_nobody_speaks_is_refused(client: TestClient, asked: str, path: str) -> None:
    """Ignoring it would answer in a shape that the client does not expect."""
    error = check_error(client.post(path, json=RERANK, headers={"X-Compat": asked}), 400, "invalid_compat")
    assert error["param"] == "X-Compat"
    assert "sglang or infinity" in error["message"]


def test_whose_answer_is_wanted_may_be_said_in_capitals(client: TestClient) -> None:
    assert isinstance(client.post("/rerank", json=RERANK, headers={"X-Compat": "SGLang"}).json(), list)
