"""`Scorer`: the public face. Loading with options, scoring text, ranking, and starting again quickly."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass import ConfigError, ModelNotFound, RequestError, Scorer, ScoreRequest
from onepass.engine.config import EngineConfig
from onepass.loading.rerankers.templates import LABEL, LIKELIHOOD

QUERY = "Is this document relevant to the question?"
MODES = ("extend", "serial")
DOCUMENTS = [" The lazy dog", " Water boils at 100 degrees Celsius", "", " Paris is the capital of France"]


@pytest.fixture(scope="module")
def scorer(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scorer]:
    folder = tmp_path_factory.mktemp("programs")
    with Scorer.load(str(checkpoint("qwen3")), dtype="float32", mode="extend", programs_dir=folder) as scorer:
        yield scorer


def test_text_is_scored_as_its_tokens(scorer: Scorer) -> None:
    tokenizer = scorer.tokenizer
    by_text = scorer.score(QUERY, DOCUMENTS, labels=[" yes", " no"])
    by_ids = scorer.score(
        tokenizer.encode_query(QUERY),
        tokenizer.encode_items(DOCUMENTS),
        label_token_ids=[tokenizer.encode_item(label)[0] for label in (" yes", " no")],
    )
    assert by_text.scores == by_ids.scores
    assert by_text.labels == by_ids.labels == [[" yes", " no"]] * 4
    assert by_text.mode == "extend"
    assert by_text.model == "qwen3"


def test_extended_scores_are_serial_scores(scorer: Scorer) -> None:
    """For an architecture with normed heads; the engine's own tests use another."""
    extended, serial = (scorer.score(QUERY, DOCUMENTS, labels=[" yes", " no"], mode=mode) for mode in MODES)
    assert (extended.mode, serial.mode) == MODES
    assert np.abs(np.array(extended.scores) - np.array(serial.scores)).max() <= 1e-5
    assert np.abs(np.array(extended.logprobs) - np.array(serial.logprobs)).max() <= 1e-3


def test_one_string_is_one_item(scorer: Scorer) -> None:
    one = scorer.score(QUERY, DOCUMENTS[1], labels=[" yes"])
    assert np.shape(one.scores) == (1, 1)
    assert one.scores[0] == pytest.approx(scorer.score(QUERY, DOCUMENTS, labels=[" yes"]).scores[1], abs=1e-5)


def test_a_result_prints_what_a_person_wants_to_know(scorer: Scorer) -> None:
    text = str(scorer.score(QUERY, DOCUMENTS, labels=[" yes", " no"], continuations=[" yes no"]))
    assert text.startswith("4 items · qwen3 · mode extend · ")
    assert "Water boils at 100 degrees Celsius" in text
    assert "' yes' 0." in text
    assert "log P -" in text


def test_an_unknown_word_is_pythons_own_error(scorer: Scorer) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        scorer.score(QUERY, DOCUMENTS, [" yes"], temprature=1.0)  # type: ignore[call-arg]


def test_labels_come_third_and_documents_are_items(scorer: Scorer) -> None:
    by_name = scorer.score(query=QUERY, items=DOCUMENTS, labels=[" yes", " no"])
    assert scorer.score(QUERY, DOCUMENTS, [" yes", " no"]).scores == by_name.scores
    assert [one.index for one in scorer.rank(QUERY, documents=DOCUMENTS)] == [
        one.index for one in scorer.rank(QUERY, DOCUMENTS)
    ]
    with pytest.raises(RequestError, match="items or documents, not both"):
        scorer.rank(QUERY, DOCUMENTS, documents=DOCUMENTS)
    assert repr(scorer) == "<Scorer qwen3, float32, on cpu>"


def test_a_request_may_be_submitted_and_waited_for(scorer: Scorer) -> None:
    request = ScoreRequest(query=QUERY, items=DOCUMENTS, labels=[" yes"])
    assert scorer.submit(request).result(60).scores == scorer.score_many([request])[0].scores


def test_a_mistake_is_raised_by_submit_itself(scorer: Scorer) -> None:
    with pytest.raises(RequestError):
        scorer.submit(ScoreRequest(query="", items=DOCUMENTS, labels=[" yes"]))


def test_ranking_by_likelihood_is_the_querys_log_probability_after_each_document(scorer: Scorer) -> None:
    ranking = scorer.rank(QUERY, DOCUMENTS)
    assert ranking.method == "likelihood"
    scored = scorer.score(
        LIKELIHOOD.context,
        [LIKELIHOOD.item.replace("{document}", document) for document in DOCUMENTS],
        continuations=[LIKELIHOOD.continuation.replace("{query}", QUERY)],
    )
    assert scored.continuations is not None
    wanted = [row[0].logprob for row in scored.continuations]
    assert [ranked.score for ranked in ranking] == sorted(wanted, reverse=True)
    assert [wanted[ranked.index] for ranked in ranking] == [ranked.score for ranked in ranking]
    assert [ranked.item for ranked in ranking] == [DOCUMENTS[ranked.index] for ranked in ranking]


def test_a_ranking_without_documents_has_the_same_order_and_scores(scorer: Scorer) -> None:
    whole, bare = (scorer.rank(QUERY, DOCUMENTS, return_documents=wanted) for wanted in (True, False))
    assert [(r.index, r.score) for r in bare] == [(r.index, r.score) for r in whole]
    assert [r.item for r in whole] == [DOCUMENTS[r.index] for r in whole]
    assert [r.item for r in bare] == [None] * len(DOCUMENTS)
    assert str(bare).splitlines()[0] == str(whole).splitlines()[0]


def test_pairs_are_predicted_as_they_are_ranked(scorer: Scorer) -> None:
    pairs = [(QUERY, DOCUMENTS[0]), ("another query", DOCUMENTS[1]), (QUERY, DOCUMENTS[2])]
    ranked = {r.item: r.score for r in scorer.rank(QUERY, [DOCUMENTS[0], DOCUMENTS[2]])}
    raw = scorer.predict(pairs, raw=True)
    assert [raw[0], raw[2]] == pytest.approx([ranked[DOCUMENTS[0]], ranked[DOCUMENTS[2]]], rel=1e-5)
    assert all(0 < score < 1 for score in scorer.predict(pairs)), "likelihood's relevance is a probability"
    assert scorer.predict([]) == []
    for wrong in (["text"], [("q",)], [("q", 7)]):
        with pytest.raises(RequestError, match=r"pairs\[0\] must be a query and a document"):
            scorer.predict(wrong)  # type: ignore[arg-type]


def test_messages_take_the_place_of_a_query(scorer: Scorer) -> None:
    messages = [{"role": "user", "content": "Is it about a city?{item}"}]
    ranking = scorer.rank(messages=messages, documents=DOCUMENTS, labels=[" yes", " no"], return_prompt=True)
    right = scorer.score(messages=messages, items=DOCUMENTS, labels=[" yes", " no"], apply_softmax=True)
    wanted = [row[0] for row in right.scores]
    assert [ranked.score for ranked in ranking] == pytest.approx(sorted(wanted, reverse=True), abs=1e-6)
    assert [ranked.item for ranked in ranking] == [DOCUMENTS[ranked.index] for ranked in ranking]
    assert ranking.result.prompt is not None
    assert ranking.result.prompt.shared.text.startswith("<|im_start|>user\nIs it about a city?")
    with pytest.raises(RequestError, match="'yes' must be one token"):
        scorer.rank(messages=messages, documents=DOCUMENTS)
    with pytest.raises(RequestError, match="messages or query"):
        scorer.rank(QUERY, DOCUMENTS, messages=messages)


def test_ranking_by_label_is_yes_against_no_under_the_template(scorer: Scorer) -> None:
    ranking = scorer.rank(QUERY, DOCUMENTS, method="label")
    scored = scorer.score(
        LABEL.context.replace("{query}", QUERY),
        [LABEL.item.replace("{document}", document) for document in DOCUMENTS],
        labels=LABEL.labels,
        apply_softmax=True,
    )
    assert ranking.method == "label"
    wanted = {i: pytest.approx(row[0], rel=1e-6) for i, row in enumerate(scored.scores)}
    assert {ranked.index: ranked.score for ranked in ranking} == wanted


def test_ranking_with_labels_is_by_the_first_label_as_given(scorer: Scorer) -> None:
    ranking = scorer.rank(QUERY, DOCUMENTS, labels=[" yes", " no"])
    scores = [row[0] for row in scorer.score(QUERY, DOCUMENTS, labels=[" yes", " no"]).scores]
    assert [ranked.index for ranked in ranking] == sorted(range(4), key=lambda i: -scores[i])


def test_the_best_few_are_kept_when_asked(scorer: Scorer) -> None:
    ranking = scorer.rank(QUERY, DOCUMENTS)
    assert scorer.rank(QUERY, DOCUMENTS, top=2).items == ranking.items[:2]
    assert len(scorer.rank(QUERY, DOCUMENTS, top=0)) == 0
    assert len(scorer.rank(QUERY, DOCUMENTS, top=100)) == 4
    assert len(ranking.result.scores) == 4


def test_equal_documents_have_equal_scores_but_for_rounding(scorer: Scorer) -> None:
    """Which depends on where in a step they lie."""
    ranking = scorer.rank(QUERY, [" same"] * 4)
    assert sorted(ranked.index for ranked in ranking) == [0, 1, 2, 3]
    assert ranking[0].score - ranking[3].score <= 1e-4


def test_equal_scores_keep_their_order(scorer: Scorer) -> None:
    """Empty items are one read-out, so their scores are the same bits."""
    assert [ranked.index for ranked in scorer.rank(QUERY, [""] * 4, labels=[" yes"])] == [0, 1, 2, 3]


@pytest.mark.parametrize("method", ["likelihood", "label"])
def test_nothing_to_rank_is_an_empty_ranking(scorer: Scorer, method: str) -> None:
    assert len(scorer.rank(QUERY, [], method=method)) == 0  # type: ignore[arg-type]


def test_a_ranking_prints_best_first(scorer: Scorer) -> None:
    ranking = scorer.rank(QUERY, DOCUMENTS)
    lines = str(ranking).splitlines()
    assert lines[0] == "4 items by likelihood · qwen3 · mode extend"
    assert f"1. {ranking[0].score:>9.4f}  [{ranking[0].index}]" in lines[1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"method": "magic"}, "invalid_method"),
        ({"method": "likelihood", "labels": [" yes"]}, "conflicting_labels"),
        ({"top": -1}, "invalid_top"),
        ({"top": 1.5}, "invalid_top"),
        ({"top": True}, "invalid_top"),
        ({"query": [1, 2], "items": [[3]]}, "template_needs_text"),
        ({"query": None}, "missing_query"),
        ({"query": ""}, "empty_query"),
        ({"items": None}, "missing_items"),
        ({"items": 5}, "invalid_items_type"),
        ({"items": [" a", 5]}, "template_needs_text"),
    ],
    ids=str,
)
def test_a_mistake_in_ranking_is_named(scorer: Scorer, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestError) as caught:
        scorer.rank(**{"query": QUERY, "items": DOCUMENTS, **fields})
    assert caught.value.code == code


@pytest.mark.parametrize("options", [{"chunksize": 4}, {"mode": "fast"}, {"dtype": "float16"}, {"max_batch_tokens": 3}])
def test_wrong_options_are_refused_before_anything_is_loaded(options: dict[str, Any]) -> None:
    """The model does not exist; the options are what is complained about."""
    with pytest.raises(ConfigError):
        Scorer.load("no-such-model", **options)


def test_a_model_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        Scorer.load("no-such-model")


def test_a_model_without_tokenizer_says_so(scorer: Scorer) -> None:
    from dataclasses import replace

    with Scorer(replace(scorer.model, tokenizer=None), scorer.weights) as bare:
        with pytest.raises(RequestError, match="takes token ids only"):
            _ = bare.tokenizer
        result = bare.score([5, 6], [[7]], label_token_ids=[8])
        assert result.labels == [["<8>"]]


START = """
import sys
from pathlib import Path
from onepass import Scorer
options = dict(dtype="float32", programs_dir=Path(sys.argv[2]), max_batch_tokens=64)
with Scorer.load(sys.argv[1], **options) as scorer:
    programs = scorer.compile()
    before = scorer.engine.runner.compilations
    score = scorer.score(list(range(3, 21)), [[5, 6, 7]] * 4, label_token_ids=[9]).scores[0][0]
    assert scorer.engine.runner.compilations == before, "every program was there"
sources = [program.source for program in programs]
print(len(sources), sources.count("compiled"), sources.count("disk"), score)
"""


def test_a_second_start_finds_its_programs_on_disk(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def start() -> list[float]:
        command = [sys.executable, "-c", START, str(checkpoint("qwen3")), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return list(map(float, done.stdout.split()))

    first, second = start(), start()
    assert first[:3] == [4, 4, 0]
    assert second[:3] == [4, 0, 4]
    assert second[3] == first[3], "and the same score"


def test_compiling_tells_how_far_it_is(scorer: Scorer) -> None:
    """Once: what is there already is not compiled again."""
    with Scorer(scorer.model, scorer.weights, EngineConfig(max_batch_tokens=16, keep_programs=False)) as small:
        seen: list[tuple[str, int, int]] = []
        programs = small.compile(lambda *told: seen.append(told))
        assert seen == [("compile", done, len(programs)) for done in range(1, len(programs) + 1)]
        assert {program.source for program in programs} == {"compiled"}
        assert small.compile() == programs
        assert small.engine.runner.compilations == len(programs)
