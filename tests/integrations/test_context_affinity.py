"""Requests that share their text have one key; keys keep their replica when others come and go; handles name theirs."""

import orjson

from onepass.integrations.context_affinity import (
    Route,
    ranks,
    replica_of,
    replica_order,
    route_of,
    with_replica,
    without_replica,
)

REPLICAS = [f"replica{number}" for number in range(5)]


def route(path: str = "/v1/score", **fields: object) -> Route:
    return route_of(path, orjson.dumps(fields))


def test_requests_that_share_their_text_have_one_key() -> None:
    assert route(query="a", items=["1"]) == route(query="a", items=["2"])
    assert route("/rerank", query="a").key == route("/v1/score", query="a").key
    beginning = "x" * 5000
    assert route(query=beginning + "a") != route(query=beginning + "b"), "a common instruction is no hot spot"


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    system, first = {"role": "system", "content": "s"}, {"role": "user", "content": "a"}
    answer, other = {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}
    assert route(messages=[system, first]) == route(messages=[system, first, answer, other])
    assert route(messages=[system, first]) != route(messages=[system, other])


def test_every_dialect_has_a_key() -> None:
    shared = [
        {"query": {"text": "a"}},
        {"text_1": "a"},
        {"state": "a"},
        {"messages": [{"role": "user", "content": "a"}]},
    ]
    assert all(route(**fields).key for fields in [*shared, {"prompt": ["a"]}, {"input": "a"}, {"queries": "a"}])


def test_bodies_without_a_shared_text_have_none() -> None:
    assert route_of("/v1/score", b"{") == route_of("/v1/score", b"[]") == route_of("/health", b"") == Route()
    assert route(query="") == Route()


def test_a_context_handle_names_its_replica() -> None:
    handle = with_replica("abc", "ctx-1")
    assert (replica_of(handle), without_replica(handle)) == ("abc", "ctx-1")
    assert route(context_id=handle) == route_of(f"/v1/contexts/{handle}", b"") == Route(replica="abc")
    assert route(context_id="ctx-1") == Route(), "a handle of a server without Ray"


def test_ranks_of_replicas() -> None:
    assert ranks(Route(replica="replica3"), REPLICAS) == [["replica3"]]
    assert ranks(Route(replica="gone"), REPLICAS) == [REPLICAS]
    order = replica_order("key", REPLICAS)
    assert ranks(Route("key"), REPLICAS) == [[name] for name in order]
    assert ranks(Route("key", avoid=(order[0],)), REPLICAS) == [[name] for name in order[1:]]
    assert ranks(Route(avoid=tuple(REPLICAS)), REPLICAS) == [REPLICAS], "when all refused, any is tried again"


def test_a_replica_that_leaves_moves_only_its_own_keys() -> None:
    keys = [f"key{number}" for number in range(500)]
    before = {key: replica_order(key, REPLICAS) for key in keys}
    for key in keys:
        left = [name for name in before[key] if name != "replica2"]
        assert replica_order(key, [name for name in REPLICAS if name != "replica2"]) == left
    shares = [sum(order[0] == name for order in before.values()) for name in REPLICAS]
    assert min(shares) > 50, "keys are spread"
