"""Workloads: the named shapes, tokens that never change under a name, and requests from a file."""

from dataclasses import replace

import numpy as np
import pytest

from onepass.api import ScoreRequest
from onepass.bench.roofline import needed
from onepass.bench.workloads import SHAPES, Shape, make_workload, shape_named, workload_of
from onepass.engine.cost_model import CostModel
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.encode import Encoder
from onepass.errors import ConfigError, RequestError
from onepass.models.known import known_config

SMOLLM2_VOCABULARY = 49152
# What results under benchmarks/results were measured on: a change here makes them incomparable.
CHECKSUMS = {
    "contract": "25a2023872575339c33f2715c52db44642e0b0c89f05a62a6b91eeba0c18eee8",
    "track_low": "3ad20d0b67efeba353f467636e52a27e422b96ead5e9e1b335454dbe768b8da7",
    "track_mean": "e156f41e395abb474beb54abae0e1d0effa35d1a928abffb673151a8dd5af773",
    "track_high": "295830b21a081a3acddfe4cdc571c0983a3b15a8167b52b538d5b0ab2203a440",
    "home_low": "14f8a27c30c7e613bbe7d81f4d5c0e830f63f0a1f4090438be6792bc280aa5ba",
    "home_mean": "f22ca1e1ab9157715a321714386421a83336f60da9e10cc298b289f4fe2f08bd",
    "home_high": "712201690b45176e4794cfea12e5eb62473a85c99bf2cccb2161174e25eeae84",
    "linkedin": "ce6a1b473902b70869e794741fc4804575d01bc1462c8efd0c36f46ae61fd8ac",
    "ragged": "2d4cd3793b4e4847497c551291e67c83603b95c911d6c33a152942554347fae1",
    "repeat-query": "8a39a58d0c44eb1aabd37a1875a68e6ac23ac522b45eda1aa3a847c9429de861",
    "many": "abf112c62d072809e90fc88dece9c5b13ac72b9423dbc3597591a0d5773816bc",
    "small": "b71b2dd37c9c9c928458881d7bef71cf912ac144c58d50fa6807c2d8d0f35702",
    "decisions": "2e778b632bb4668cdfa5d29ab6e2082bac26c6dbbcfe8fa68aed561ee1ba3877",
    "grid": "fba3a6c069bba11085e34b3e05bc7739f2fd2d18e890b9d015eeae2a240d9f04",
    "contract-varied": "40b7af68d736c7d2094d58d0d5971861af3c29568612e1a38ebef2e5b16cf70d",
}


@pytest.mark.parametrize("name", CHECKSUMS)
def test_the_tokens_of_a_name_never_change(name: str) -> None:
    made = make_workload(name, shape_named(name), SMOLLM2_VOCABULARY, seed=0)
    assert made.checksum == CHECKSUMS[name]


def test_every_named_workload_is_pinned() -> None:
    assert CHECKSUMS.keys() >= SHAPES.keys()


def test_the_contract_is_2000_500_20() -> None:
    (request,) = make_workload("contract", shape_named("contract"), 151936).requests
    assert (len(request.query), len(request.items), {len(item) for item in request.items}) == (2000, 500, {20})


def test_many_is_10_000_items_of_20_after_2000() -> None:
    (request,) = make_workload("many", shape_named("many"), 151936).requests
    assert (len(request.query), len(request.items), {len(item) for item in request.items}) == (2000, 10_000, {20})


def test_no_token_occurs_twice_while_the_vocabulary_lasts() -> None:
    (request,) = make_workload("contract", shape_named("contract"), SMOLLM2_VOCABULARY).requests
    tokens = [*request.query, *(token for item in request.items for token in item)]
    assert len(set(tokens)) == len(tokens) == 12_000
    assert max(tokens) < SMOLLM2_VOCABULARY


def test_a_small_vocabulary_is_used_up_before_a_token_comes_again() -> None:
    (request,) = make_workload("x", Shape(1000, 1, 1, 1), 600).requests
    assert len(set(request.query[:600])) == 600
    assert request.query[:400] != request.query[600:]


def test_ragged_lengths_span_5_to_200_and_varied_ones_half_around() -> None:
    (ragged,) = make_workload("ragged", shape_named("ragged"), SMOLLM2_VOCABULARY).requests
    lengths = [len(item) for item in ragged.items]
    assert 5 <= min(lengths) < 15
    assert 190 < max(lengths) <= 200
    (varied,) = make_workload("contract-varied", shape_named("contract-varied"), SMOLLM2_VOCABULARY).requests
    assert {len(item) for item in varied.items} == set(range(10, 31))


def test_fewer_items_are_the_first_of_more() -> None:
    (few,) = make_workload("ragged", Shape(64, 4, 5, 50), 600).requests
    (many,) = make_workload("ragged", Shape(64, 9, 5, 50), 600).requests
    assert (few.query, few.items) == (many.query, many.items[:4])


def test_another_seed_or_a_cached_query_is_another_checksum() -> None:
    shape = shape_named("small")
    made = make_workload("small", shape, 600)
    assert made.checksum != make_workload("small", shape, 600, seed=1).checksum
    assert made.checksum == make_workload("another name", shape, 600).checksum
    contract, repeated = (make_workload(n, shape_named(n), 600) for n in ("contract", "repeat-query"))
    assert contract.requests == repeated.requests
    assert contract.checksum != repeated.checksum


def test_samples_reach_from_the_first_item_to_the_last() -> None:
    places = make_workload("many", shape_named("many"), 600).sample(10)
    assert (len(places), places[0], places[-1]) == (10, (0, 0), (0, 9_999))
    assert np.diff([item for _, item in places]).min() > 1000


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"contract, track_low.*; got 'contrakt'"):
        shape_named("contrakt")


def test_requests_from_a_file_keep_their_own_labels() -> None:
    request = ScoreRequest(query=[1, 2], items=[[3], [4, 5]], label_token_ids=[7, 8])
    made = workload_of("file", [request], Encoder(None, 600, 1024)).with_labels([9])
    assert made.requests[0].request is request
    assert (made.requests[0].items, made.requests[0].labels) == (((3,), (4, 5)), ((7, 8), (7, 8)))
    backwards = ScoreRequest(query=[1], items=[[3]], label_token_ids=[7], item_first=True)
    with pytest.raises(RequestError, match="request 1: a benchmark takes query, items and labels"):
        workload_of("file", [backwards], Encoder(None, 600, 1024))


def test_a_grid_is_all_pairs_of_a_candidate_and_a_branch_and_counts_each_candidate_once() -> None:
    workload = make_workload("grid", Shape(7, 3, 4, 4, branches=2, branch_tokens=5), 600).with_labels([5, 6])
    (request,) = workload.requests
    assert request.items == tuple(one + other for one in request.candidates for other in request.branches)
    assert isinstance(request.request, BranchedRequest)
    assert [list(one) for one in request.candidates] == request.request.items
    assert request.request.branch_label_token_ids == [(5, 6), (5, 6)]
    assert workload.tokens == 7 + 3 * 4 + 6 * 5
    work = CostModel(known_config("qwen3-0.6b"), 4)
    expanded = replace(workload, requests=(replace(request, candidates=(), branches=()),))
    spared = needed(work, expanded).flops - needed(work, workload).flops
    assert spared == pytest.approx(12 * work.flops_per_token, rel=0.02), "each candidate of 4 tokens once, not twice"
