"""`POST /v1/modes`: bodies, bounds, and the request run in every mode beside an engine that serves."""

from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.api import ScoreRequest
from onepass.engine.encoding.encode import Encoded
from onepass.errors import RequestError
from onepass.scorer import Scorer
from onepass.server.engines.mode_runs import ModeRuns
from onepass.server.engines.protocol import ScoreCall, modes_frame, score_call
from onepass.server.engines.request_limits import MAX_MODES_ITEMS, MAX_SERIAL_TOKENS, check_modes
from onepass.server.schema.scoring import modes
from server.asking import SCORE, check_error

MODES = ["serial", "packed-dense", "packed-segment", "chunked", "extend"]
QUERY, ITEM, COUNT = 20, 6, 4


def encoded(scorer: Scorer, query: int = QUERY, items: int = COUNT, item: int = ITEM) -> Encoded:
    ids = [[token % 50 + 3 for token in range(item)] for _ in range(items)]
    return scorer.engines[0].encoder.encode(ScoreRequest(query=[*range(3, 3 + query)], items=ids, label_token_ids=[5]))


def test_a_server_without_the_visualizer_says_so(client: TestClient) -> None:
    error = check_error(client.post("/v1/modes", json=SCORE), 400, "visualizer_off")
    assert "--visualizer" in error["message"]


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ({"repeats": 0}, "invalid_repeats"),
        ({"repeats": 99}, "invalid_repeats"),
        ({"chunk_size": "two"}, "invalid_chunk_size"),
        ({"mode": "serial"}, "unknown_field"),
        ({"labels": ["several tokens at once"]}, "label_not_single_token"),
    ],
)
def test_mistakes_are_named(client: TestClient, member: dict[str, Any], code: str) -> None:
    check_error(client.post("/v1/modes", json={**SCORE, **member}), 400, code)


def test_the_body_is_a_score_request_with_two_more_members() -> None:
    request = modes.parse({**SCORE, "repeats": 2, "chunk_size": 3}, ("tiny",), 0)
    assert (request.options.repeats, request.options.chunk_size) == (2, 3)
    assert (request.score.request.items, request.score.request.return_trace) == (SCORE["items"], True)
    assert modes.parse(SCORE, ("tiny",), 0).options.repeats == modes.DEFAULT_REPEATS


def test_a_request_that_serial_is_too_slow_for_is_refused(tiny_scorer: Scorer) -> None:
    small = encoded(tiny_scorer)
    check_modes(small)
    many = replace(small, items=small.items[:1] * (MAX_MODES_ITEMS + 1), continuations=((),) * (MAX_MODES_ITEMS + 1))
    long = replace(small, context=(3,) * (MAX_SERIAL_TOKENS // COUNT))
    none = replace(small, items=(), continuations=())
    for wrong, code in ((many, "modes_too_large"), (long, "modes_too_large"), (none, "missing_items")):
        with pytest.raises(RequestError) as refused:
            check_modes(wrong)
        assert refused.value.code == code


def test_every_mode_is_run_and_the_servers_contexts_stay(tiny_scorer: Scorer) -> None:
    """By way of the frame that the engine process gets."""
    tiny_scorer.engine.contexts.clear()
    tiny_scorer.score(query=[7] * 64, items=[[8]], label_token_ids=[5])
    kept = len(tiny_scorer.engine.contexts)
    frame = modes_frame(ScoreCall(encoded(tiny_scorer), "", 0), 1, 2)
    call = score_call(frame)
    runs = ModeRuns(tiny_scorer)
    document = runs.submit(call.encoded, frame.fields["repeats"], frame.fields["chunk_size"]).result(600)
    by_mode = {run["mode"]: run for run in document["modes"]}
    assert list(by_mode) == MODES
    whole = QUERY + COUNT * ITEM
    assert by_mode["packed-segment"]["computed_tokens"] == by_mode["packed-dense"]["computed_tokens"] == whole
    assert by_mode["serial"]["tokens_computed_twice"] == (COUNT - 1) * QUERY
    assert by_mode["chunked"]["tokens_computed_twice"] == QUERY
    for name, run in by_mode.items():
        drawn = sum(end - first for step in run["drawn"] for some in step["runs"].values() for _, first, end in some)
        assert drawn == run["tiles"], "every tile of the drawn steps, and there are no others"
        assert (run["tiles"] > run["tiles_needed"]) is (name == "packed-dense")
    assert kept == len(tiny_scorer.engine.contexts) > 0


def test_a_cancelled_run_ends_and_the_next_one_goes_on(tiny_scorer: Scorer) -> None:
    runs = ModeRuns(tiny_scorer)
    first, second = (runs.submit(encoded(tiny_scorer), 1, 2) for _ in range(2))
    assert first.cancel()
    assert [run["mode"] for run in second.result(600)["modes"]] == MODES
    with pytest.raises(CancelledError):
        first.result(0)


def test_a_run_that_fails_says_why(tiny_scorer: Scorer) -> None:
    error = ModeRuns(tiny_scorer).submit(encoded(tiny_scorer), 1, -1).exception(600)
    assert "chunk_size must be" in str(error)
