"""What the page says and does when a request cannot be answered: wrong inputs, no key, 429, an engine that dies."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from browser.conftest import KEY
from browser.using import ITEMS, cells, fill_score, run, run_to_table
from server.running import Server, wait_until

Open = Callable[..., Any]
SLOW = {"query": "a b c", "items": [" d"], "labels": [" yes", " no"]}


def test_a_missing_field_is_named_and_gets_the_keyboard(open_page: Open) -> None:
    page = open_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    for label, message in (
        ("Items", "at least one item"),
        ("Context", "Give a context"),
        ("Labels", "at least one label"),
    ):
        fill_score(page)
        field = page.get_by_label("Labels, one per line") if label == "Labels" else page.get_by_label(label, exact=True)
        field.fill("")
        run(page)
        page.locator("[role=alert]").get_by_text(message).wait_for()
        assert field.get_attribute("aria-invalid") == "true"
        assert field.evaluate("element => element === document.activeElement")
    assert not any("/v1/score" in url for url in sent)


def test_what_the_server_refuses_is_said_in_its_words(open_page: Open) -> None:
    page = open_page()
    fill_score(page, labels="a label of several tokens\n no")
    run(page)
    alert = page.locator("main [role=alert]")
    alert.get_by_text("The server refused the request.").wait_for()
    assert "label_not_single_token" in alert.inner_text()
    fill_score(page, items='["broken')
    page.get_by_label("Items are").select_option("json")
    run(page)
    alert.get_by_text("This is not JSON").wait_for()
    page.get_by_label("Items are").select_option("auto")
    fill_score(page)
    assert len(run_to_table(page)) == len(ITEMS)
    assert alert.inner_text() == ""


def test_the_page_asks_for_a_key_and_keeps_it_in_this_tab(open_page: Open) -> None:
    page = open_page(key=None)
    key = page.get_by_label("API key", exact=True).and_(page.locator("input"))
    key.wait_for()
    key.fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    page.get_by_text("does not know this one").wait_for()
    key.fill(KEY)
    page.get_by_role("button", name="Use this key").click()
    page.locator(".model").get_by_text("qwen3").wait_for()
    fill_score(page)
    assert len(run_to_table(page)) == len(ITEMS)
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert KEY not in page.evaluate("sessionStorage.getItem('onepass-history')")


def test_a_full_server_is_said_and_tried_again(open_page: Open, server: Server) -> None:
    """The engine is held, two requests fill the server, and the page's is refused with 429 until it goes on."""
    page = open_page()
    fill_score(page)
    held = server.engine_pid
    os.kill(held, signal.SIGSTOP)
    try:
        ask = {"Authorization": f"Bearer {KEY}"}

        def hold_a_place() -> None:
            """Again if refused: the request below may have come first."""
            while server.score(SLOW, 300, **ask).status_code == 429:
                time.sleep(0.1)

        threads = [threading.Thread(target=hold_a_place) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.score(SLOW, 2, **{**ask, "X-Request-Timeout-Ms": "500"}).status_code == 429, 120)
        run(page)
        page.get_by_text("The server has too much waiting.").wait_for()
        page.get_by_text("Trying again in").wait_for()
    finally:
        os.kill(held, signal.SIGCONT)
    page.wait_for_selector("main section table.virtual tbody tr[aria-rowindex]")
    assert len(cells(page)) == len(ITEMS)
    for thread in threads:
        thread.join()


def test_an_engine_that_dies_comes_back_while_the_page_is_open(open_page: Open, server: Server) -> None:
    page = open_page()
    fill_score(page)
    page.locator(".state").get_by_text("ready", exact=True).wait_for()
    os.kill(server.engine_pid, signal.SIGKILL)
    wait_until(lambda: server.health() == 503, 60)
    run(page)
    page.get_by_text("The engine is not ready.").wait_for()
    page.wait_for_selector("main section table.virtual tbody tr[aria-rowindex]")
    assert len(cells(page)) == len(ITEMS)
    page.locator(".state").get_by_text("ready", exact=True).wait_for()


def test_a_request_can_be_stopped(open_page: Open, server: Server) -> None:
    page = open_page()
    fill_score(page)
    held = server.engine_pid
    os.kill(held, signal.SIGSTOP)
    try:
        run(page)
        page.get_by_role("button", name="Stop").click()
        page.locator("main [role=alert]").get_by_text("Stopped.").wait_for()
    finally:
        os.kill(held, signal.SIGCONT)
    assert len(run_to_table(page)) == len(ITEMS)
