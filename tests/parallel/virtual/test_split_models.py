"""A model split over 2, 4 or 8 devices scores as on one: real head counts of the matrix, every mode, all else small."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onepass.api import ScoreRequest
from onepass.engine.config import EngineConfig
from onepass.loading.load_weights import load_weights
from onepass.loading.model import Model
from onepass.loading.rerankers.registry import ranker_for
from onepass.loading.source import Source
from onepass.loading.tensor_reader import TensorInfo
from onepass.models.config import ModelConfig
from onepass.models.known import known_config
from onepass.models.layout import Layout
from onepass.models.weights import Weights, abstract, named_leaves
from onepass.parallel import collectives
from onepass.parallel.meshes import replica_meshes
from onepass.scorer import Scorer

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}  # design: tensor parallel n vs 1
VOCAB = 499  # divides by nothing: the last rows of the last device are padding
SIZES = (2, 4, 8)
# Query and KV heads 16/8, 32/8, 12/2, 16/2, 9/3; 14/2 and 32/32 besides, in the slow test, which has all combinations.
HEADS = ("qwen3-0.6b", "qwen3-4b", "qwen2.5-1.5b", "qwen2.5-3b", "smollm2-135m")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "serial": ("serial", {}),
    "packed/dense": ("packed", {"mask": "dense"}),
    "packed/segment": ("packed", {"mask": "segment"}),
    "chunked": ("chunked", {"chunk_size": 4}),
    "extend": ("extend", {}),
    "auto": ("auto", {}),
}
SOME = [
    ("qwen3-0.6b", 2, "serial"),
    ("qwen3-0.6b", 8, "extend"),
    ("qwen3-4b", 8, "packed/dense"),
    ("qwen2.5-1.5b", 4, "auto"),
    ("qwen2.5-1.5b", 8, "packed/segment"),
    ("qwen2.5-3b", 8, "chunked"),
    ("smollm2-135m", 2, "packed/dense"),
    ("smollm2-135m", 4, "extend"),
    ("smollm2-135m", 8, "serial"),
]


# Real position counts would make page tables of thousands of entries.
SMALL: dict[str, Any] = {"keep_programs": False, "max_batch_tokens": 128, "cache_bytes": 1 << 22}


def model_of(name: str) -> Model:
    known = known_config(name)
    small = {
        "num_layers": 2,
        "hidden_size": 64,
        "head_dim": 16,
        "mlp_size": 101,
        "vocab_size": VOCAB,
        "max_position": 1024,
    }
    return Model(name, Source("random", name), replace(known, **small), None, ranker_for(name))


class Tensors:
    """A checkpoint in memory. What a layer adds is small beside what it is added to, as in trained models: see
    tests/engine/tiny.py."""

    def __init__(self, config: ModelConfig) -> None:
        self._held: dict[str, np.ndarray] = {}
        for name, leaf in named_leaves(abstract(config)):
            scale = leaf.init / 4 if name in ("layers.out", "layers.down") else leaf.init
            for layer in range(leaf.shape[0] if leaf.stacked else 1):
                for part in leaf.parts:
                    self._held[part.name.format(layer=layer)] = self._draw(part.shape, scale)

    def _draw(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        drawn = np.random.default_rng(len(self._held)).standard_normal(shape, np.float32) * scale
        return 1 + drawn / 10 if scale == 1.0 else drawn

    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(tensor.shape, "F32") for name, tensor in self._held.items()}

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        return self._held[name][index]

    def close(self) -> None:
        self._held.clear()


@cache
def weights_of(name: str, tp: int, dtype: str) -> Weights:
    mesh = None if tp == 1 else replica_meshes(jax.devices(), tp, 1)[0]
    config = model_of(name).config
    return load_weights(config, Tensors(config), jnp.dtype(dtype), mesh=mesh)


def numbers(name: str, tp: int, way: str, dtype: str = "float32") -> np.ndarray:
    """[items, 3 + 3]: probabilities in the whole vocabulary, and logits."""
    random = np.random.default_rng(7)
    mode, options = WAYS[way]
    request = ScoreRequest(
        query=random.integers(0, VOCAB, 20).tolist(),
        items=[random.integers(0, VOCAB, n).tolist() for n in (9, 12, 10, 11, 12)],
        label_token_ids=[0, 250, VOCAB - 1],  # one of the first device, one between, one of the last
        mode=mode,  # type: ignore[arg-type]
    )
    config = EngineConfig(tp=tp, **SMALL, **options)
    with Scorer(model_of(name), weights_of(name, tp, dtype), config) as scorer:
        result = scorer.score_many([request])[0]
    return np.concatenate([result.scores, result.logits], axis=1)


@cache
def serial(name: str, dtype: str) -> np.ndarray:
    return numbers(name, 1, "serial", dtype)


@pytest.mark.parametrize(("name", "tp", "way"), SOME, ids=lambda value: str(value))
def test_a_split_model_scores_as_a_whole_one(name: str, tp: int, way: str) -> None:
    found, wanted = numbers(name, tp, way), serial(name, "float32")
    assert np.abs(found - wanted).max() <= TOLERANCE["float32"]
    assert np.ptp(wanted[:, 3]) > 0.01, "items differ: equal numbers would prove nothing"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "tp"), list(product((*HEADS, "qwen3-1.7b", "qwen2.5-0.5b", "smollm2-1.7b"), SIZES)))
def test_a_split_model_scores_as_a_whole_one_in_every_way(name: str, tp: int, way: str, dtype: str) -> None:
    found, wanted = numbers(name, tp, way, dtype), serial(name, dtype)
    assert np.abs(found[:, :3] - wanted[:, :3]).max() <= TOLERANCE[dtype]
    assert np.abs(found[:, 3:] - wanted[:, 3:]).max() <= 2 * TOLERANCE[dtype], "logits of order one"


def test_devices_that_do_not_add_up_their_parts_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the output and down projections keep only the first device's part."""
    monkeypatch.setattr("onepass.models.layers.total", lambda split, partial: partial)
    assert np.abs(numbers("qwen3-0.6b", 2, "packed/dense") - serial("qwen3-0.6b", "float32")).max() > 0.01


def test_padding_of_the_vocabulary_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: rows after the vocabulary's end have logit 0 and would count in every probability."""
    plain = collectives.reduce_vocabulary
    monkeypatch.setattr(
        "onepass.models.decoder.reduce_vocabulary",
        lambda split, logits: plain(replace(split, vocab_size=1 << 20), logits),
    )
    found, wanted = numbers("qwen3-0.6b", 8, "packed/dense"), serial("qwen3-0.6b", "float32")
    assert np.abs(found[:, :3] - wanted[:, :3]).max() > TOLERANCE["float32"]
    assert np.abs(found[:, 3:] - wanted[:, 3:]).max() <= TOLERANCE["float32"], "logits do not depend on it"


def best_tokens(tp: int) -> list[int]:
    """The most likely tokens at thirty read-outs."""
    random = np.random.default_rng(8)
    texts = [random.integers(0, VOCAB, 10).tolist() for _ in range(3)]
    config = EngineConfig(tp=tp, **SMALL)
    with Scorer(model_of("qwen3-0.6b"), weights_of("qwen3-0.6b", tp, "float32"), config) as scorer:
        (row,) = scorer.score([1, 2, 3], [[]], continuations=texts).continuations or []
    return [token for one in row for token in one.best_token_ids]


def test_the_most_likely_token_is_found_on_whichever_device_has_it() -> None:
    found, wanted = best_tokens(8), best_tokens(1)
    assert found == wanted
    per_device = -(-VOCAB // 8)
    assert len({token // per_device for token in wanted}) > 2, "they lie on several devices"
    assert max(found) < VOCAB


def test_the_pool_lies_in_parts_on_its_devices() -> None:
    layout = Layout(model_of("qwen2.5-3b").config, replica_meshes(jax.devices(), 4, 1)[0])
    config = EngineConfig(**SMALL)
    with Scorer(model_of("qwen2.5-3b"), weights_of("qwen2.5-3b", 4, "float32"), config) as scorer:
        handle = scorer.prefill([1, 2, 3, 4, 5])
        pool = scorer.engines[0].runner._pool
        assert pool is not None
        assert pool.k.shape[3] == layout.wide.num_kv_heads == 4
        assert {shard.data.shape[3] for shard in pool.k.addressable_shards} == {1}
        assert {shard.device for shard in pool.k.addressable_shards} == set(jax.devices()[:4])
        page = pool.k.shape[2]
    assert handle.bytes == 4 * 2 * 2 * page * 16, "of one page, counted as each device holds it"


def mixed(scorer: Scorer) -> list[np.ndarray]:
    """Probabilities of requests of many kinds that share steps: cold contexts beside cached ones, a context longer than
    a step, empty items, branches, and contexts that begin alike."""
    random = np.random.default_rng(8)

    def ids(count: int) -> list[int]:
        return random.integers(0, VOCAB, count).tolist()

    begin, long, labels = ids(40), ids(200), [0, 250, VOCAB - 1]
    fields: list[dict[str, Any]] = [
        {"query": begin, "items": [ids(5), [], ids(9)]},
        {"query": [*begin, *ids(7)], "items": [ids(4)] * 3, "mode": "extend"},
        {"query": long, "items": [ids(3), ids(150)]},
        {"query": ids(11), "items": [ids(6), []], "continuations": [ids(4), ids(2)]},
        {"query": ids(3), "items": [ids(8)] * 5, "mode": "chunked"},
    ]
    requests = [ScoreRequest(label_token_ids=labels, **each) for each in fields]
    out = []
    for _ in ("cold", "cached"):
        for result in scorer.score_many(requests):
            texts = [np.exp(c.token_logprobs) for row in result.continuations or [] for c in row]
            out.append(np.concatenate([np.ravel(result.scores), *texts]))
    return out


@cache
def mixed_on(name: str, tp: int) -> list[np.ndarray]:
    with Scorer(model_of(name), weights_of(name, tp, "float32"), EngineConfig(tp=tp, **SMALL)) as scorer:
        free = scorer.engines[0].pages.free
        found = mixed(scorer)
        scorer.engine.contexts.clear()
        assert scorer.engines[0].pages.free == free
    return found


@pytest.mark.parametrize("tp", SIZES)
@pytest.mark.parametrize("name", ["qwen2.5-1.5b"])
def test_mixed_steps_score_the_same_on_any_number_of_devices(name: str, tp: int) -> None:
    """Cold and cached; heads of 12 over 2, which 8 devices fill up and copy."""
    for found, wanted in zip(mixed_on(name, tp), mixed_on(name, 1), strict=True):
        assert np.abs(found - wanted).max() <= TOLERANCE["float32"]
    whole = mixed_on(name, 1)
    for cold, cached in zip(whole[:5], whole[5:], strict=True):
        assert np.abs(cold - cached).max() <= TOLERANCE["float32"]
        assert np.ptp(cold) > 0
