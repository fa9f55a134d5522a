"""The view What ran: its steps, tokens and masks are those of the trace; every mode beside the others; a phone."""

from collections.abc import Callable
from typing import Any

from browser.using import CONTEXT, ITEMS, LABELS, fill_score, run, view

Open = Callable[..., Any]
Api = Callable[[str, dict[str, Any]], Any]
SCORE = {"query": CONTEXT, "items": ITEMS, "labels": LABELS, "apply_softmax": True, "return_trace": True}


def opened(open_page: Open, **options: Any) -> Any:
    page = open_page(**options)
    fill_score(page)
    view(page, "What ran")
    return page


def rows(page: Any, table: int) -> list[list[str]]:
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    found: list[list[str]] = page.locator("main table.plain").nth(table).locator("tbody tr").evaluate_all(script)
    return found


def seen_pairs(step: dict[str, Any]) -> int:
    """By a loop over tokens: a context of `position` tokens is before an item; an item sees itself up to each token."""
    pairs = 0
    for one in step["segments"]:
        positions = range(one["position"], one["position"] + one["tokens"])
        pairs += sum(position + 1 for position in positions)
    return pairs


def test_steps_are_those_of_the_trace(open_page: Open, api: Api) -> None:
    page = opened(open_page)
    api("/v1/score", SCORE)  # from now on the context is cached
    run(page)
    page.wait_for_selector("main canvas.mask")
    trace = api("/v1/score", SCORE)["trace"]
    (shown,), (step,) = rows(page, 0), trace["steps"]
    names = ("rung", "tokens", "all_tokens")
    assert [int(text.replace(",", "")) for text in shown[2:5]] == [step[name] for name in names]
    assert [int(text.replace(",", "")) for text in shown[5:8]] == [
        step["computed_tokens"] - step["all_tokens"], step["cached_tokens"], step["pages_read"],
    ]  # fmt: skip
    label = page.locator("main canvas.mask").get_attribute("aria-label")
    assert label is not None
    assert f"{step['tokens']} tokens ask {step['cached_tokens'] + step['tokens']} keys" in label
    assert f"{seen_pairs(step):,} pairs are seen" in label


def test_every_mode_is_run_beside_the_others(open_page: Open) -> None:
    page = opened(open_page)
    page.get_by_label("Run", exact=True).select_option("all")
    run(page)
    page.wait_for_selector("main h3:text-is('Mode serial')")
    compared = {row[0]: row for row in rows(page, 0)}
    assert {"packed", "extend", "chunked", "serial"} <= set(compared)
    assert int(compared["serial"][1]) == len(ITEMS), "a step per item"
    assert int(compared["serial"][2]) > int(compared["packed"][2]), "the context again for each"
    assert page.locator("main svg.timeline").count() == len(rows(page, 0))


def test_modes_shows_the_tiles_of_the_api_and_pairs_by_the_rule(open_page: Open, api: Api) -> None:
    page = open_page(width=360)
    fill_score(page)
    view(page, "Modes")
    page.get_by_label("Timed runs of each mode").fill("1")
    run(page)
    page.locator("main svg.timeline.modes").wait_for()
    body = {name: value for name, value in SCORE.items() if name != "return_trace"}
    modes = api("/v1/modes", {**body, "repeats": 1})["modes"]
    names = ("steps", "computed_tokens", "tokens_computed_twice", "tiles", "tiles_needed")
    for shown, mode in zip(rows(page, 0), modes, strict=True):
        assert shown[0] == mode["mode"]
        assert [int(text.replace(",", "")) for text in shown[1:6]] == [mode[name] for name in names]
        assert mode["pairs_seen"] == sum(map(seen_pairs, mode["trace"]["steps"]))
        percent = 100 * mode["pairs_seen"] / mode["pairs"]
        assert abs(float(shown[6].removesuffix(" %")) - percent) <= (0.51 if percent >= 1 else 0.06)
    assert page.locator("main svg.tiles").count() == sum(len(mode["drawn"]) for mode in modes)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_fits_a_phone(open_page: Open) -> None:
    page = opened(open_page, width=360)
    run(page)
    page.wait_for_selector("main canvas.mask")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
