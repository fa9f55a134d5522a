"""A real server with a tiny model that wants a key, and the machine's own chromium that opens its page.

A page that ends with an error in its console, or that asked another host for anything, fails its test.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.build_env import PACKAGES, browser, is_built
from server.running import Server, serving

KEY = "sk-of-the-tests"
REFUSALS = re.compile(r"Failed to load resource: the server responded with a status of (400|401|429|503)")
WAIT_MILLISECONDS = 120_000  # machines that run tests may be busy


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = browser()
    if path is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    if not is_built():
        pytest.skip("there is no .browser, or it is old: python tests/browser/build_env.py")
    return path


@pytest.fixture(scope="session")
def server(
    chromium_path: str, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Two requests at a time, so that a third is refused; an engine that is only stopped is not restarted."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"tests:{KEY}\n", encoding="utf-8")
    options = ("--api-keys", str(keys), "--dtype", "float32", "--max-requests", "2", "--silence-seconds", "600")
    with serving(str(checkpoint("qwen3")), *options, "--max-batch-tokens", "1024", "--visualizer") as running:
        yield running


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Any]:
    """Playwright's browser. Of a module: while it is there, an event loop runs that other tests must not find."""
    sys.path.append(str(PACKAGES))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium_path)
        yield launched
        launched.close()


@pytest.fixture
def open_page(chromium: Any, server: Server) -> Iterator[Callable[..., Any]]:
    """`open_page(fragment, key=…, width=…, …)`: the page in a window of its own; other options are Playwright's."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_one(fragment: str = "", *, key: str | None = KEY, width: int = 1280, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(WAIT_MILLISECONDS)
        page = context.new_page()
        page.on("console", lambda message: _note(complaints, message))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda request: None if request.url.startswith(server.url) else complaints.append(request.url)
        )
        if key is not None:
            page.add_init_script(f"sessionStorage.setItem('onepass-api-key', '{key}')")
        page.goto(f"{server.url}/{fragment}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def _note(complaints: list[str], message: Any) -> None:
    """A refusal that the page handles is written to the console by the browser itself."""
    if message.type in ("error", "warning") and not REFUSALS.match(message.text):
        complaints.append(message.text)


@pytest.fixture
def api(server: Server) -> Callable[[str, dict[str, Any]], Any]:
    """The same request without a browser."""
    import httpx2

    def post(path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx2.post(f"{server.url}{path}", json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post
