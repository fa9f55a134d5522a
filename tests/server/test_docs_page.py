"""/docs: a page for people that shows every operation and needs nothing from elsewhere."""

import re
from html.parser import HTMLParser

from starlette.testclient import TestClient

from onepass.server.openapi import openapi_document


def test_the_page_shows_every_operation(client: TestClient) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for path, methods in openapi_document(keys=False)["paths"].items():
        for method, operation in methods.items():
            assert f'data-path="{path}" data-method="{method.upper()}"' in answer.text
            assert operation["summary"].replace("'", "&#x27;") in answer.text
    for member in ("label_token_ids", "max_tokens_per_doc", "raw_scores", "ttl_seconds"):
        assert f"<code>{member}" in answer.text


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    assert not re.search(r"https?://|//cdn|@import|url\(", page)
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
