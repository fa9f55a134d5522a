"""`onepass plan --html`: the plan's document as a page with the one style sheet."""

import json
from pathlib import Path

import pytest

from onepass.cli.main import main


def test_the_page_has_the_figures_of_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    words = ["plan", "random:qwen3-0.6b", "--target", "h100:2", "--workload", "small", "--json", "--quiet"]
    assert main([*words, "--html", str(page)]) == 0
    made, html = json.loads(capsys.readouterr().out), page.read_text()
    assert f"It fits; predicted {made['prediction']['items_per_second']:,.0f} items/s." in html
    assert "<h2>Steps</h2>" in html
    assert all(f'data-heading="read-outs">{step["readouts"]:,}<' in html for step in made["steps"])
    assert "default-src 'none'" in html
