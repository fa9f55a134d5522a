"""What a person does with the page: fills a form, runs it, reads a table."""

import time
from typing import Any

CONTEXT = "The quick brown fox"
ITEMS = [" jumps over", " sleeps under", " eats"]
LABELS = [" yes", " no"]


def fill_score(
    page: Any, items: str = "\n".join(ITEMS), labels: str = "\n".join(LABELS), context: str = CONTEXT
) -> None:
    page.get_by_label("Context", exact=True).fill(context)
    page.get_by_label("Items", exact=True).fill(items)
    page.get_by_label("Labels, one per line").fill(labels)


def run(page: Any) -> None:
    page.locator("main").get_by_role("button", name="Run").click()


def run_to_table(page: Any) -> list[list[str]]:
    """Runs the form, and reads the table of results when it is there."""
    run(page)
    page.wait_for_selector("main section table.virtual tbody tr[aria-rowindex]")
    return cells(page)


def cells(page: Any) -> list[list[str]]:
    """The rows that are in the document, as the texts of their cells, without what only screen readers are told."""
    script = """rows => rows.map(row => [...row.cells].map(cell => {
        const copy = cell.cloneNode(true);
        copy.querySelectorAll('.unseen').forEach(part => part.remove());
        return copy.textContent.trim();
    }))"""
    rows: list[list[str]] = page.locator("main table.virtual tbody tr[aria-rowindex]").evaluate_all(script)
    return rows


def view(page: Any, title: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name=title, exact=True).click()
    page.wait_for_selector(f"main h2:text-is('{title}')")


def wait_for(page: Any, script: str, seconds: float = 120) -> None:
    """Until a JavaScript expression is true. Playwright's own wait evaluates text in the page, against its policy."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, f"waited in vain for {script}"
        page.wait_for_timeout(100)
