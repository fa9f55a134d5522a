"""A validation's page: the verdict on top, failures before what passed, every case with its numbers."""

from typing import Any

from onepass.validate.html import validation_page


def outcome(name: str, status: str, note: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "case": "packed, 3 items",
        "status": status,
        "note": note,
        "max_difference": 1.25e-7,
        "mean_difference": 0.0,
        "tolerance_max": 1e-5,
        "tolerance_mean": 1e-6,
        "control_difference": None,
    }


def page(*outcomes: dict[str, Any]) -> str:
    passed = all(one["status"] != "failed" for one in outcomes)
    return validation_page(
        {
            "model": "tiny",
            "dtype": "float32",
            "passed": passed,
            "verdict": "PASSED tiny" if passed else "FAILED tiny",
            "command": "onepass validate tiny",
            "date": "2026-11-17",
            "commit": None,
            "outcomes": list(outcomes),
            "hardware": {"cores": 2},
            "versions": {"jax": "0.11.2"},
            "settings": {"items": 3},
        }
    )


def test_the_verdict_is_first_and_failures_come_before_what_passed() -> None:
    html = page(outcome("order", "passed"), outcome("isolation", "failed", "off by <2>"))
    assert '<p class="summary bad">FAILED tiny</p>' in html
    assert html.index("Failed: 1") < html.index("off by &lt;2&gt;") < html.index("Passed: 1")
    assert '<tr class="failed"><td data-heading="check">isolation</td>' in html


def test_numbers_have_one_form() -> None:
    html = page(outcome("order", "passed"))
    assert '<p class="summary good">PASSED tiny</p>' in html
    assert '<td data-heading="max">1.2e-07</td><td data-heading="mean">0</td>' in html
    assert "Failed" not in html
