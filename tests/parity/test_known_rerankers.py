"""Models that onepass knows by name, with real Qwen tokens: prompts and scores are those of transformers.

Needs the reference environment; without it these tests are skipped, and `loading.rerankers.test_method` remains, which
has the prompts. Every comparison has a control that must fail.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass import Scorer
from onepass.engine.encoding.encode import Encoder
from onepass.engine.ranking import RankRequest, score_request
from onepass.loading.model import Model, open_model
from onepass.loading.rerankers.readouts import LinearHead
from onepass.loading.rerankers.templates import ranker_from_file
from reference.known_rerankers import CAUSAL, GUARDED, HEADS, PAIRS, SAFETY, make

TOLERANCE = 1e-4
TWO_NEWLINES = Path(__file__).parents[2] / "examples" / "templates" / "qwen3-reranker-two-newlines.toml"
Rows = dict[str, Any]


@pytest.fixture(scope="module")
def made(reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    out = tmp_path_factory.mktemp("known")
    return out, make(reference_python, out)


@pytest.fixture(scope="module", params=["qwen3", "qwen2"])
def causal(made: tuple[Path, Rows], request: pytest.FixtureRequest) -> Iterator[tuple[str, Scorer]]:
    with Scorer.load(str(made[0] / request.param), dtype="float32", keep_programs=False) as scorer:
        yield request.param, scorer


def named(folder: Path, name: str) -> Model:
    """The model under another name, which decides how it ranks."""
    copied = folder.parent / name
    return open_model(str(copied if copied.exists() else shutil.copytree(folder, copied, copy_function=os.link)))


def prompt_ids(model: Model, pair: list[str], instruction: str | None) -> list[int]:
    call = RankRequest(query=pair[0], items=[pair[1]], instruction=instruction)
    request, _ = score_request(model.ranker, call)
    config = model.config
    encoded = Encoder(model.tokenizer, config.vocab_size, config.max_position, model.chat, model.class_head).encode(
        request
    )
    return [*encoded.context, *encoded.items[0]]


def distance(ours: Any, theirs: Any) -> float:
    return float(np.abs(np.array(ours) - np.array(theirs)).max())


def test_the_tokens_are_qwens(made: tuple[Path, Rows]) -> None:
    assert made[1]["tokens"] == {"yes": 9693, "no": 2152, "Yes": 9454, "1": 16, "0": 15}


def test_prompts_and_scores_equal_transformers(made: tuple[Path, Rows], causal: tuple[str, Scorer]) -> None:
    kind, scorer = causal
    for name in (name for name, architecture in CAUSAL.items() if architecture == kind):
        model = named(made[0] / kind, name)
        scorer.model = replace(scorer.model, ranker=model.ranker)
        for row in made[1][name]:
            instruction = row["instruction"]
            if instruction and name.startswith(("mxbai", "lb")):
                continue  # no place for one in the model's prompt
            assert [prompt_ids(model, pair, instruction) for pair in PAIRS] == row["ids"], name
            assert distance(scorer.predict(PAIRS, instruction=instruction), row["scores"]) < TOLERANCE, name
            assert distance(scorer.predict(PAIRS[:1] * 4, instruction=instruction), row["scores"]) > 10 * TOLERANCE


@pytest.mark.parametrize("causal", ["qwen3"], indirect=True)
def test_a_wrong_newline_and_a_wrong_label_are_noticed(made: tuple[Path, Rows], causal: tuple[str, Scorer]) -> None:
    name, scorer = "Qwen3-Reranker-0.6B", causal[1]
    right = made[1][name][0]
    ranker = named(made[0] / "qwen3", name).ranker
    wrong = {
        "two newlines": ranker_from_file(TWO_NEWLINES),
        "another label": replace(ranker, label=replace(ranker.label, labels=("Yes", "no"))),
    }
    for control, changed in wrong.items():
        scorer.model = replace(scorer.model, ranker=changed)
        assert distance(scorer.predict(PAIRS), right["scores"]) > 10 * TOLERANCE, control


@pytest.mark.parametrize("causal", ["qwen3"], indirect=True)
def test_qwen3guard_is_read_after_its_first_words(made: tuple[Path, Rows], causal: tuple[str, Scorer]) -> None:
    begun = [{"role": "user", "content": "{item}"}, {"role": "assistant", "content": "Safety:"}]
    result = causal[1].score(messages=begun, items=GUARDED, label_token_ids=[*SAFETY.values()], apply_softmax=True)
    right = made[1]["guards"]["Qwen3Guard-Gen"]
    assert distance(result.scores, right) < TOLERANCE
    early = causal[1].score(messages=begun[:1], items=GUARDED, label_token_ids=[*SAFETY.values()], apply_softmax=True)
    assert distance(early.scores, right) > 10 * TOLERANCE, "at the first token of the answer is noticed"


def test_llama_guard_is_read_after_its_newlines(made: tuple[Path, Rows]) -> None:
    right = made[1]["guards"]
    assert right["one token"] == [1, 1]
    messages = [{"role": "user", "content": "{item}"}]
    with Scorer.load(str(made[0] / "llama"), dtype="float32", keep_programs=False) as scorer:
        result = scorer.score(messages=messages, items=GUARDED, continuations=["\n\nunsafe", "\n\nsafe"])
        early = scorer.score(messages=messages, items=GUARDED, labels=["unsafe", "safe"], apply_softmax=True)
    assert result.continuations is not None
    odds = [row[0].logprob - row[1].logprob for row in result.continuations]
    assert distance([1 / (1 + np.exp(-odd)) for odd in odds], [row[0] for row in right["Llama-Guard-3"]]) < TOLERANCE
    assert distance(early.scores, right["Llama-Guard-3"]) > 10 * TOLERANCE, "without the newlines is noticed"


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_known_rerankers_equal_transformers(made: tuple[Path, Rows], name: str) -> None:
    [row] = made[1][name]
    with Scorer.load(str(made[0] / name), dtype="float32", keep_programs=False) as scorer:
        assert isinstance(scorer.model.ranker.label.readout, LinearHead)
        assert [prompt_ids(scorer.model, pair, None) for pair in PAIRS] == row["ids"]
        assert distance(scorer.predict(PAIRS), row["scores"]) < TOLERANCE
        early = [scorer.score(ids[:1], [ids[1:-1]]).logits[0] for ids in row["ids"]]
        whole = [scorer.score(ids[:1], [ids[1:]]).logits[0] for ids in row["ids"]]
    assert distance(early, whole) > 10 * TOLERANCE, "one token early is noticed"
