"""Each view used as a person would: what it shows is what the API says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import KEY
from browser.using import CONTEXT, ITEMS, LABELS, cells, fill_score, run, run_to_table, view, wait_for
from server.running import Server

Open = Callable[..., Any]
Api = Callable[[str, dict[str, Any]], Any]
DIGIT = 1.01e-4  # the last digit that is shown
SCORE = {"query": CONTEXT, "items": ITEMS, "labels": LABELS, "apply_softmax": True}


def test_score_shows_the_numbers_of_the_api(open_page: Open, api: Api) -> None:
    page = open_page()
    fill_score(page)
    shown = run_to_table(page)
    answer = api("/v1/score", SCORE)
    assert [row[1] for row in shown] == [item.replace(" ", "␣", 1) for item in ITEMS]
    for row, scores, mass in zip(shown, answer["scores"], answer["label_mass"], strict=True):
        assert [float(text) for text in row[2:]] == pytest.approx([*scores, mass], abs=DIGIT)
    low = page.locator("td.heat.hatched").count()
    assert low == sum(2 for mass in answer["label_mass"] if mass < 0.5)
    assert low > 0, "a random model hardly ever says yes or no"


def test_score_reads_lines_csv_json_and_files(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    fill_score(page)
    csv_text = 'id,text\n1,"first, with a comma"\n2,"second ""quoted"""\n'
    page.get_by_label("Items", exact=True).fill(csv_text)
    assert [row[1] for row in run_to_table(page)] == ["first, with a comma", 'second "quoted"']
    file = tmp_path / "items.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n', encoding="utf-8")
    page.locator("main input[type=file]").set_input_files(file)
    page.get_by_text("3 items, from JSON").wait_for()
    run(page)
    page.locator("td.item").get_by_text("three").wait_for()
    dropped = page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.items.add(new File(['x\\ny\\n'], 'a.txt')); return data; }"
    )
    page.get_by_label("Items", exact=True).dispatch_event("drop", {"dataTransfer": dropped})
    page.get_by_text("2 items, one per line").wait_for()


def test_a_column_sorts_both_ways(open_page: Open) -> None:
    page = open_page()
    fill_score(page)
    run_to_table(page)
    heading = page.get_by_role("columnheader", name="␣yes")
    for sign, state in ((-1, "descending"), (1, "ascending")):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == state
        values = [float(row[2]) for row in cells(page)]
        assert values == sorted(values, key=lambda value: sign * value)


def test_items_with_options_of_their_own_are_multiple_choice(open_page: Open, api: Api) -> None:
    page = open_page()
    page.get_by_role("button", name="Multiple choice").click()
    shown = run_to_table(page)
    questions = json.loads(page.get_by_label("Items", exact=True).input_value())
    body = {"query": "Answer the question.\n\n", "items": [question["text"] for question in questions]}
    answer = api("/v1/score", {**body, "continuations": [question["options"] for question in questions]})
    for row, wanted in zip(shown, answer["continuations"], strict=True):
        for cell, continuation in zip(row[2:], wanted, strict=True):
            assert cell.endswith(f"{continuation['logprob']:.4f}"[:-2]) or continuation["logprob"] == pytest.approx(
                float(cell[cell.rindex("-") :]), abs=1e-3
            )


def test_five_thousand_items_stay_usable(open_page: Open) -> None:
    """Only what can be seen is in the document, and the last row is reached by scrolling."""
    page = open_page()
    fill_score(page)
    lines = "".join(f" item {number}\n" for number in range(5000))
    file = {"name": "items.txt", "mimeType": "text/plain", "buffer": lines.encode()}
    page.locator("main input[type=file]").set_input_files(file)
    page.get_by_text("5,000 items, one per line").wait_for()
    run_to_table(page)
    table = page.locator("main table.virtual")
    assert table.get_attribute("aria-rowcount") == "5001"
    assert page.locator("main table.virtual tbody tr").count() < 100
    page.locator("main .window").evaluate("element => element.scrollTop = element.scrollHeight")
    page.locator("td.item").get_by_text("␣item 4999", exact=True).wait_for()
    assert page.locator("main table.virtual tbody tr").count() < 100
    page.get_by_role("columnheader", name="#").get_by_role("button").click()
    assert cells(page)[0][1] == "␣item 0"


def test_rank_shows_the_ranking_of_the_api_and_its_template(open_page: Open, api: Api) -> None:
    page = open_page("#rank")
    documents = ["a red fox", "an old house", "rain in the night"]
    page.get_by_label("Query", exact=True).fill("fox")
    page.get_by_label("Documents", exact=True).fill("\n".join(documents))
    shown = run_to_table(page)
    answer = api("/v1/rerank", {"query": "fox", "documents": documents})
    assert [row[2] for row in shown] == [documents[result["index"]] for result in answer["results"]]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert [float(row[1]) for row in shown] == pytest.approx(scores, abs=DIGIT)
    page.get_by_text("Ranked by likelihood").click()
    page.locator("details.asked pre").get_by_text("{document}").wait_for()


def test_decide_shows_a_bar_per_option_and_the_spread(open_page: Open, api: Api) -> None:
    page = open_page("#decide")
    page.get_by_text("More options").click()
    page.get_by_label("Orders of the options").fill("2")
    run(page)
    page.locator("section.answer").nth(2).wait_for()
    questions = [
        {"type": "predicate", "instructions": "Is this urgent?"},
        {
            "type": "choice",
            "instructions": "Which team should handle it?",
            "choices": ["billing", "shipping", "returns"],
        },
        {"type": "score", "instructions": "How upset is the customer?", "levels": ["calm", "annoyed", "furious"]},
    ]
    body = {"state": "My card was charged twice for one order!", "questions": questions, "permutations": 2}
    answer = api("/v1/decisions", body)
    wanted = [option["probability"] for one in answer["answers"] for option in one["probabilities"]]
    shown = page.locator("dl.bars dd .number").all_inner_texts()
    assert [float(text) for text in shown] == pytest.approx(wanted, abs=DIGIT)
    assert page.get_by_text("spread over orders").count() == 3
    assert page.get_by_text("Not calibrated").count() == 1


def test_prompt_shows_every_token_and_where_labels_are_read(open_page: Open, api: Api) -> None:
    page = open_page()
    fill_score(page)
    view(page, "Prompt")
    run(page)
    page.locator("ol.strip").wait_for()
    prompt = api("/v1/score", {**SCORE, "return_prompt": True})["prompt"]
    shared, item = prompt["shared"]["token_ids"], prompt["items"][0]["token_ids"]
    assert page.locator("ol.strip li.shared").count() == len(shared)
    assert page.locator("ol.strip li.item").count() == len(item)
    classes = page.locator("ol.strip li").evaluate_all("tokens => tokens.map(token => token.className)")
    assert [at for at, names in enumerate(classes) if "read" in names] == [prompt["items"][0]["readout_position"]]
    text = page.locator("main pre").inner_text()
    assert text == prompt["shared"]["text"] + prompt["items"][0]["text"]


def test_prompt_shows_what_rank_and_decide_ask(open_page: Open, api: Api) -> None:
    """By likelihood the query is a continuation of each document, read at every token before one of its own."""
    page = open_page("#rank")
    documents = ["a red fox", "an old house"]
    page.get_by_label("Query", exact=True).fill("fox")
    page.get_by_label("Documents", exact=True).fill("\n".join(documents))
    view(page, "Prompt")
    page.get_by_label("Request in").select_option("rank")
    run(page)
    page.locator("ol.strip").wait_for()
    prompt = api("/v1/rerank", {"query": "fox", "documents": documents, "return_prompt": True})["prompt"]
    item, (continuation,) = prompt["items"][0], prompt["items"][0]["continuations"]
    text = page.locator("main pre").inner_text()
    assert text == prompt["shared"]["text"] + item["text"] + continuation["text"]
    classes = page.locator("ol.strip li").evaluate_all("tokens => tokens.map(token => token.className)")
    first, count = item["readout_position"], len(continuation["token_ids"])
    assert [at for at, names in enumerate(classes) if "read" in names] == list(range(first, first + count))
    page.get_by_label("Request in").select_option("decide")
    run(page)
    page.locator("main pre").get_by_text("Is this urgent?").wait_for()
    assert page.get_by_label("Item", exact=True).locator("option").count() == 3


def test_is_it_right_compares_with_serial_and_other_orders(open_page: Open) -> None:
    page = open_page()
    fill_score(page)
    view(page, "Is it right?")
    rows = run_to_table(page)
    page.get_by_text("Right: the differences are rounding.", exact=True).wait_for()
    assert len(rows) == len(ITEMS)
    assert all(float(row[5]) <= 1e-5 and float(row[6]) <= 1e-5 for row in rows)


def test_a_link_holds_the_whole_request_and_no_key(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    fill_score(page, items="ä\n 日本\n", context="a context & more")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("A link with this whole request").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert KEY not in link
    other = open_page("#" + link.split("#")[1])
    wait_for(other, "document.querySelector('main textarea').value === 'a context & more'")
    assert other.get_by_label("Items", exact=True).input_value() == "ä\n 日本\n"
    assert other.get_by_label("Labels, one per line").input_value() == "\n".join(LABELS)


def test_a_damaged_link_is_said_and_the_page_works(open_page: Open) -> None:
    page = open_page("#score=AAAA")
    page.get_by_text("The link is damaged").first.wait_for()
    fill_score(page)
    assert len(run_to_table(page)) == len(ITEMS)


@pytest.mark.parametrize("form", ["CSV", "JSON", "curl", "Python"])
def test_results_are_copied_in_each_form(open_page: Open, api: Api, form: str) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    fill_score(page)
    run_to_table(page)
    page.get_by_role("button", name=f"Copy as {form}").click()
    page.get_by_role("button", name=f"Copy as {form}").get_by_text("Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert KEY not in text
    if form == "JSON":
        assert len(json.loads(text)["scores"]) == len(ITEMS)
    elif form == "CSV":
        assert text.splitlines()[0] == "index,item, yes, no,label_mass"
    elif form == "curl":
        assert json.loads(text[text.index("-d '") + 4 : text.rindex("'")]) == SCORE
    else:
        compile(text, "copied", "exec")
        assert "client.score(" in text


def test_the_history_has_latencies_and_opens_a_request_again(open_page: Open) -> None:
    page = open_page()
    fill_score(page, context="the first")
    run_to_table(page)
    fill_score(page, context="the second")
    run(page)
    wait_for(page, "JSON.parse(sessionStorage.getItem('onepass-history')).length === 2")
    view(page, "History")
    rows = page.locator("main tbody tr")
    assert rows.count() == 2
    assert "3 items scored" in rows.nth(0).inner_text()
    assert " ms" in rows.nth(0).inner_text()
    rows.nth(1).get_by_role("button").click()
    assert page.get_by_label("Context", exact=True).input_value() == "the first"


def test_server_shows_load_model_and_backends(open_page: Open, server: Server) -> None:
    page = open_page("#server")
    page.locator("figure.chart").first.wait_for()
    page.locator("dl.facts").get_by_text("float32").wait_for()
    wait_for(page, "[...document.querySelectorAll('.chart .line')].some(line => line.getAttribute('d'))")
    assert page.get_by_role("row", name="used").count() >= 1
    assert page.get_by_role("heading", name="Programs").count() == 1
