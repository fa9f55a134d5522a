"""Takes the pictures of docs/pictures from the running page: `python tests/browser/pictures.py URL`.

The server is one that was started before, with the default model: `onepass serve --visualizer`. Needs `.browser`
(build_env.py).
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from browser.build_env import PACKAGES, ROOT, browser
from browser.using import run, view, wait_for

FOLDER = ROOT / "docs" / "pictures"
VIEWS = {
    "Score": "score", "Rank": "rank", "Decide": "decide", "Prompt": "prompt", "What ran": "what-ran", "Modes": "modes",
    "Is it right?": "check",
}  # fmt: skip
RESULTS = "table.virtual, section.answer, ol.strip, canvas.mask, svg.timeline.modes"
WAIT_MILLISECONDS = 300_000


def take(page: Any, name: str, folder: Path) -> None:
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.screenshot(path=folder / f"{name}.png", full_page=True)
    print(f"{name}.png")


def run_to_end(page: Any) -> None:
    run(page)
    page.locator("main").locator(RESULTS).first.wait_for()


def tour(page: Any, folder: Path, suffix: str) -> None:
    for title, name in VIEWS.items():
        view(page, title)
        run_to_end(page)
        take(page, name + suffix, folder)
    for title in ("History", "Server"):
        view(page, title)
        if title == "Server":
            wait_for(
                page,
                "[...document.querySelectorAll('.chart .line')].some(line => line.getAttribute('d')?.includes('L'))",
            )
        take(page, title.lower() + suffix, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a running server, such as http://127.0.0.1:8000")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the pictures (default: docs/pictures)")
    given = parser.parse_args()
    executable = browser()
    if executable is None:
        print("there is no chromium: apt-get install chromium", file=sys.stderr)
        return 2
    sys.path.append(str(PACKAGES))
    from playwright.sync_api import sync_playwright

    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable)
        for scheme, width, suffix in (("light", 1280, ""), ("dark", 1280, "-dark"), ("light", 360, "-phone")):
            context = launched.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
            context.set_default_timeout(WAIT_MILLISECONDS)
            page = context.new_page()
            page.goto(given.url)
            tour(page, given.out, suffix)
            context.close()
        launched.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
