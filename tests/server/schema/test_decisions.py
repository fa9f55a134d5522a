"""The four bodies of typed decisions over HTTP: each answered in its own shape, with the same probabilities."""

from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.decisions.calibration import Calibration, TypeCalibration
from onepass.errors import Overloaded, RequestError
from onepass.server.schema.decisions import sglang, systemone
from server.in_process import InProcess

STATE = "Please recommend a warm winter jacket for my younger brother."
OPENAI: dict[str, Any] = {
    "model": "default",
    "input": STATE,
    "questions": [
        {"type": "predicate", "name": "film", "instructions": "Is this about a film?"},
        {
            "type": "choice",
            "instructions": "Which team?",
            "choices": [{"value": "shoes", "description": "and boots"}, {"value": "coats"}, {"value": True}],
        },
        {"type": "score", "name": "warm", "instructions": "How warm?", "levels": [{"label": "0"}, {"label": "1"}]},
    ],
    "prompt_cache_key": "mine",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "safety_identifier": "u1",
}
SYSTEMONE: dict[str, Any] = {
    "model": "default",
    "state": STATE,
    "questions": {
        "film": {"type": "noul", "instructions": "Is this about a film?"},
        "team": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"shoes": "and boots", "coats": None, "true": None},
        },
        "warm": {"type": "score", "instructions": "How warm?", "criteria": ["cold", {"deep": ["hot"]}]},
    },
}
SGLANG: dict[str, Any] = {
    "model": "default",
    "input": STATE,
    "questions": [
        {"id": "film", "type": "yes_no", "question": "Is this about a film?"},
        {
            "id": "team",
            "type": "choice",
            "question": "Which team?",
            "options": [{"name": "shoes", "description": "and boots"}, {"name": "coats"}, {"name": "true"}],
        },
        {"id": "warm", "type": "score", "question": "How warm?", "levels": ["0", "1"]},
    ],
}
OWN: dict[str, Any] = {"state": STATE, "questions": OPENAI["questions"]}


def asked(client: TestClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


@pytest.fixture
def openai(client: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = asked(client, "/v1/decisions", OPENAI).json()
    return answer


def test_openai_gets_its_answers_in_order(client: TestClient, openai: dict[str, Any]) -> None:
    film, team, warm = openai["answers"]
    assert [one["type"] for one in openai["answers"]] == ["predicate", "choice", "score"]
    assert [one["name"] for one in openai["answers"]] == ["film", None, "warm"]
    assert 0 <= film["probability"] <= 1
    assert [one["value"] for one in team["probabilities"]] == ["shoes", "coats", True]
    likely = max(team["probabilities"], key=lambda one: one["probability"])
    assert team["choice"] == likely["value"]
    assert team["confidence"] == pytest.approx((3 * likely["probability"] - 1) / 2)
    assert [(one["label"], one["value"]) for one in warm["probabilities"]] == [("0", 0), ("1", 1)]
    assert warm["score"] == warm["probabilities"][1]["probability"]
    for one in (team, warm):
        assert sum(p["probability"] for p in one["probabilities"]) == pytest.approx(1, abs=1e-9)
    usage = openai["usage"]
    assert usage["input_tokens"] == usage["total_tokens"] > 50
    assert usage["output_tokens"] == usage["output_tokens_details"]["reasoning_tokens"] == 0
    assert openai["confidence_definition"] == "(n*max-1)/(n-1)"
    assert openai["calibration"] is None


def test_the_state_is_kept_and_told_as_cached(client: TestClient) -> None:
    body = {**OPENAI, "input": STATE + " He is ten years old and likes the sea, the sun and the rain."}
    first = asked(client, "/v1/decisions", body).json()["usage"]
    second = asked(client, "/v1/decisions", {**body, "questions": OPENAI["questions"][:1]}).json()["usage"]
    context = first["input_tokens_details"]["cached_tokens"] + first["input_tokens_details"]["cache_write_tokens"]
    assert second["input_tokens_details"] == {"cached_tokens": context, "cache_write_tokens": 0}


def test_every_dialect_gives_the_same_probabilities(client: TestClient, openai: dict[str, Any]) -> None:
    theirs = [
        [openai["answers"][0]["probability"]],
        [one["probability"] for one in openai["answers"][1]["probabilities"]],
        [one["probability"] for one in openai["answers"][2]["probabilities"]],
    ]
    response = asked(client, "/v1/decisions", SGLANG)
    assert response.headers["x-onepass-dialect"] == "sglang"
    by_id = response.json()["answers"]
    assert list(by_id) == ["film", "team", "warm"]
    assert by_id["film"]["type"] == "yes_no"
    assert by_id["film"]["probabilities"]["yes"] == pytest.approx(theirs[0][0], abs=1e-6)
    assert list(by_id["team"]["probabilities"].values()) == pytest.approx(theirs[1], abs=1e-6)
    assert list(by_id["warm"]["probabilities"].values()) == pytest.approx(theirs[2], abs=1e-6)
    own = asked(client, "/v1/decisions", OWN)
    assert own.headers["x-onepass-dialect"] == "onepass"
    assert own.json()["answers"][0]["probability"] == pytest.approx(theirs[0][0], abs=1e-6)
    for path in ("/v1/decisions", "/v1/systemone"):
        response = asked(client, path, SYSTEMONE)
        assert response.headers["x-onepass-dialect"] == "systemone"
        assert response.json()["answers"]["film"]["noul"] == pytest.approx(theirs[0][0], abs=1e-6)
        team = response.json()["answers"]["team"]
        assert list(team["probabilities"].values()) == pytest.approx(theirs[1], abs=1e-6)


def test_systemone_answers_by_key_with_a_legend(client: TestClient) -> None:
    response = asked(client, "/v1/systemone", SYSTEMONE)
    answer = response.json()
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]
    assert list(answer["answers"]) == ["film", "team", "warm"]
    assert set(answer["answers"]["film"]) == {"type", "noul"}
    warm = answer["answers"]["warm"]
    assert warm["legend"] == {"0": "cold", "1": '{"deep":["hot"]}'}
    assert set(warm["probabilities"]) == {"0", "1"}
    assert warm["score"] == pytest.approx(warm["probabilities"]["1"])
    assert set(answer["diagnostics"]) == set(answer["answers"])
    assert answer["usage"]["output_tokens"] == 0


def test_permutations_and_prompt_ids_are_told(client: TestClient) -> None:
    answer = asked(client, "/v1/decisions", {**OPENAI, "permutations": 3}).json()
    assert all(0 <= one["spread"] <= 1 for one in answer["answers"])
    told = asked(client, "/v1/decisions", {**SGLANG, "return_prompt_token_ids": True}).json()["answers"]["team"]
    assert len(told["label_token_ids"]) == 3
    scored = client.post(
        "/v1/score",
        json={
            "query": told["prompt_token_ids"],
            "items": [[]],
            "label_token_ids": told["label_token_ids"],
            "apply_softmax": True,
        },
    ).json()
    assert scored["scores"][0] == pytest.approx(list(told["probabilities"].values()), abs=1e-6)


def test_a_temperature_flattens(client: TestClient) -> None:
    plain, flat = (
        asked(client, "/v1/decisions", {**SGLANG, "temperature": t}).json()["answers"]["team"] for t in (1.0, 50.0)
    )
    assert max(flat["probabilities"].values()) < max(plain["probabilities"].values())


def test_candidates_and_questions_are_a_grid(client: TestClient) -> None:
    body = {**OWN, "candidates": ["a rain coat", "a film", "shoes"]}
    answer = asked(client, "/v1/decisions", body).json()
    assert [len(row) for row in answer["answers"]] == [3, 3, 3]
    assert answer["num_reads"] == 9
    alone = asked(client, "/v1/decisions", {**body, "candidates": ["a film"]}).json()
    assert alone["answers"][0][0]["probability"] == pytest.approx(answer["answers"][1][0]["probability"], abs=1e-6)


IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/x.png"}]}]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input": None}, "missing_input", "input"),
        ({"input": 7}, "invalid_input", "input"),
        ({"input": ""}, "empty_input", "input"),
        ({"input": IMAGE}, "unsupported_content", "input[0].content[0]"),
        ({"questions": []}, "invalid_questions", "questions"),
        ({"questions": [{"type": "poem"}]}, "invalid_questions", "questions[0].type"),
        ({"questions": [{"type": "predicate"}]}, "invalid_questions", "questions[0].instructions"),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}]}]},
            "invalid_questions",
            "questions[0].choices",
        ),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": 1}]}]},
            "invalid_questions",
            "questions[0].choices[1].value",
        ),
        (
            {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]}]},
            "invalid_questions",
            "questions[0]",
        ),
        ({"questions": [{**OPENAI["questions"][0], "colour": 1}]}, "invalid_questions", "questions[0].colour"),
        ({"prompt_cache_options": {"mode": "never"}}, "invalid_prompt_cache_options", "prompt_cache_options"),
        ({"permutations": 0}, "invalid_permutations", "permutations"),
        ({"colour": "red"}, "unknown_field", "colour"),
    ],
)
def test_a_wrong_body_of_openai_is_400(client: TestClient, change: dict[str, Any], code: str, param: str) -> None:
    error = asked(client, "/v1/decisions", {**OPENAI, **change}, 400).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    ("change", "code", "loc"),
    [
        ({"state": None}, "missing_state", ["body", "state"]),
        ({"questions": {}}, "invalid_questions", ["body", "questions"]),
        ({"questions": {"q": {"type": "box"}}}, "unsupported_question", ["body", "questions", "q", "type"]),
        ({"questions": {"q": {"type": "choice"}}}, "invalid_questions", ["body", "questions", "q", "criteria"]),
        ({"questions": {"q": {"type": "score", "criteria": [7]}}}, "invalid_questions", ["body", "questions", "q"]),
        ({"assets": {"x": {"type": "image"}}}, "unsupported_content", ["body", "assets"]),
        ({"state": IMAGE}, "unsupported_content", ["body", "state", 0, "content", 0]),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "invalid_chat_template_kwargs", None),
    ],
)
def test_a_wrong_body_of_systemone_is_422_with_its_place(
    client: TestClient, change: dict[str, Any], code: str, loc: list[Any] | None
) -> None:
    response = asked(client, "/v1/systemone", {**SYSTEMONE, **change}, 422)
    (detail,) = response.json()["detail"]
    assert detail["type"] == code
    assert detail["msg"]
    assert detail["loc"][: len(loc or [])] == (loc or [])
    assert response.headers["x-typesafe-request-id"]


WRONG_TYPES = [["predicate"], {}, 7, True, "poem", None]


@pytest.mark.parametrize("kind", WRONG_TYPES)
def test_a_type_of_any_json_is_refused_with_its_place(client: TestClient, kind: Any) -> None:
    for body in (OPENAI, SGLANG, OWN):
        wrong = {**body, "questions": [{**body["questions"][0], "type": kind}]}
        error = asked(client, "/v1/decisions", wrong, 400).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_questions", "questions[0].type")
        assert ("is required" in error["message"]) == (kind is None)
    wrong = {**SYSTEMONE, "questions": {"q": {"type": kind}}}
    (detail,) = asked(client, "/v1/systemone", wrong, 422).json()["detail"]
    assert detail["loc"] == ["body", "questions", "q", "type"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"state": STATE}, "questions", "questions is required"),
        ({"state": STATE, "questions": None}, "questions", "questions is required"),
        ({"state": STATE, "questions": "Is it?"}, "questions", "must be a list or an object; got 'Is it?'"),
        ({"state": STATE, "input": STATE, "questions": [{"type": "noul"}]}, "input", "give state instead of input"),
        ({"input": STATE, "questions": [{"type": "noul"}], "candidates": ["a"]}, "input", "there is candidates"),
        ({"state": STATE, "questions": [{"type": "noul"}], "candidates": "ab"}, "candidates", "got 'ab'"),
        ({}, "input", "(state, in other dialects)"),
    ],
)
def test_what_is_missing_or_too_much_is_told_in_the_dialect_that_was_meant(
    client: TestClient, body: dict[str, Any], param: str, message: str
) -> None:
    error = asked(client, "/v1/decisions", body, 400).json()["error"]
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize("key", ["plain", "a.b", "0", "a[0]", "", "a.b.type"])
def test_the_place_of_a_mistake_has_the_key_of_its_question(client: TestClient, key: str) -> None:
    questions = {"a": {"type": "noul"}, key: {"type": "score", "criteria": ["low", 7]}}
    (detail,) = asked(client, "/v1/systemone", {**SYSTEMONE, "questions": questions}, 422).json()["detail"]
    assert detail["loc"][:5] == ["body", "questions", key, "criteria", 1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("It is late.", ["It is late."]),
        ({"hour": 23}, ['{"hour":23}']),
        ([1, 2], ["[1,2]"]),
        ([{"role": "user", "content": "late"}, {"role": "assistant", "content": "yes"}], ["late", "yes"]),
    ],
)
def test_instructions_of_systemone_stand_before_a_state_of_any_form(
    client: TestClient, service: InProcess, state: Any, words: list[str]
) -> None:
    body = {"state": state, "instructions": "Be strict.", "questions": SYSTEMONE["questions"]}
    request = systemone.parse(body, ("default",), 0).request
    plan = service.served.decider.plan(request)
    assert service.served.tokenizer is not None
    text = service.served.tokenizer.decode(list(plan.score_request.query or ()))  # type: ignore[arg-type]
    places = [text.index(word) for word in ["Be strict.", *words]]
    assert places == sorted(places)
    asked(client, "/v1/systemone", body)


def test_a_state_that_is_wrong_beside_instructions_is_named_by_its_own_place(client: TestClient) -> None:
    body = {**SYSTEMONE, "state": 7, "instructions": "Be strict."}
    (detail,) = asked(client, "/v1/systemone", body, 422).json()["detail"]
    assert detail["loc"] == ["body", "state"]
    (detail,) = asked(client, "/v1/systemone", {**SYSTEMONE, "instructions": 7}, 422).json()["detail"]
    assert detail["loc"] == ["body", "instructions"]


def test_options_of_sglang_that_are_the_same_key_are_refused(client: TestClient) -> None:
    """The answer is an object by option: one of the two would be lost."""

    def body(*options: Any) -> dict[str, Any]:
        question = {"id": "a", "type": "choice", "question": "?", "options": [{"value": one} for one in options]}
        return {**SGLANG, "questions": [question]}

    error = asked(client, "/v1/decisions", body(True, "true"), 400).json()["error"]
    assert "'true' is given twice" in error["message"]
    answer = asked(client, "/v1/decisions", body(True, "other")).json()["answers"]["a"]
    assert set(answer["probabilities"]) == {"true", "other"}
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_levels_of_sglang_are_json(service: InProcess) -> None:
    levels = ["low", {"deep": ["é"]}, 3]
    body = {**SGLANG, "questions": [{"id": "a", "type": "score", "question": "?", "levels": levels}]}
    (question,) = sglang.parse(body, ("default",), 0).request.questions
    assert [option.value for option in question.options] == ["low", '{"deep":["é"]}', "3"]
    wrong = {**body, "questions": [{"id": "a", "type": "score", "question": "?", "levels": ["low", None]}]}
    with pytest.raises(RequestError, match=r"questions\[0\]\.levels\[1\] must be a text"):
        sglang.parse(wrong, ("default",), 0)


def test_what_would_be_millions_of_prompts_is_refused_before_they_are_made(
    client: TestClient, service: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = {"type": "choice", "choices": [f"o{i}" for i in range(255)]}
    body = {"state": STATE, "questions": [question] * 40, "permutations": 255}
    monkeypatch.setattr(type(service.served.decider), "plan", None)
    error = asked(client, "/v1/decisions", body, 400).json()["error"]
    assert (error["code"], error["param"]) == ("too_many_scores", "questions")
    assert "got 2,601,000" in error["message"]


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"state": "word " * 600}, "state", "the state has "),
        ({"questions": [{"type": "noul", "instructions": "word " * 600}]}, "questions[0]", " of questions[0] with its"),
        ({"questions": {"team": {"type": "noul", "instructions": "word " * 600}}}, "questions.team", " of questions.t"),
        ({"candidates": ["a", "word " * 600]}, "questions[0]", " of candidates[1], "),
    ],
)
def test_what_is_too_long_is_told_in_the_callers_words(
    client: TestClient, service: InProcess, change: dict[str, Any], param: str, message: str
) -> None:
    body = {"state": STATE, "candidates": ["a"], "questions": [{"type": "noul"}], **change}
    error = asked(client, "/v1/decisions", body, 400).json()["error"]
    assert (error["code"], error["param"]) == ("too_long", param)
    assert message in error["message"]
    assert "quer" not in error["message"]
    assert "item" not in error["message"]


def test_a_wrong_question_of_sglang_is_400(client: TestClient) -> None:
    body = {**SGLANG, "questions": [{"id": "a", "type": "choice", "question": "?", "options": [{"name": "x"}]}]}
    assert asked(client, "/v1/decisions", body, 400).json()["error"]["param"] == "questions[0].options"
    assert asked(client, "/v1/decisions", {**SGLANG, "images": [{"url": "x"}]}, 400).json()["error"]["code"] == (
        "unsupported_content"
    )


@pytest.mark.parametrize("body", [OPENAI, SYSTEMONE, SGLANG, OWN])
def test_an_overloaded_server_says_when_to_come_back(
    client: TestClient, service: InProcess, body: dict[str, Any]
) -> None:
    service.failure = Overloaded("too much is waiting", 3.0)
    response = asked(client, "/v1/decisions", body, 429)
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["message"] == "too much is waiting"


def test_an_unknown_model_is_404_in_every_dialect(client: TestClient) -> None:
    for body in (OPENAI, SYSTEMONE, SGLANG, OWN):
        error = asked(client, "/v1/decisions", {**body, "model": "gpt-6-luna"}, 404).json()["error"]
        assert error["code"] == "model_not_found"


def test_models_are_listed_as_system_one_lists_them(client: TestClient) -> None:
    answer = client.get("/v1/models").json()
    assert [one["name"] for one in answer["models"]] == [one["id"] for one in answer["data"]]
    assert answer["models"][0]["release_date"] == "2023-11-14"


def test_a_calibration_of_the_served_model_is_applied_and_named(client: TestClient, service: InProcess) -> None:
    plain = asked(client, "/v1/decisions", OPENAI).json()
    before = service._served
    service._served = replace(before, calibration=Calibration("mine", {"choice": TypeCalibration(100.0)}))
    try:
        calibrated = asked(client, "/v1/decisions", OPENAI).json()
        raw = asked(client, "/v1/decisions", {**OPENAI, "calibrated": False}).json()
    finally:
        service._served = before
    assert (plain["calibration"], calibrated["calibration"], raw["calibration"]) == (None, "mine", None)
    assert calibrated["answers"][1]["confidence"] < plain["answers"][1]["confidence"]
    assert raw["answers"][1]["confidence"] == pytest.approx(plain["answers"][1]["confidence"], abs=1e-5)


def test_the_prompt_of_every_read_is_given_with_its_question(client: TestClient) -> None:
    told = asked(client, "/v1/decisions", {**OWN, "permutations": 2, "return_prompt": True}).json()
    items = told["prompt"]["items"]
    assert len(items) == told["num_reads"] == 6
    assert [item["question"] for item in items] == [0, 0, 1, 1, 2, 2]
    assert STATE in told["prompt"]["shared"]["text"]
    for item in items:
        assert OWN["questions"][item["question"]]["instructions"] in item["text"]
        assert all(label in item["text"] for label in item["labels"])
    assert "prompt" not in asked(client, "/v1/decisions", OWN).json()


def test_the_prompts_of_a_grid_are_of_each_candidate_and_question(client: TestClient) -> None:
    candidates = ["rubber boots", "a woollen coat"]
    told = asked(client, "/v1/decisions", {**OWN, "candidates": candidates, "return_prompt": True}).json()
    items = told["prompt"]["items"]
    assert [(item["candidate"], item["question"]) for item in items] == [(c, q) for c in (0, 1) for q in (0, 1, 2)]
    for item in items:
        assert candidates[item["candidate"]] in item["text"]
        assert candidates[1 - item["candidate"]] not in item["text"]
        assert OWN["questions"][item["question"]]["instructions"] in item["text"]
