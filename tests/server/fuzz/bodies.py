"""Sound bodies for every operation, and ways to spoil a JSON value: anything anywhere, at every depth."""

import copy
import json
from random import Random
from typing import Any

TEXTS = ["The quick fox", "a river bank", "Paris"]
IDS: dict[str, Any] = {"query": [5, 6, 7], "items": [[8, 9], [10], []], "label_token_ids": [11, 12]}
SOUND: dict[str, list[dict[str, Any]]] = {
    "/v1/score": [
        IDS,
        {**IDS, "apply_softmax": True, "temperature": 0.5, "mode": "packed", "return_token_logprobs": True},
        {"query": "Is it relevant?", "items": TEXTS, "labels": [" yes", " no"], "model": "default", "priority": 1},
        {"query": "Is it", "items": TEXTS, "continuations": [" yes or no"], "item_first": False},
        {"query": [5], "items": [[8], [9]], "label_token_ids": [[11, 12], [13, 14]], "label_mass": False},
    ],
    "/score": [{"text_1": "the sea", "text_2": TEXTS}, {"queries": ["a", "b"], "documents": ["c", "d"]}],
    "/generative_scoring": [{**IDS, "items": [[8], [9]], "apply_softmax": False}],
    "/rerank": [
        {"query": "the sea", "documents": TEXTS, "top_n": 2, "return_documents": True, "max_tokens_per_doc": 4},
        {"query": "the sea", "documents": [{"text": "a", "title": "b"}], "rank_fields": ["title", "text"]},
        {"query": "the sea", "texts": TEXTS, "raw_scores": True, "truncate": True, "truncation_direction": "Left"},
    ],
    "/v1/rerank": [{"query": "the sea", "documents": TEXTS, "top_k": 2, "truncation": True}],
    "/v2/rerank": [{"query": "the sea", "documents": TEXTS, "truncate_prompt_tokens": 40, "truncation_side": "left"}],
    "/v1/ranking": [{"query": {"text": "the sea"}, "passages": [{"text": "a"}, {"text": "b"}], "truncate": "END"}],
    "/v1/contexts": [{"query": "the sea", "ttl_seconds": 1, "pin": False}],
    "/tokenize": [{"prompt": "the sea"}],
    "/detokenize": [{"tokens": [5, 6]}],
}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 599, 600, 601, 2**31, 2**63, -(2**63), 2**64, 0.5, -0.0, 1e300, 1e-300),
    *(
        "",
        " ",
        "\x00",
        "é" * 40,
        "😀",
        "\u2028",
        "default",
        "auto",
        "a" * 3000,
        "<|im_end|>",
        "' OR 1=1 --",
        "../../etc",
    ),
    *(
        [],
        [[]],
        [[[]]],
        [None],
        [True],
        [-1],
        [1.5],
        ["a", 1],
        [1, "a"],
        {},
        {"text": None},
        {"text": 1},
        {"a": {"b": []}},
    ),
]
# Literals that JSON has not, or that no float or 64-bit integer holds.
NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1" * 400,
    "-" + "9" * 400,
    "0x10",
    "01",
    "+1",
    "1.",
    ".5",
]
NUMBERS += ["1e-999", "1E+2", "-", "1_000", "0e0", "-0", "1.0", "9007199254740993", "18446744073709551616", "1e19"]


def sound(random: Random) -> tuple[str, dict[str, Any]]:
    """A path and a body that it takes."""
    path = random.choice(list(SOUND))
    return path, copy.deepcopy(random.choice(SOUND[path]))


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def spoilt(random: Random, body: dict[str, Any], value: Any) -> dict[str, Any]:
    """The body with `value` at one place, or one place too many, or one too few."""
    parent, key = random.choice(places(body))
    value = copy.deepcopy(value)
    change = random.random()
    if change < 0.7:
        parent[key] = value
    elif change < 0.85:
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), value)
    else:
        parent[random.choice(["text", "query", "nonsense", "", "model", "__proto__", "items"])] = value
    return body


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside, outermost first."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    found = [(value, key) for key in keys]
    for key in keys:
        found += places(value[key])
    return found


def with_literal(random: Random, body: dict[str, Any], literal: str) -> bytes:
    """The body with bytes that no encoder would write, in the place of some value."""
    parent, key = random.choice(places(body))
    parent[key] = "@literal@"
    return encoded(body).replace(b'"@literal@"', literal.encode("utf-8", "surrogatepass"), 1)
