"""A real server from its start to its first requests in every dialect: ready means warm, and its log is JSON lines."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.asking import DOCUMENTS, RERANK, SCORE
from server.running import Server, serving

NIM = {"query": {"text": RERANK["query"]}, "passages": [{"text": text} for text in DOCUMENTS]}
IDS = {"query": [5, 6, 7], "items": [[8, 9], [10]], "label_token_ids": [11, 12]}
LARGE = {**IDS, "query": list(range(5, 75)), "items": [[8, 9]] * 60}  # more than the smallest step holds
LABELS = {**IDS, "items": [[8, 9]] * 20, "label_token_ids": list(range(3, 103))}
DIALECTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "labels": ("/v1/score", SCORE, {}),
    "continuations": ("/v1/score", {"query": "a", "items": [" b"], "continuations": [" c d e"]}, {}),
    "lines": ("/v1/score", {**SCORE, "query": "another"}, {"Accept": "application/x-ndjson"}),
    "large": ("/v1/score", LARGE, {}),
    "many labels": ("/v1/score", LABELS, {}),
    "pairs": ("/score", {"text_1": "a", "text_2": ["b", "c"]}, {}),
    "generative": ("/generative_scoring", IDS, {}),
    "jina": ("/v1/rerank", RERANK, {}),
    "jina by label": ("/rerank", {**RERANK, "method": "label"}, {}),
    "cohere": ("/v2/rerank", {**RERANK, "max_tokens_per_doc": 4}, {}),
    "voyage": ("/v1/rerank", {**RERANK, "top_k": 2}, {}),
    "tei": ("/rerank", {"query": RERANK["query"], "texts": DOCUMENTS}, {}),
    "sglang": ("/v1/rerank", RERANK, {"X-Compat": "sglang"}),
    "infinity": ("/infinity/rerank", RERANK, {}),
    "nvidia": ("/v1/ranking", NIM, {}),
    "classify": ("/classify", {"input": DOCUMENTS, "labels": [" yes", " no"]}, {}),
    "predict": ("/predict", {"inputs": [["a", "b"], ["c"]], "labels": [" yes", " no"]}, {}),
    "rewards": ("/v1/rewards", {"prompt": "a", "responses": ["b", "c"], "labels": [" yes", " no"]}, {}),
    "contexts": ("/v1/contexts", {"query": "a context to keep"}, {}),
    "tokenize": ("/tokenize", {"prompt": "some words"}, {}),
}
Line = dict[str, Any]


class Visit:
    """What a server did with the first request of each dialect, and all that it wrote."""

    def __init__(self, server: Server) -> None:
        self.started = server.metric("onepass_engine_compilations_total")
        self.answers = {
            name: httpx2.post(server.url + path, json=body, headers=headers, timeout=600)
            for name, (path, body, headers) in DIALECTS.items()
        }
        self.ended = server.metric("onepass_engine_compilations_total")
        _send_garbage(server.url)
        assert server.stop() == 0
        self.lines = server.lines

    @property
    def records(self) -> list[Line]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture(scope="module")
def visit(checkpoint: Callable[[str], Path]) -> Iterator[Visit]:
    options = ("--dtype", "float32", "--max-batch-tokens", "256", "--served-model-name", "tiny")
    with serving(str(checkpoint("qwen3")), *options) as server:
        yield Visit(server)


def _send_garbage(url: str) -> None:
    """What no HTTP server can read: parsers like to complain about it on stderr."""
    host, port = re.findall(r"//(.*):(\d+)", url)[0]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"\x16\x03\x01 not HTTP at all\r\n\r\n")
        while connection.recv(4096):
            pass


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_first_request_of_a_dialect_is_answered(visit: Visit, dialect: str) -> None:
    assert visit.answers[dialect].status_code == 200, visit.answers[dialect].text


def test_no_program_is_compiled_or_read_once_the_server_is_ready(visit: Visit) -> None:
    messages = [record["message"] for record in visit.records]
    programs = [i for i, message in enumerate(messages) if re.match(r"program \S+: (compiled|disk) in", message)]
    [ready] = [i for i, message in enumerate(messages) if message.startswith("ready: ")]
    assert programs, "they are logged when they are there"
    assert max(programs) < ready
    assert visit.ended == visit.started


def test_ready_comes_after_the_self_test(visit: Visit) -> None:
    messages = [record["message"] for record in visit.records]
    assert messages.index("engine 0: self-test 1 of 1") < next(i for i, m in enumerate(messages) if "ready: " in m)


def test_every_line_on_stderr_is_a_json_record(visit: Visit) -> None:
    assert len(visit.lines) > len(DIALECTS)
    for line in visit.lines:
        record = json.loads(line)
        assert record["time"].endswith("Z"), line
        assert record["level"] in ("debug", "info", "warning", "error", "critical"), line
        assert record["message"], line


def test_a_good_start_looks_like_one(visit: Visit) -> None:
    """No line at level warning or above, and none about devices that are not there, before the first request."""
    first = next(i for i, record in enumerate(visit.records) if record["message"] == "request")
    for record in visit.records[:first]:
        assert record["level"] == "info", record
        assert "backend" not in record["message"], record


def test_the_last_line_before_traffic_says_what_is_served(visit: Visit) -> None:
    first = next(i for i, record in enumerate(visit.records) if record["message"] == "request")
    ready = visit.records[first - 1]
    assert ready["message"].startswith("ready: tiny in float32 on ")
    assert (ready["model"], ready["dtype"]) == ("tiny", "float32")
    assert "(cpu)" in ready["device"]
    assert ready["weights_bytes"] > 0
    assert ready["contexts_bytes"] > 0
    assert ready["programs"] > 3
    assert ready["page"] == f"{ready['url']}/"
    assert ready["docs"] == f"{ready['url']}/docs"
    assert f"try it at {ready['page']}, " in ready["message"], "the page at /, not the API's documentation"
    assert ready["docs"] in ready["message"]


def test_requests_and_the_end_are_logged(visit: Visit) -> None:
    routes = [record["route"] for record in visit.records if record["message"] == "request" and "route" in record]
    assert set(routes) >= {path for path, _, _ in DIALECTS.values()}
    assert visit.records[-1]["message"] == "stopped"


@pytest.mark.parametrize(("form", "begins"), [("json", '{"time":'), ("text", None)])
def test_what_cannot_be_served_is_said_in_the_chosen_format(form: str, begins: str | None) -> None:
    server = Server("no/such/model", "--offline", "--log-format", form)
    assert server.process.wait(600) == 2
    server.stop()
    for line in server.lines:
        if begins is None:
            assert re.match(r"\d\d:\d\d:\d\d (info|error) ", line), line
        else:
            assert line.startswith(begins), line
    assert "no/such/model" in server.lines[-1]
    assert len(server.lines) == 2, "that it starts, and once why it does not"
