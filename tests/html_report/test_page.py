"""The frame of a report: one file that loads nothing, text escaped, every cell named, every colour defined."""

import re

from onepass.html_report.page import Cell, Row, report_page, stylesheet, table, theme


def test_a_page_loads_nothing_and_escapes_its_title() -> None:
    html = report_page("a <b> & c", "2 < 3", ["<h2>x</h2>"], verdict="bad")
    assert "<title>a &lt;b&gt; &amp; c</title>" in html
    assert '<p class="summary bad">2 &lt; 3</p><h2>x</h2>' in html
    assert "default-src 'none'" in html
    assert not re.search(r"<script|<link|src=|url\(|@import|https?:", html)


def test_every_colour_that_a_rule_names_is_defined_for_light_dark_and_print() -> None:
    named = set(re.findall(r"var\((--[\w-]+)\)", stylesheet()))
    blocks = theme().split("@media")
    assert len(blocks) == 3
    for block in blocks:
        assert named <= set(re.findall(r"(--[\w-]+):", block))


def test_every_cell_carries_its_heading() -> None:
    html = table(
        ["mode", "items/s", "note"], [Row(("auto", "12", Cell("a <note>"))), Row(("x", "–", Cell("")), "void")]
    )
    assert '<td data-heading="items/s">12</td>' in html
    assert '<th class="text">note</th>' in html
    assert '<td class="text" data-heading="note">a &lt;note&gt;</td>' in html
    assert html.count('<tr class="void">') == 1
