"""Decisions equal one prompt per question through PyTorch transformers: every type, with permutations, many options.

Only token ids are handed over, as in `test_torch_parity`: each read is one plain sequence, which runs alone.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.decisions.decider import DecisionPlan
from onepass.decisions.questions import DecisionRequest, Question
from onepass.decisions.result import DecisionResult
from onepass.engine.encoding.branches import BranchedRequest
from onepass.loading.export import export
from onepass.loading.model import open_model
from onepass.scorer import Scorer
from reference.oracle import Job, ask

TOLERANCE = 1e-4
LAYERS = 4  # of the real model: with all 30, most of the time is PyTorch's
STATE = "A user liked the film about a space ship. The price of the shoes was 49.90 and the size was 42."
TYPES = (
    Question.predicate("Will the user like the next film about the sea?"),
    Question.choice("What is the text about?", {"films": "and actors", "weather": None, "food": None, "shoes": None}),
    Question.score("How expensive were the shoes?", ["cheap", "fair", "expensive"]),
)
HUNDRED = tuple(
    Question.score(f"Is number {i} high?", ["low", "middle", "high"][: 2 + i % 2])
    if i % 3
    else Question.predicate(f"Is {i} an even number?")
    for i in range(100)
)
SIXTY = (Question.choice("Which number is the size?", [f"size {i}" for i in range(60)]),)
MANY = (Question.choice("Which number is the size?", [f"size {i}" for i in range(255)]),)
CASES = {
    "one": DecisionRequest(state=STATE, questions=TYPES[:1]),
    "types": DecisionRequest(state=STATE, questions=TYPES),
    "permutations": DecisionRequest(state=STATE, questions=TYPES, permutations=3),
    "hundred": DecisionRequest(state=STATE, questions=HUNDRED),
    "sixty options": DecisionRequest(state=STATE, questions=SIXTY),
    "grid": DecisionRequest(state=STATE, questions=TYPES, candidates=("a rain coat", "the next film", "shoes")),
}


def sequences(plan: DecisionPlan) -> list[dict[str, list[int]]]:
    """The prompt of every read with its labels, in the order of the engine's rows."""
    scored = plan.score_request
    query, items, labels = scored.query, scored.items, scored.label_token_ids
    if isinstance(scored, BranchedRequest):
        items = [[*item, *branch] for item in scored.items for branch in scored.branches]
        labels = [*scored.branch_label_token_ids] * len(scored.items)
    return [
        {"tokens": [*query, *item], "labels": list(own)}  # type: ignore[misc]
        for item, own in zip(items, labels, strict=True)  # type: ignore[arg-type]
    ]


def expected(plan: DecisionPlan, logprobs: list[list[float]]) -> list[list[np.ndarray]]:
    """Per candidate and question: the softmax of each read's labels, averaged over the rotations."""
    out = []
    for first in range(0, len(logprobs), len(plan.reads)):
        rows = [np.zeros(len(question.options)) for question in plan.request.questions]
        for read, row in zip(plan.reads, logprobs[first : first + len(plan.reads)], strict=True):
            weights = np.exp(np.array(row) - max(row))
            rotations = sum(other.question == read.question for other in plan.reads)
            rows[read.question][list(read.order)] += weights / weights.sum() / rotations
        out.append(rows)
    return out


def assert_equal(result: DecisionResult, values: list[list[np.ndarray]]) -> None:
    for answers, rows in zip(result.answers, values, strict=True):
        for answer, row in zip(answers, rows, strict=True):
            assert np.abs(np.array(answer.probabilities) - row).max() <= TOLERANCE


def compare(model: Path, cases: list[DecisionRequest], reference_python: Path | None) -> None:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    with Scorer.load(str(model), dtype="float32", calibration="none") as scorer:
        plans = [scorer.decider.plan(request) for request in cases]
        scored = scorer.score_many([plan.score_request for plan in plans])
        results = [plan.result(one) for plan, one in zip(plans, scored, strict=True)]
    job: Job = {
        "model": str(model),
        "dtype": "float32",
        "sequences": [sequence for plan in plans for sequence in sequences(plan)],
    }
    (answer,) = ask(reference_python, [job])
    logprobs = iter([one["logprobs"] for one in answer["sequences"]])
    for plan, result in zip(plans, results, strict=True):
        assert_equal(result, expected(plan, [next(logprobs) for _ in sequences(plan)]))


def test_a_tiny_chat_model_answers_as_transformers_does(
    checkpoint: Callable[[str], Path], reference_python: Path | None
) -> None:
    compare(checkpoint("qwen3"), list(CASES.values()), reference_python)


@pytest.fixture
def shallow_model(smollm2_gguf: Path, tmp_path: Path) -> Path:
    """The first layers of the default model, whose vocabulary has 255 labels that are single tokens."""
    model = open_model(str(smollm2_gguf))
    weights = model.load(jnp.dtype("float32"))
    first = jax.tree.map(lambda leaf: leaf[:LAYERS], weights.layers)
    export(replace(model.config, num_layers=LAYERS), replace(weights, layers=first), tmp_path)
    assert model.tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(dict(model.chat.special_tokens)), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(model.chat.sources["default"], encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_255_options_and_every_type_are_answered_as_transformers_does(
    shallow_model: Path, reference_python: Path | None
) -> None:
    cases = [CASES["permutations"], DecisionRequest(state=STATE, questions=MANY)]
    compare(shallow_model, cases, reference_python)


def test_a_rotation_read_the_wrong_way_round_would_be_noticed(
    decision_case: tuple[DecisionPlan, DecisionResult],
) -> None:
    plan, result = decision_case
    logprobs = [[0.0, -1.0, -2.0, -3.0][: len(read.labels)] for read in plan.reads]
    with pytest.raises(AssertionError):
        assert_equal(result, expected(plan, logprobs))


@pytest.fixture
def decision_case(checkpoint: Callable[[str], Path]) -> tuple[DecisionPlan, DecisionResult]:
    with Scorer.load(str(checkpoint("qwen3")), dtype="float32", calibration="none") as scorer:
        plan = scorer.decider.plan(CASES["permutations"])
        return plan, plan.result(scorer.score_many([plan.score_request])[0])
