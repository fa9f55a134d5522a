"""Questions as objects and as plain data, and what is refused of them."""

from typing import Any

import pytest

from onepass.decisions.question_format import questions_of
from onepass.decisions.questions import DecisionRequest, Question
from onepass.errors import RequestError


@pytest.mark.parametrize(
    ("data", "question"),
    [
        ({"type": "predicate", "instructions": "Is it spam?"}, Question.predicate("Is it spam?")),
        (
            {"type": "yes_no", "id": "q", "question": "Spam?", "yes": "an advert", "no": "a letter"},
            Question.predicate("Spam?", name="q", true="an advert", false="a letter"),
        ),
        (
            {"type": "noul", "instructions": "Spam?", "criteria": {"true": "an advert"}},
            Question.predicate("Spam?", true="an advert"),
        ),
        (
            {
                "type": "choice",
                "instructions": "Who?",
                "choices": [{"value": "a", "description": "first"}, {"value": True}],
            },
            Question(
                "choice", "Who?", Question.choice("", {"a": "first"}).options + Question.choice("", [True]).options
            ),
        ),
        (
            {
                "type": "choice",
                "instructions": "Who?",
                "options": [{"name": "a"}, {"name": "b", "description": "the other"}],
            },
            Question.choice("Who?", {"a": None, "b": "the other"}),
        ),
        (
            {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
            Question.score("How?", ["low", "high"]),
        ),
        (
            {"type": "score", "instructions": "How?", "levels": [{"label": "low", "description": "calm"}, "high"]},
            Question.score("How?", {"low": "calm", "high": None}),
        ),
        (
            {"type": "choice", "instructions": {"ask": "é"}, "criteria": {"a": {"x": 1}, "b": None}},
            Question.choice('{"ask":"é"}', {"a": '{"x":1}', "b": None}),
        ),
    ],
)
def test_the_words_of_all_three_apis_are_understood(data: dict[str, Any], question: Question) -> None:
    assert questions_of([data]) == (question,)


def test_questions_by_name_have_that_name() -> None:
    spam, tone = questions_of({"spam": {"type": "noul"}, "tone": Question.score("How?", ["calm", "angry"])})
    assert (spam.name, tone.name) == ("spam", "tone")
    assert spam.instructions == "Is this true?"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ("spam?", "questions"),
        ([7], "questions[0]"),
        ([{"type": "poem"}], "questions[0].type"),
        ([{"type": "box", "instructions": "where?"}], "questions[0]"),
        ({"a": {"type": "choice", "instructions": "which?"}}, "questions.a"),
        ({"a": {"type": "choice", "choices": ["x", 7]}}, "questions.a.choices[1]"),
        ({"a": {"type": "noul", "criteria": {"maybe": "x"}}}, "questions.a.criteria"),
        ([{"type": "noul", "instructions": 7}], "questions[0].instructions"),
        ([{"type": "noul", "colour": "red"}], "questions[0].colour"),
        ([{"type": ["noul"]}], "questions[0].type"),
        ([{"type": {}}], "questions[0].type"),
        ([{"instructions": "Is it?"}], "questions[0].type"),
        ([{"type": "choice", "choices": ["a", "b"], "yes": "ignored?"}], "questions[0].yes"),
        ([{"type": "noul", "instructions": "a", "question": "b"}], "questions[0].question"),
        ([{"type": "noul", "name": "a", "id": "b"}], "questions[0].id"),
        ([{"type": "choice", "choices": [{"value": "a", "label": "b"}]}], "questions[0].choices[0].label"),
        ([{"type": "noul", "id": 7}], "questions[0].id"),
        ([{"type": "noul", "criteria": {"true": "a"}, "yes": "b"}], "questions[0].yes"),
        ([{"type": "noul", "yes": 7}], "questions[0].yes"),
        ({"a": {"type": "noul", "name": "b"}}, "questions.a.name"),
        ([{"type": "noul", "instructions": {"when": {1, 2}}}], "questions[0].instructions"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(data: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        questions_of(data)
    assert error.value.param == param


ONE = (Question.predicate("Is it?"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": ()}, "questions must be 1 to 400; got 0"),
        ({"questions": ONE * 401}, "questions must be 1 to 400; got 401"),
        ({"questions": (Question.choice("which?", ["a", "b", "a"]),)}, "'a' is given twice"),
        ({"questions": (Question.choice("which?", [str(i) for i in range(256)]),)}, "1 to 255 options; got 256"),
        ({"questions": (Question.choice("which?", ["a", ""]),)}, "must not be empty"),
        ({"questions": tuple(Question.predicate("Is it?", name="x") for _ in range(2))}, "'x' is given twice"),
        ({"questions": ONE, "candidates": ()}, "candidates must be 1 to 10,000; got 0"),
        ({"questions": ONE, "candidates": ("a", "")}, "candidates must be texts that are not empty"),
        ({"questions": ONE, "permutations": 0}, "permutations must be a whole number from 1 to 255; got 0"),
        ({"questions": ONE, "permutations": True}, "got true"),
        ({"questions": ONE, "temperature": True}, "temperature must be a finite number above 0; got true"),
        ({"questions": ONE, "temperature": 10**400}, "temperature must be a finite number above 0"),
        ({"questions": (Question.choice("which?", ["a", " "]),)}, "options must not be empty; option 1 of"),
        ({"questions": (Question.predicate(" "),)}, "asks nothing"),
        ({"questions": ONE, "candidates": ("a", " ")}, "candidates must be texts that are not empty"),
        ({"questions": ONE, "candidates": (None,)}, "got null"),
        ({"questions": ONE, "mode": "fast"}, "mode must be one of"),
    ],
)
def test_a_request_that_cannot_be_asked_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DecisionRequest(state="x", **fields).check()


def test_an_empty_question_with_described_answers_is_asked() -> None:
    DecisionRequest(state="x", questions=(Question.predicate("", true="it is late"),)).check()
    DecisionRequest(state="x", questions=(Question.choice("", ["late", "early"]),)).check()


def test_a_name_may_be_said_twice_if_it_is_the_same() -> None:
    (question,) = questions_of({"a": {"type": "noul", "name": "a"}})
    assert question.name == "a"


def test_a_string_and_a_boolean_of_the_same_text_are_different_choices() -> None:
    DecisionRequest(state="x", questions=(Question.choice("which?", ["true", True]),)).check()
