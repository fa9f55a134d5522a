"""The page at `/` and its files: who gets it, with which headers, and that it needs nothing from elsewhere."""

import re
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from onepass.server.page.files import PageFiles
from server.asking import check_error

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PATHS = sorted(path for path in PageFiles().paths if path != "index.html")


def test_a_browser_gets_the_page_and_a_program_json(client: TestClient) -> None:
    page, index = client.get("/", headers=BROWSER), client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert '<main id="main"' in page.text
    assert index.json()["docs"] == "/docs"
    assert page.headers["vary"] == index.headers["vary"] == "Accept"


def test_the_page_loads_every_view_before_it_starts(client: TestClient) -> None:
    scripts = re.findall(r'<script type="module" src="page/([^"]+)">', client.get("/", headers=BROWSER).text)
    assert scripts == [*(path for path in PATHS if path.startswith("views/")), "app.js"]
    assert {"views/score.js", "views/history.js"} <= set(scripts)


@pytest.mark.parametrize("path", PATHS)
def test_a_file_has_its_type_and_the_strict_policy(client: TestClient, path: str) -> None:
    answer = client.get(f"/page/{path}")
    assert answer.status_code == 200
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[path.rpartition(".")[2]])
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


def test_a_file_that_did_not_change_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/page/app.js")
    etag = first.headers["etag"]
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get("/page/app.js", headers={"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
    assert client.get("/page/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get("/page/requests/api.js").headers["etag"] != etag
    assert client.get("/", headers={**BROWSER, "If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "index.html",
        "../files.py",
        "%2e%2e/files.py",
        "views/..%2fapp.js",
        "forms/../../files.py",
        "views/",
        "forms",
        "/etc/passwd",
    ],
)
def test_nothing_but_its_files_is_served(client: TestClient, path: str) -> None:
    check_error(client.get(f"/page/{path}"), 404, "not_found")


def test_the_page_is_open_where_keys_are_required_and_json_is_not(client_of: Callable[..., TestClient]) -> None:
    guarded = client_of(keys={"alice": "secret"})
    assert guarded.get("/", headers=BROWSER).status_code == 200
    assert guarded.get("/page/app.js").status_code == 200
    for path in ("/", "/info", "/metrics", "/docs"):
        check_error(guarded.get(path, headers={} if path == "/" else BROWSER), 401, "invalid_api_key")


@pytest.mark.parametrize("path", [*PATHS, "/"])
def test_no_file_names_another_host_or_runs_text(client: TestClient, path: str) -> None:
    text = client.get(path if path == "/" else f"/page/{path}", headers=BROWSER).text
    named = set(re.findall(r"https?://[^\s\"'`)]+", text))
    assert named <= {"http://www.w3.org/2000/svg"}, named
    for banned in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
        "new Function",
        "document.write",
        "@import",
    ):
        assert banned not in text
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", text)
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
