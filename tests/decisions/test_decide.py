"""Decisions with a tiny model: equal to one prompt per question, whatever shares the pass; order, calibration, grid."""

import numpy as np
import pytest

from onepass.api import ScoreRequest
from onepass.decisions.calibration import Calibration, TypeCalibration
from onepass.decisions.decider import Decider, DecisionPlan, rotations
from onepass.decisions.questions import DecisionRequest, Question
from onepass.decisions.result import LOW_LABEL_MASS, DecisionAnswer
from onepass.engine.encoding.branches import BranchedRequest
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates
from onepass.scorer import Scorer

TOLERANCE = 2e-6  # of a probability in float32, when other tokens share the step
STATE = "Please recommend a warm winter jacket or another present for my younger brother, size 42."
QUESTIONS = (
    Question.predicate("Is this a question about a film?", name="film"),
    Question.choice("Which team?", {"shoes": "sizes and colours", "coats": None, "films": None}, name="team"),
    Question.score("How warm?", ["cold", "mild", "warm", "hot"], name="warm"),
    Question.choice("True or not?", ["true", True, False], name="typed"),
)
CANDIDATES = ("a black umbrella", "a light rain coat", "the next film about the sea and the space ship", "shoes")


def plan_of(scorer: Scorer, request: DecisionRequest) -> DecisionPlan:
    return scorer.decider.plan(request)


def one_prompt_each(scorer: Scorer, plan: DecisionPlan) -> list[list[float]]:
    """The logits of every read, each asked alone as one plain sequence."""
    request = plan.score_request
    assert not isinstance(request.query, str | None)
    items = request.items
    labels = request.label_token_ids
    if isinstance(request, BranchedRequest):
        items = [[*item, *branch] for item in request.items for branch in request.branches]
        labels = [*request.branch_label_token_ids] * len(request.items)
    alone = [
        ScoreRequest(query=[*request.query, *item], items=[[]], label_token_ids=list(own), mode="serial")
        for item, own in zip(items, labels, strict=True)
    ]
    return [scorer.score_many([one])[0].logits[0] for one in alone]


def softmax(logits: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("permutations", [1, 2, 255])
def test_answers_equal_one_prompt_per_question(decision_scorer: Scorer, permutations: int) -> None:
    request = DecisionRequest(state=STATE, questions=QUESTIONS, permutations=permutations)
    plan = plan_of(decision_scorer, request)
    result = plan.result(decision_scorer.score_many([plan.score_request])[0])
    expected = [np.zeros(len(question.options)) for question in QUESTIONS]
    for read, logits in zip(plan.reads, one_prompt_each(decision_scorer, plan), strict=True):
        probabilities = softmax(logits)
        for position, option in enumerate(read.order):
            count = min(permutations, len(read.order))
            expected[read.question][option] += probabilities[position] / count
    for answer, values in zip(result.answers[0], expected, strict=True):
        assert answer.probabilities == pytest.approx(values.tolist(), abs=TOLERANCE)
        assert sum(answer.probabilities) == pytest.approx(1, abs=1e-12)
    assert result.num_reads == len(plan.reads) == sum(min(permutations, len(q.options)) for q in QUESTIONS)


def test_a_question_alone_and_a_hundred_together_are_answered_alike(decision_scorer: Scorer) -> None:
    many = [Question.score(f"How warm is number {i}?", ["cold", "mild", "hot"][: 2 + i % 2]) for i in range(100)]
    together = decision_scorer.decide(STATE, many)
    for index in (0, 1, 50, 99):
        alone = decision_scorer.decide(STATE, [many[index]])
        assert alone[0].probabilities == pytest.approx(together[index].probabilities, abs=TOLERANCE)


def test_as_many_options_as_the_model_has_labels(decision_scorer: Scorer) -> None:
    question = Question.choice("Which number?", [f"number {i}" for i in range(60)])
    result = decision_scorer.decide(STATE, [question])
    plan = plan_of(decision_scorer, DecisionRequest(state=STATE, questions=(question,)))
    assert result[0].probabilities == pytest.approx(
        softmax(one_prompt_each(decision_scorer, plan)[0]).tolist(), abs=TOLERANCE
    )


@pytest.mark.parametrize("mode", ["auto", "packed", "extend", "chunked", "serial"])
def test_a_grid_of_candidates_and_questions_equals_one_prompt_each(decision_scorer: Scorer, mode: str) -> None:
    request = DecisionRequest(state=STATE, questions=QUESTIONS, candidates=CANDIDATES, permutations=2, mode=mode)
    plan = plan_of(decision_scorer, request)
    scored = decision_scorer.score_many([plan.score_request])[0]
    expected = [softmax(logits) for logits in one_prompt_each(decision_scorer, plan)]
    assert len(scored.scores) == len(expected) == len(CANDIDATES) * len(plan.reads)
    for row, values in zip(scored.scores, expected, strict=True):
        assert row == pytest.approx(values.tolist(), abs=TOLERANCE)
    result = plan.result(scored)
    assert len(result.answers) == len(CANDIDATES)
    assert result.of(2, "team").probabilities != result.of(1, "team").probabilities


def test_a_grid_computes_the_state_and_each_candidate_once(decision_scorer: Scorer) -> None:
    request = DecisionRequest(state=STATE + " Once.", questions=QUESTIONS[:2], candidates=CANDIDATES)
    plan = plan_of(decision_scorer, request)
    scored = plan.score_request
    assert isinstance(scored, BranchedRequest)
    branches = sum(map(len, scored.branches))
    result = decision_scorer.score_many([scored])[0]
    assert not isinstance(scored.query, str | None)
    wanted = len(scored.query) + sum(map(len, scored.items)) + len(CANDIDATES) * branches
    assert result.usage.prompt_tokens == wanted
    assert result.usage.computed_tokens + result.usage.cached_tokens == wanted


def test_the_state_is_kept_for_the_next_request(decision_scorer: Scorer) -> None:
    state = STATE + " And a second present for his sister, who likes films about the sea."
    decision_scorer.decide(state, QUESTIONS[:1])
    again = decision_scorer.decide(state, QUESTIONS[1:])
    assert again.mode == "extend"
    assert again.usage.cached_tokens > 20


def test_the_same_request_gives_the_same_probabilities_whatever_shares_its_step(decision_scorer: Scorer) -> None:
    """Neighbours of every size, from one token to more than a step, at the same time and before it."""
    plan = plan_of(decision_scorer, DecisionRequest(state=STATE, questions=QUESTIONS, permutations=2))
    alone = plan.result(decision_scorer.score_many([plan.score_request])[0])
    for size in (1, 7, 32, 100, 300, 600):
        neighbours = [
            ScoreRequest(
                query=[3 + (size * i + j) % 500 for j in range(size)], items=[[5], [6, 7]], label_token_ids=[8, 9]
            )
            for i in range(3)
        ]
        *_, scored = decision_scorer.score_many([*neighbours, plan.score_request])
        for answer, first in zip(plan.result(scored).answers[0], alone.answers[0], strict=True):
            assert answer.probabilities == pytest.approx(first.probabilities, abs=TOLERANCE), size


def test_one_text_is_no_list_of_candidates(decision_scorer: Scorer) -> None:
    with pytest.raises(RequestError, match="candidates must be a list of texts; got 'shoes'"):
        decision_scorer.decide(STATE, QUESTIONS, candidates="shoes")


def test_rotations_are_evenly_apart_and_begin_with_the_given_order() -> None:
    assert rotations(4, 1) == [(0, 1, 2, 3)]
    assert rotations(4, 2) == [(0, 1, 2, 3), (2, 3, 0, 1)]
    assert rotations(3, 9) == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]


def test_permutations_tell_the_spread_and_average_it_out(decision_scorer: Scorer) -> None:
    """Over all rotations every option has stood everywhere: the order in which they are given no longer matters."""
    names = ["cold", "mild", "warm"]
    plain = decision_scorer.decide(STATE, [Question.choice("Which?", names)])
    assert plain[0].spread is None
    averaged = decision_scorer.decide(STATE, [Question.choice("Which?", names)], permutations=3)
    turned = decision_scorer.decide(STATE, [Question.choice("Which?", names[1:] + names[:1])], permutations=3)
    assert averaged[0].spread is not None
    assert averaged[0].spread > 0
    by_name = dict(zip(turned[0].values, turned[0].probabilities, strict=True))
    assert [by_name[name] for name in names] == pytest.approx(averaged[0].probabilities, abs=TOLERANCE)


def test_a_calibration_is_applied_by_type_and_named(decision_scorer: Scorer) -> None:
    calibration = Calibration("mine", {"choice": TypeCalibration(2.0, (0.5, 0.0, -0.5))})
    decider = Decider(decision_scorer.model.tokenizer, decision_scorer.model.chat, calibration)
    request = DecisionRequest(state=STATE, questions=QUESTIONS)
    plan = decider.plan(request)
    scored = decision_scorer.score_many([plan.score_request])[0]
    result = plan.result(scored)
    raw = plan_of(decision_scorer, request).result(scored)
    assert (result.calibration, raw.calibration) == ("mine", None)
    assert result["film"] == raw["film"]
    shifted = [(x - b) / 2 for x, b in zip(scored.logits[1], (0.5, 0.0, -0.5), strict=True)]
    assert result["team"].probabilities == pytest.approx(softmax(shifted).tolist(), abs=1e-12)
    uncalibrated = decider.plan(DecisionRequest(state=STATE, questions=QUESTIONS, calibrated=False)).result(scored)
    assert (uncalibrated.calibration, uncalibrated["team"]) == (None, raw["team"])


def test_what_an_answer_says() -> None:
    answer = DecisionAnswer("q", "score", ("low", "mid", "high"), (0.2, 0.5, 0.3), 0.9)
    assert answer.score == pytest.approx(1.1)
    assert answer.choice == "mid"
    assert answer.confidence == pytest.approx(0.25)
    assert DecisionAnswer("q", "choice", ("a", "b"), (0.5, 0.5), 1.0).confidence == 0
    assert DecisionAnswer("q", "choice", ("a",), (1.0,), 1.0).confidence == 1
    assert DecisionAnswer("q", "predicate", (True, False), (0.1, 0.9), 1.0).probability == 0.1


def test_labels_that_the_model_never_meant_are_warned_of(decision_scorer: Scorer) -> None:
    """A random model spreads its probability over the vocabulary."""
    result = decision_scorer.decide(STATE, QUESTIONS[:1])
    assert result["film"].label_mass < LOW_LABEL_MASS
    assert [text.partition(":")[0] for text in result.warnings] == ["film"]
    assert result.to_dict()["warnings"] == result.warnings


def test_a_model_without_a_tokenizer_cannot_be_asked() -> None:
    with pytest.raises(RequestError, match="questions are text"):
        Decider(None, ChatTemplates()).plan(DecisionRequest(state="x", questions=QUESTIONS))
