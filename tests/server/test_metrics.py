"""/metrics: what happened is counted once, under the route's own name, with what the engines tell."""

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from server.asking import RERANK, SCORE
from server.in_process import InProcess


def samples(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(client: TestClient, name: str, **labels: str) -> float:
    return samples(client).get((name, tuple(sorted(labels.items()))), 0.0)


def test_requests_items_and_tokens_are_counted(client_of: Callable[..., TestClient]) -> None:
    client = client_of()
    usage = client.post("/v1/score", json=SCORE).json()["usage"]
    client.post("/v1/score", json={**SCORE, "query": ""})
    client.post("/rerank", json=RERANK)
    client.get("/no/such/path/17")
    assert value(client, "onepass_requests_total", route="/v1/score", status="200") == 1
    assert value(client, "onepass_requests_total", route="/v1/score", status="400") == 1
    assert value(client, "onepass_requests_total", route="/rerank", status="200") == 1
    assert value(client, "onepass_requests_total", route="other", status="404") == 1
    assert value(client, "onepass_items_total") == 6
    assert value(client, "onepass_prompt_tokens_total") > usage["prompt_tokens"]
    assert value(client, "onepass_request_seconds_count", route="/v1/score") == 2
    assert value(client, "onepass_queue_seconds_count") == 2
    assert value(client, "onepass_device_seconds_count") == 2
    assert value(client, "onepass_padding_ratio_count") == 2
    assert value(client, "onepass_in_flight") == 1, "the scrape itself"


def test_what_the_service_tells_is_there_when_scraped(client: TestClient, service: InProcess) -> None:
    assert value(client, "onepass_engine_steps_total") == 7
    assert value(client, "onepass_restarts_total") == 0
    assert ("onepass_cache_bytes", ()) in samples(client)
    assert value(client, "onepass_ready") == 1
    assert service.token_cache is not None
    hits = service.token_cache.hits
    for _ in range(2):
        service.token_cache.encode_items(["an item that comes again"])
    assert value(client, "onepass_item_cache_hits_total") == hits + 1


def test_no_series_says_when_it_was_created(client: TestClient) -> None:
    client.post("/v1/score", json=SCORE)
    names = {name for name, _ in samples(client)}
    assert "onepass_requests_total" in names
    assert not [name for name in names if name.endswith("_created")]


def test_two_applications_do_not_share_their_counts(client_of: Callable[..., TestClient]) -> None:
    one, other = client_of(), client_of()
    one.get("/live")
    assert value(one, "onepass_requests_total", route="/live", status="200") == 1
    assert value(other, "onepass_requests_total", route="/live", status="200") == 0
