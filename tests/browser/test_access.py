"""The page for everyone: by keyboard alone, 360 pixels wide, in dark and light, and by the rules of axe-core."""

from collections.abc import Callable
from typing import Any

import pytest

from browser.build_env import AXE
from browser.using import CONTEXT, ITEMS, LABELS, fill_score, run_to_table, view

Open = Callable[..., Any]
RUN = ("Score", "Rank", "Decide", "Prompt", "Is it right?")
RESULTS = "table.virtual, section.answer, ol.strip"


def walk_through(page: Any, visit: Callable[[str], None]) -> None:
    """Opens every view, runs it where it can be run, and calls `visit` with its title."""
    titles = page.get_by_role("navigation", name="Views").get_by_role("link").all_inner_texts()
    assert set(RUN) < set(titles)
    fill_score(page)
    for title in titles:
        view(page, title)
        if title in RUN:
            page.locator("main").get_by_role("button", name="Run").click()
            page.locator("main").locator(RESULTS).first.wait_for()
        visit(title)


def test_a_request_is_made_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.get_by_label("Context", exact=True).wait_for()
    keyboard = page.keyboard
    keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the form"
    keyboard.press("Enter")
    for text in (CONTEXT, None, "\n".join(ITEMS)):
        keyboard.press("Tab")
        if text is not None:
            keyboard.press("Control+A")
            keyboard.insert_text(text)
    assert page.get_by_label("Items", exact=True).input_value() == "\n".join(ITEMS)
    page.get_by_label("Labels, one per line").focus()
    keyboard.press("Control+A")
    keyboard.insert_text("\n".join(LABELS))
    keyboard.press("Control+Enter")
    page.wait_for_selector("main section table.virtual tbody tr[aria-rowindex]")
    heading = page.get_by_role("columnheader", name="␣no")
    heading.get_by_role("button").focus()
    keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    page.locator("#status").get_by_text("3 items scored").wait_for(state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(open_page: Open, scheme: str) -> None:
    page = open_page(width=360, color_scheme=scheme)
    wide: dict[str, int] = {}

    def visit(title: str) -> None:
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[title] = width

    walk_through(page, visit)
    assert wide == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(open_page: Open, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip("there is no axe-core in .browser: it needs npm")
    page = open_page(color_scheme=scheme, bypass_csp=True)
    page.evaluate(AXE.read_text(encoding="utf-8") + "; null")
    faults: dict[str, list[str]] = {}

    def visit(title: str) -> None:
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)")
        serious = [fault for fault in found if fault["impact"] in ("serious", "critical")]
        if serious:
            faults[title] = [f"{fault['id']}: {fault['nodes'][0]['html'][:200]}" for fault in serious]

    walk_through(page, visit)
    assert faults == {}


def test_axe_would_find_a_fault(open_page: Open) -> None:
    """The negative control: a field without a label."""
    if not AXE.is_file():
        pytest.skip("there is no axe-core in .browser: it needs npm")
    page = open_page(bypass_csp=True)
    page.evaluate(AXE.read_text(encoding="utf-8") + "; null")
    page.evaluate("document.querySelector('main').append(document.createElement('textarea'))")
    found = page.evaluate("axe.run(document).then(result => result.violations.map(fault => fault.id))")
    assert "label" in found


def test_the_numbers_are_legible_without_colour(open_page: Open) -> None:
    """The best label and a low mass are also said in words to screen readers."""
    page = open_page()
    fill_score(page)
    run_to_table(page)
    assert page.locator("td.best .unseen").count() == len(ITEMS)
    assert page.locator("td.mass.low .unseen").count() == page.locator("td.mass.low").count()
