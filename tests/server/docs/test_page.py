"""/docs: a page for people: the served model first, every operation, and nothing from elsewhere."""

import base64
import hashlib
import html
import json
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from onepass.errors import EngineUnavailable
from onepass.server.docs.openapi import openapi_document
from onepass.server.docs.page import markdown
from onepass.server.engines.service import Health
from server.in_process import InProcess


def commands(page: str) -> list[list[str]]:
    """The words of every curl command, as a shell splits what a reader copies."""
    texts = re.findall(r"<pre>(curl .*?)</pre>", page, re.DOTALL)
    return [shlex.split(html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\\\n", " ")) for text in texts]


def test_the_page_begins_with_the_served_model(client: TestClient, service: InProcess) -> None:
    service.aliases = ("rerank-v3.5",)
    page = client.get("/docs").text
    assert page.index("<h1>qwen3</h1>") < page.index("<pre>curl ") < page.index("<details class=op>")
    assert "Also served as <code>rerank-v3.5</code>" in page


def test_before_the_model_is_ready_the_page_says_why(client: TestClient, service: InProcess) -> None:
    service.unavailable = EngineUnavailable("no engine is ready yet")
    service.told_health = Health(False, "loading", "weights: 3 of <30>", {}, 0)
    page = client.get("/docs").text
    assert "No model is ready yet: weights: 3 of &lt;30&gt;" in page
    assert len(commands(page)) == 3


def test_the_first_commands_are_answered(client: TestClient) -> None:
    found = commands(client.get("/docs").text)
    assert len(found) == 3
    for words in found:
        assert words[:2] == ["curl", f"http://testserver/v1/{'rerank' if 'rerank' in words[1] else 'score'}"]
        assert words[2:5] == ["-H", "Content-Type: application/json", "-d"]
        body = json.loads(words[5])
        assert body["model"] == "qwen3"
        answer = client.post(words[1].removeprefix("http://testserver"), json=body)
        assert answer.status_code == 200, answer.text
    assert ["documents" in json.loads(words[5]) for words in found] == [False, False, True]


def test_the_first_commands_have_a_key_where_one_is_needed(client_of: Callable[..., TestClient]) -> None:
    page = client_of(keys={"alice": "secret"}).get("/docs", headers={"Authorization": "Bearer secret"}).text
    assert all("Authorization: Bearer $ONEPASS_API_KEY" in words for words in commands(page))
    assert "secret" not in page


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("scores.example:8443", "http://scores.example:8443/"),
        ('x"><script>alert(1)</script>', "http://localhost:8000/"),
    ],
)
def test_the_commands_name_the_host_that_was_asked(client: TestClient, host: str, shown: str) -> None:
    page = client.get("/docs", headers={"Host": host}).text
    assert all(words[1].startswith(shown) for words in commands(page))
    assert "alert(1)" not in page


def test_the_page_shows_every_operation_once_and_its_aliases_within(client: TestClient) -> None:
    page = client.get("/docs").text
    for path, methods in openapi_document(keys=False)["paths"].items():
        for method, operation in methods.items():
            form = f'data-path="{path}" data-method="{method.upper()}"'
            if "x-alias-of" in operation:
                assert form not in page
                assert f"<code>{path}</code>" in page
            else:
                assert form in page
                assert markdown(operation["summary"]) in page
    for member in ("label_token_ids", "max_tokens_per_doc", "raw_scores", "ttl_seconds"):
        assert f"<code>{member}" in page


def test_what_is_tried_comes_before_the_tables(client: TestClient) -> None:
    page = client.get("/docs").text
    score = page[page.index("<span class=path>/v1/score</span>") :]
    assert score.index("<textarea") < score.index("Members of ScoreBody")
    area = re.search(r"<textarea [^>]*rows=(\d+)[^>]*>(.*?)</textarea>", score, re.DOTALL)
    assert area is not None
    assert int(area[1]) > area[2].count("\n") + 1, "the whole example is seen"


def test_descriptions_are_rendered(client: TestClient) -> None:
    page = re.sub(r"<(script|style|textarea|pre)\b.*?</\1>", "", client.get("/docs").text, flags=re.DOTALL)
    assert "`" not in page
    assert markdown("a `b<c>` d & `e`") == "a <code>b&lt;c&gt;</code> d &amp; <code>e</code>"


def test_every_member_of_a_score_is_described() -> None:
    members = openapi_document(keys=False)["components"]["schemas"]["ScoreBody"]["properties"]
    assert [name for name, member in members.items() if not member.get("description")] == []


def test_the_browser_may_run_this_page_and_nothing_else(client: TestClient) -> None:
    answer = client.get("/docs")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        [inner] = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r'\s(on\w+|style)="', answer.text), "a policy with hashes runs no attributes"


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    assert not re.search(r"https?://(?!testserver)|//cdn|@import|url\(", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"/openapi.json"}


def test_the_page_is_well_formed(client: TestClient) -> None:
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "input", "br"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(client.get("/docs").text)
    assert open_tags == []
