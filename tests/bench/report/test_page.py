"""A benchmark's page and Markdown: what was found comes first, every figure has one form, and nothing is Python's."""

import re
from typing import Any

import pytest

from onepass.bench.report.cells import HEADINGS
from onepass.bench.report.drift import drift_cells
from onepass.bench.report.finding import finding
from onepass.bench.report.html import page
from onepass.bench.report.tables import TERMINAL_LEAVES_OUT, facts, markdown, notes
from onepass.html_report import svg
from onepass.html_report.figures import number, setting


def row(mode: str, items_per_second: float, **changes: Any) -> dict[str, Any]:
    times = [64e3 / items_per_second * scale for scale in (0.9, 1.0, 1.2)]
    plain: dict[str, Any] = {
        "mode": mode,
        "workload": "small",
        "items_per_second": items_per_second,
        "dtype": "float32",
        "purpose": "modes",
        "sweep": {},
        "latency_ms": {"p50": times[1], "p95": times[2], "p99": times[2]},
        "latency_per_item_ms": 1e3 / items_per_second,
        "tokens_per_second": 30 * items_per_second,
        "times_ms": times,
        "sampled_items": None,
        "speedup_over_serial": items_per_second / 20,
        "flops_needed": 4e11,
        "bytes_needed": 3e8,
        "reached": {"tflops": 0.2, "fraction": 0.5},
        "padding_ratio": 1.0,
        "peak_memory_bytes": 8e8,
        "compilations": 0,
        "backend_compilations": 0,
        "max_difference": 3e-7,
        "ran_as": "packed",
        "void": [],
        "notes": [],
    }
    return plain | changes


def peer(name: str, items_per_second: float, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "peer": name,
        "dtype": "float32",
        "ratio": 2.0,
        "items_per_second": items_per_second,
        "latency_ms": {"p50": 5.0},
        "max_difference": 1e-6,
        "agrees": True,
        "void": [],
        "notes": [],
        "settings": {"threads": 2, "mkldnn": "True"},
    }
    return plain | changes


def document(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "model": "tiny",
        "command": "onepass bench tiny",
        "date": "2026-11-16T22:00:00+00:00",
        "commit": "abc",
        "settings": {
            "workload": "small",
            "modes": ("serial", "auto"),
            "sweeps": (),
            "timing": {"repeats": 3, "warm_up": 2},
            "quantize": None,
            "speedup_table": False,
        },
        "hardware": {"device": "a CPU", "cores": 2},
        "versions": {"jax": "0.11.2"},
        "label_token_ids": list(range(30)),
        "ceilings": [{"dtype": "float32", "flops_per_second": 4e11, "bytes_per_second": 6e9}],
        "workloads": [
            {"name": "small", "items": 64, "tokens": 17920, "checksum": "f00"},
        ],
        "fastest": {"float32": "auto"},
        "speedup_table": [],
        "rows": list(rows),
        "peers": [],
    }
    return plain | changes


SERIAL = row("serial", 20, speedup_over_serial=1.0)
AUTO = row("auto", 124)


@pytest.mark.parametrize(
    ("measured", "sentence"),
    [
        (document(SERIAL, AUTO), "auto is 6.2 x one at a time: 124 items/s in float32."),
        (document(SERIAL, AUTO, row("extend", 300)), "auto is 6.2 x one at a time: 124 items/s in float32."),
        (document(SERIAL, row("extend", 300)), "extend is 15 x one at a time: 300 items/s in float32."),
        (document(row("auto", 1240, speedup_over_serial=None)), "auto scores 1,240 items/s in float32."),
        (
            document(SERIAL, AUTO, peers=[peer("slow", 2), peer("fast", 62), peer("wrong", 900, agrees=False)]),
            "auto is 6.2 x one at a time: 124 items/s in float32, 2 x fast, the fastest peer.",
        ),
        (document(row("auto", 5, void=["swapping"])), "Every row is void: there is no figure to go by."),
        (document(SERIAL), "No mode was measured."),
        (
            document(row("auto", 900, workload="mixed", achieved_per_second=256.0, latency_ms={"p99": 207.2})),
            "auto answers 256 requests/s of mixed traffic: 900 items/s in float32, p99 207 ms.",
        ),
        (
            document(row("auto", 900, achieved_per_second=9.5, latency_ms={"p99": 20.0}), driver="http"),
            "auto answers 9.5 requests/s over HTTP: 900 items/s in float32, p99 20 ms.",
        ),
    ],
)
def test_what_was_found_is_one_sentence(measured: dict[str, Any], sentence: str) -> None:
    assert finding(measured) == sentence


INT8 = {"dtype": "int8", "drift": {"max": 0.04, "mean": 0.007, "rank_correlation": 0.995, "items": 64}, "form": "ours"}


def test_drift_stands_beside_speed_where_rows_are_quantized() -> None:
    far = {"max": 0.2, "mean": 0.05, "rank_correlation": 0.91, "items": 64}
    near = {"max": 0.01, "mean": 0.001, "rank_correlation": None, "items": 64}
    others = [
        peer("loose", 40, dtype="int8", drift=far, form="per channel"),
        peer("quick", 80, dtype="int8", drift=far, form="per tensor"),
        peer("exact", 10, dtype="int8", drift=near, form="blocks"),
        peer("broken", 90, dtype="int8", drift=far, form=None, void=["no"]),
    ]
    made = document(row("auto", 62, **INT8), peers=others)
    assert drift_cells(made) == [
        ["quick", "80", "1.29", "0.2", "0.05", "0.9100", "faster, drifts more"],
        ["onepass auto", "62", "1", "0.04", "0.007", "0.9950", "–"],
        ["loose", "40", "0.645", "0.2", "0.05", "0.9100", "slower, drifts more"],
        ["exact", "10", "0.161", "0.01", "0.001", "–", "slower, drifts no more"],
    ]
    text = markdown(made)
    assert "| exact | 10 | 0.161 | 0.01 | 0.001 | – | slower, drifts no more |" in text
    assert "- loose: per channel" in text
    assert "onepass: ours" in page(made)
    assert "0.775 x quick, the fastest peer, with a mean drift of 0.007 against 0.05." in finding(made)
    assert drift_cells(document(SERIAL, AUTO, peers=[peer("fast", 62)])) == []


def test_the_sentence_stands_on_top() -> None:
    made = document(SERIAL, AUTO)
    sentence = "auto is 6.2 x one at a time: 124 items/s in float32."
    html, text = page(made), markdown(made)
    assert html.index(sentence) < html.index("<table") < html.index("How it was run")
    assert text.splitlines()[2] == sentence


def test_void_rows_are_said_before_any_table() -> None:
    html = page(document(AUTO, row("extend", 300, void=["the machine swapped"])))
    assert html.index("VOID extend float32: the machine swapped") < html.index("<table")


def test_verdict_and_difference_are_in_the_table_that_fits_its_window() -> None:
    first, folded = re.findall(r'<table class="listed">(.*?)</table>', page(document(SERIAL, AUTO)), re.DOTALL)
    shown, hidden = (re.findall(r"<th>(.*?)</th>", part) for part in (first, folded))
    assert {"max diff", "verdict", "x serial"} <= set(shown)
    assert set(hidden) == {"mode", *TERMINAL_LEAVES_OUT}
    assert set(shown) | set(hidden) == set(HEADINGS)
    assert 'data-heading="verdict">ok<' in first, "a narrow window shows a row as a list of named cells"


def test_no_setting_is_python() -> None:
    made = document(SERIAL, AUTO, peers=[peer("fast", 62)])
    told = facts(made)
    assert told["modes"] == "serial, auto"
    assert told["sweeps"] == "none"
    assert told["timing"] == "repeats 3, warm up 2"
    assert told["quantize"] == "not set"
    assert told["speedup table"] == "no"
    assert told["fast float32"] == "threads 2, mkldnn yes"
    assert told["label token ids"].endswith("18, 19, … (30 in all)")
    for text in (page(made), markdown(made)):
        assert not re.search(r"None|True|False|\(\)|\{'|\['|\('", text)


def test_figures_have_one_form() -> None:
    html = page(document(row("serial", 0.04), row("auto", 0.038)))
    assert re.findall(r"\d\.\d+e\+\d+", html) == []
    assert "1,684,211 ms" in html, "as the table has it"
    assert (number(1692.6), number(12.345), number(None)) == ("1,693", "12.3", "–")
    assert (setting(2048), setting(5055025152)) == ("2048", "5,055,025,152")


@pytest.mark.parametrize(
    ("longest", "ticks"),
    [(3000.0, ["0 ms", "1,000", "2,000", "3,000"]), (0.9, ["0 ms", "0.2", "0.4", "0.6", "0.8", "1"])],
)
def test_strips_of_latencies_have_an_axis(longest: float, ticks: list[str]) -> None:
    drawn = svg.strips([("auto", [longest / 2, longest])], "ms")
    texts = re.findall(r'text-anchor="middle">([^<]*)<', drawn)
    assert texts == ticks
    assert f">{number(0.75 * longest)} ms<" in drawn, "the median"


def test_a_note_of_several_rows_is_said_once() -> None:
    made = document(row("serial", 20, notes=["scaled"]), row("auto", 124, notes=["scaled", "warm"]))
    assert notes(made) == ["serial float32, auto float32: scaled", "auto float32: warm"]
