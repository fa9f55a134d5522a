"""Probabilities equal PyTorch transformers' within 1e-4 in float32, for every architecture and for a real model.

Each model is compared with values stored in the repository, and, where the reference environment was built, with a live
run of PyTorch, which is compared with the stored values too. Tokenizers have their own proof; here ids must agree.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from checkpoints import VARIANTS
from onepass import Scorer
from parity.texts import CASES, Case
from reference.oracle import Answer, ask
from reference.store_values import NAMES, REAL_MODEL, cases_of, checksums, encode_cases, job_from_stored, load_stored

PROBABILITY_TOLERANCE = 1e-4
# Probabilities alone would let an unlikely label be off by orders of magnitude.
LOGPROB_TOLERANCE = 2e-3
TINY_STEP = 256  # tokens: fewer programs to compile, and the longest text takes two steps
STORE_AGAIN = "PYTHONPATH=tests .venv/bin/python -m reference.store_values"

Logprobs = np.ndarray  # [case, label]


@pytest.fixture(scope="module")
def model_of(checkpoint: Callable[[str], Path], request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The tiny checkpoint's folder, or the real model's GGUF file."""
    return lambda name: request.getfixturevalue("smollm2_gguf") if name == REAL_MODEL else checkpoint(name)


@pytest.fixture(scope="module")
def onepass_says(model_of: Callable[[str], Path]) -> Callable[[str], Logprobs]:
    """onepass's log-probabilities of the stored labels, computed from text, once per model."""

    @cache
    def score(name: str) -> Logprobs:
        max_batch_tokens = None if name == REAL_MODEL else TINY_STEP
        with Scorer.load(str(model_of(name)), dtype="float32", max_batch_tokens=max_batch_tokens) as scorer:
            check_tokens(name, scorer)
            return score_cases(scorer, cases_of(name), [case["labels"] for case in load_stored(name)["cases"]])

    return score


@pytest.fixture(scope="module")
def real_scorer(smollm2_gguf: Path) -> Iterator[Scorer]:
    with Scorer.load(str(smollm2_gguf), dtype="float32") as scorer:
        yield scorer


@pytest.fixture(scope="module")
def torch_says(model_of: Callable[[str], Path], reference_python: Path | None) -> Callable[[str], Answer]:
    """A live answer of PyTorch; all tiny models share one process, for its imports take longer than they do."""

    @cache
    def tiny_answers() -> dict[str, Answer]:
        assert reference_python is not None
        jobs = [job_from_stored(model_of(name), load_stored(name)) for name in VARIANTS]
        return dict(zip(VARIANTS, ask(reference_python, jobs), strict=True))

    @cache
    def live(name: str) -> Answer:
        if reference_python is None:
            pytest.skip("no reference environment: PyTorch was not cheap to install here")
        if name in VARIANTS:
            return tiny_answers()[name]
        return ask(reference_python, [job_from_stored(model_of(name), load_stored(name))])[0]

    return live


def check_tokens(name: str, scorer: Scorer) -> None:
    for case, tokens, stored in zip(
        cases_of(name), encode_cases(name, scorer.tokenizer), load_stored(name)["cases"], strict=True
    ):
        assert case.name == stored["name"], f"the texts have changed; run {STORE_AGAIN} {name}"
        assert tokens == stored["tokens"], f"the tokens of {case.name!r} are not those that PyTorch was given"


def score_cases(scorer: Scorer, cases: list[Case], labels: list[list[int]]) -> Logprobs:
    """One call per query with each item's own labels; probabilities and log-probabilities must say the same."""
    rows: list[list[float]] = []
    for query, group in groupby(zip(cases, labels, strict=True), key=lambda pair: pair[0].query):
        pairs = list(group)
        items, item_labels = [case.item for case, _ in pairs], [ids for _, ids in pairs]
        result = scorer.score(query=query, items=items, label_token_ids=item_labels, mode="serial")
        assert result.mode == "serial"
        assert result.logprobs is not None
        np.testing.assert_allclose(result.scores, np.exp(result.logprobs), rtol=1e-5)
        rows += result.logprobs
    return np.array(rows)


def stored_logprobs(name: str) -> Logprobs:
    return np.array([case["logprobs"] for case in load_stored(name)["cases"]])


def live_logprobs(answer: Answer) -> Logprobs:
    return np.array([sequence["logprobs"] for sequence in answer["sequences"]])


def assert_same(cases: list[Case], ours: Logprobs, theirs: Logprobs) -> None:
    assert ours.shape == theirs.shape
    off = np.abs(np.exp(ours) - np.exp(theirs)).max(axis=1)
    worst = int(off.argmax())
    assert off[worst] <= PROBABILITY_TOLERANCE, f"{cases[worst].name!r} is off by {off[worst]:.2e}"
    log_off = np.abs(ours - theirs).max(axis=1)
    worst = int(log_off.argmax())
    assert log_off[worst] <= LOGPROB_TOLERANCE, f"log of {cases[worst].name!r} is off by {log_off[worst]:.2e}"


def test_the_real_model_is_checked_on_at_least_fifty_texts() -> None:
    assert len({(case.query, case.item) for case in CASES}) >= 50
    assert len({case.name for case in CASES}) == len(CASES)
    longest = max(len(case["tokens"]) for case in load_stored(REAL_MODEL)["cases"])
    assert longest >= 300


@pytest.mark.parametrize("name", NAMES)
def test_stored_values_belong_to_this_checkpoint(name: str, model_of: Callable[[str], Path]) -> None:
    made, stored = checksums(model_of(name)), load_stored(name)["sha256"]
    assert made == stored, (
        f"the checkpoint came out otherwise than when its values were stored; run {STORE_AGAIN} {name}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_compared_labels_carry_the_probability(name: str) -> None:
    """Parity of numbers near zero would prove nothing: the likeliest tokens are among the labels, and unlikely ones."""
    probabilities = np.exp(stored_logprobs(name))
    assert np.median(probabilities.sum(axis=1)) > 0.3
    assert probabilities.max(axis=1).min() > 0.02
    assert 0.05 < np.median(probabilities.max(axis=1)) < 0.9
    assert probabilities.min() < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_equal_stored_values_of_torch(name: str, onepass_says: Callable[[str], Logprobs]) -> None:
    assert_same(cases_of(name), onepass_says(name), stored_logprobs(name))


def test_every_fourth_text_of_the_real_model_equals_stored_values_of_torch(real_scorer: Scorer) -> None:
    """All of them take a minute of a core, and are left to `make test-all`."""
    cases, stored = cases_of(REAL_MODEL)[::4], load_stored(REAL_MODEL)["cases"][::4]
    check_tokens(REAL_MODEL, real_scorer)
    ours = score_cases(real_scorer, cases, [case["labels"] for case in stored])
    assert_same(cases, ours, stored_logprobs(REAL_MODEL)[::4])


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_equal_live_torch(
    name: str, onepass_says: Callable[[str], Logprobs], torch_says: Callable[[str], Answer]
) -> None:
    assert_same(cases_of(name), onepass_says(name), live_logprobs(torch_says(name)))


@pytest.mark.parametrize("name", NAMES)
def test_stored_values_equal_live_torch(name: str, torch_says: Callable[[str], Answer]) -> None:
    assert_same(cases_of(name), stored_logprobs(name), live_logprobs(torch_says(name)))


@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_reads_tiny_checkpoints_without_complaint(name: str, torch_says: Callable[[str], Answer]) -> None:
    assert torch_says(name)["warnings"] == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama3", {"rope_scaling": None}),
        ("llama3-new", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
        ("llama-linear", {"rope_scaling": None}),
        ("llama2", {"rope_theta": 20000.0}),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("mistral", {"rms_norm_eps": 0.1}),
    ],
)
def test_a_wrongly_read_config_would_be_noticed(
    name: str, change: dict[str, object], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The negative control: with one setting changed, the same comparison on a hundred tokens fails by far."""
    folder = Path(shutil.copytree(checkpoint(name), tmp_path / name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    pairs = zip(cases_of(name), load_stored(name)["cases"], strict=True)
    case, stored = next((case, stored) for case, stored in pairs if case.name == "json")
    with Scorer.load(str(folder), dtype="float32") as scorer:
        changed = score_cases(scorer, [case], [stored["labels"]])
    off = np.abs(np.exp(changed) - np.exp(stored["logprobs"])).max()
    assert off > 50 * PROBABILITY_TOLERANCE


def test_smollm2_knows_the_capital_of_france(real_scorer: Scorer) -> None:
    result = real_scorer.score(query="The capital of France is", items=[""], labels=[" Paris"], mode="serial")
    assert result.scores[0][0] == pytest.approx(0.7725, abs=1e-3)
