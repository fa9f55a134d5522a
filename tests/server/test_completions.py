"""`/v1/completions` for scoring: a prompt's log-probabilities are those of its tokens as labels, one after another."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from onepass.scorer import Scorer
from onepass.server.completions import NEXT, plan_reads
from onepass.server.prompt_groups import shared_beginnings
from server.asking import check_error
from server.in_process import InProcess

TOLERANCE = 1e-4
BEGINNING = list(range(100, 140))
PROMPTS = [[*BEGINNING, *rest] for rest in ([7], [8, 9, 10], [], [11, 12])]


def forced(scorer: Scorer, prompt: list[int]) -> tuple[list[float], list[int]]:
    """Each token's log-probability after those before it, and the most likely token after each, by all labels."""
    every = list(range(scorer.model.config.vocab_size))
    logprobs, best = [], []
    for end in range(1, len(prompt) + 1):
        result = scorer.score(prompt[:end], [[]], label_token_ids=every)
        assert result.logprobs is not None
        best.append(int(np.argmax(result.logits[0])))
        if end < len(prompt):
            logprobs.append(result.logprobs[0][prompt[end]])
    return logprobs, best


def complete(client: TestClient, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "text_completion"
    choices: list[dict[str, Any]] = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return choices


def test_echoed_tokens_have_their_own_log_probabilities(client: TestClient, tiny_scorer: Scorer) -> None:
    prompt = [5, 17, 300, 41, 6]
    wanted, best = forced(tiny_scorer, prompt)
    (choice,) = complete(client, prompt)
    told = choice["logprobs"]
    token = tiny_scorer.tokenizer.token
    assert told["tokens"] == [*map(token, prompt), token(best[-1])]
    assert told["token_logprobs"][0] is None
    assert told["token_logprobs"][1:-1] == pytest.approx(wanted, abs=TOLERANCE)
    assert told["top_logprobs"][0] is None
    for top, likely in zip(told["top_logprobs"][1:], best, strict=True):
        assert max(top, key=top.get) == token(likely)
    assert told["token_logprobs"][-1] == max(told["top_logprobs"][-1].values()), "the new token is the most likely one"
    assert choice["text"] == tiny_scorer.tokenizer.decode(prompt) + token(best[-1])
    assert told["text_offset"][:2] == [0, len(token(prompt[0]))]


def test_a_greedy_prompt_is_told_by_equal_numbers(client: TestClient, tiny_scorer: Scorer) -> None:
    """lm-evaluation-harness calls a text greedy where its log-probability equals the highest one."""
    prompt = [5, 17]
    for _ in range(3):
        prompt.append(forced(tiny_scorer, prompt)[1][-1])
    (choice,) = complete(client, prompt)
    told = choice["logprobs"]
    equal = [
        own == max(top.values()) for own, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True)
    ]
    assert equal[1:] == [True] * 4
    assert not equal[0], "token 17 is not the most likely one after 5"


def test_prompts_that_begin_alike_share_a_context(client: TestClient, service: InProcess) -> None:
    alone = [complete(client, prompt)[0]["logprobs"]["token_logprobs"] for prompt in PROMPTS]
    service.callers.clear()
    together = [choice["logprobs"]["token_logprobs"] for choice in complete(client, PROMPTS)]
    assert len(service.callers) == 2, "one for the beginning's own tokens, one for all that follows it"
    for one, same in zip(alone, together, strict=True):
        assert one[1:] == pytest.approx(same[1:], abs=TOLERANCE)


def test_usage_counts_prompts_as_they_came(client: TestClient) -> None:
    body = {"prompt": PROMPTS, "max_tokens": 1, "echo": True, "logprobs": 0}
    usage = client.post("/v1/completions", json=body).json()["usage"]
    tokens = sum(map(len, PROMPTS))
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (tokens, 4, tokens + 4)


def test_without_echo_only_the_new_token_is_told(client: TestClient, tiny_scorer: Scorer) -> None:
    (choice,) = complete(client, "The capital of France", echo=False)
    prompt = tiny_scorer.tokenizer.encode_query("The capital of France")
    likely = tiny_scorer.tokenizer.token(forced(tiny_scorer, prompt)[1][-1])
    assert choice["text"] == likely
    assert choice["logprobs"]["tokens"] == [likely]


def test_nothing_is_computed_where_nothing_is_asked_for(client: TestClient, service: InProcess) -> None:
    service.callers.clear()
    (choice,) = complete(client, "The capital", max_tokens=0, logprobs=None)
    assert (choice["text"], choice["logprobs"], service.callers) == ("The capital", None, [])


def test_prompt_logprobs_are_told_by_token_id(client: TestClient, tiny_scorer: Scorer) -> None:
    prompt = [5, 17, 300]
    wanted, best = forced(tiny_scorer, prompt)
    (choice,) = complete(client, prompt, max_tokens=0, echo=False, logprobs=None, prompt_logprobs=1)
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for told, token, value, likely in zip(others, prompt[1:], wanted, best, strict=False):
        assert told[str(token)]["logprob"] == pytest.approx(value, abs=TOLERANCE)
        assert told[str(likely)]["rank"] == 1
    assert (choice["text"], choice["logprobs"]) == ("", None)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_tokens": 2}, "invalid_max_tokens"),
        ({"max_tokens": None}, "invalid_max_tokens"),
        ({"max_tokens": -1}, "invalid_max_tokens"),
        ({"logprobs": 5}, "invalid_logprobs"),
        ({"stream": True}, "invalid_stream"),
        ({"temperature": 0.7}, "invalid_temperature"),
        ({"n": 2}, "invalid_n"),
        ({"logit_bias": {"5": 1}}, "invalid_logit_bias"),
        ({"prompt": None}, "missing_prompt"),
        ({"prompt": ""}, "empty_prompt"),
        ({"prompt": []}, "invalid_prompt"),
        ({"prompt": ["a", [1]]}, "invalid_prompt"),
        ({"prompt": [[1], 2]}, "invalid_prompt"),
        ({"prompt": [[]]}, "empty_prompt"),
        ({"prompt": [1, True]}, "invalid_token_id_type"),
        ({"prompt": [10**9]}, "token_id_out_of_range"),
        ({"prompt": [1] * 1025}, "too_long"),
        ({"prompt": "word " * 5000}, "too_long"),
        ({"stop": 5}, "invalid_stop"),
        ({"tools": []}, "unknown_field"),
    ],
)
def test_what_cannot_be_scored_is_refused(client: TestClient, fields: dict[str, Any], code: str) -> None:
    body = {"prompt": "a b", "max_tokens": 0, **fields}
    error = check_error(client.post("/v1/completions", json=body), 400, code)
    if code == "invalid_max_tokens" and fields["max_tokens"] != -1:
        assert "this server scores, it does not write" in error["message"]


def test_the_tokenizer_tells_of_itself(client: TestClient, tiny_scorer: Scorer) -> None:
    told = client.get("/tokenizer_info").json()
    assert told["vocab_size"] == tiny_scorer.tokenizer.vocab_size
    assert told["max_model_len"] == 1024
    assert {"bos_token", "eos_token", "pad_token", "chat_template"} <= told.keys()


RUNS = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(tuple)
SHARED = st.sampled_from([(), (1,) * 20, (1,) * 30, (2,) * 16])


@given(st.lists(st.tuples(SHARED, RUNS).map(lambda parts: parts[0] + parts[1]), min_size=1, max_size=9), st.booleans())
def test_every_token_of_every_prompt_is_read_once_after_those_before_it(
    prompts: list[tuple[int, ...]], following: bool
) -> None:
    plan = plan_reads(prompts, True, following)
    by_number = {key: {number: text for text, number in texts.items()} for key, texts in plan.continuations.items()}
    for prompt, parts in zip(prompts, plan.prompts, strict=True):
        read = prompt[:1]
        for context, number in parts:
            assert context == read
            read += by_number[context][number]
        assert read == prompt + ((NEXT,) if following else ())


def test_groups_hold_each_prompt_once_and_begin_alike() -> None:
    prompts = [tuple(prompt) for prompt in PROMPTS] + [(1, 2, 3), tuple(BEGINNING[:20])]
    groups = shared_beginnings(prompts)
    assert sorted(number for members, _ in groups for number in members) == list(range(6))
    for members, shared in groups:
        assert len({prompts[number][:shared] for number in members}) == 1
    assert max(len(members) for members, _ in groups) >= 4
