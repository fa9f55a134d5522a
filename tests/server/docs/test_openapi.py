"""The OpenAPI document: every path that answers is in it, its references hold, and answers are as it says."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from onepass.server.app import build_app
from onepass.server.docs.openapi import openapi_document
from server.asking import RERANK, SCORE, check_error, check_tei_error
from server.in_process import InProcess

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document(keys=False)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def test_every_route_is_described_and_every_description_is_a_route(
    service: InProcess, document: dict[str, Any]
) -> None:
    routed = {route.path.replace(":path}", "}") for route in build_app(service).routes}  # type: ignore[attr-defined]
    assert routed == set(document["paths"])


def test_references_hold_and_names_are_unique(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    used = {reference.rpartition("/")[2] for reference in references(document)}
    assert used == set(schemas)
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_every_operation_says_how_it_fails(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "200" in operation["responses"]
            assert "400" in operation["responses"]
            if method == "post":
                told = set(operation["responses"])
                assert {"404", "408", "413", "415", "429", "500", "503", "504"} <= told, path
                assert operation["requestBody"]["content"]["application/json"]["schema"]


def test_keys_are_described_where_they_are_needed() -> None:
    guarded = openapi_document(keys=True)
    assert guarded["security"] == [{"bearer": []}, {"header": []}]
    assert "401" in guarded["paths"]["/v1/score"]["post"]["responses"]
    assert guarded["paths"]["/health"]["get"]["security"] == []
    assert "security" not in openapi_document(keys=False)


def test_the_examples_are_answered(client: TestClient, service: InProcess, document: dict[str, Any]) -> None:
    """Checked, not run: the shapes of other tests are enough to compile."""
    service.check_only = True
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for body in bodies(document, operation):
                for example in body.get("examples", []):
                    answer = client.request(method, path, json=example)
                    if path == "/predict":
                        check_tei_error(answer, 429, "Overloaded", "overloaded")
                    elif answer.status_code != 200:
                        check_error(answer, 429, "overloaded")


def bodies(document: dict[str, Any], operation: dict[str, Any]) -> list[Schema]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return [resolved(document, one) for one in content.get("anyOf", [content] if content else [])]


def resolved(document: dict[str, Any], schema: Schema) -> Schema:
    found: Schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def conforms(document: dict[str, Any], value: Any, schema: Schema) -> bool:
    """As much of JSON Schema as our answers use."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        return any(conforms(document, value, one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in [schema["const"]] if "const" in schema else value in schema["enum"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    named = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    kind = "null" if value is None else named[type(value)]
    if kind not in kinds and not (kind == "integer" and "number" in kinds):
        return False
    if kind == "array":
        return all(conforms(document, one, schema.get("items", {"type": list(named.values())})) for one in value)
    if kind == "object" and "properties" in schema:
        known = schema["properties"]
        complete = set(schema.get("required", [])) <= set(value)
        return complete and all(n in known and conforms(document, v, known[n]) for n, v in value.items())
    return True


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/score", SCORE),
        ("post", "/v1/score", {"text_1": RERANK["query"], "text_2": RERANK["documents"]}),
        ("post", "/rerank", RERANK),
        ("post", "/rerank", {"query": RERANK["query"], "texts": RERANK["documents"], "return_text": True}),
        ("post", "/rerank", {**RERANK, "top_k": 2}),
        ("post", "/classify", {"input": RERANK["documents"], "labels": [" yes", " no"]}),
        ("post", "/pooling", {"input": "the sea", "labels": [" yes", " no"]}),
        ("post", "/predict", {"inputs": "the sea", "labels": [" yes", " no"]}),
        ("post", "/predict", {"inputs": [["the sea"], ["a", "b"]], "labels": [" yes", " no"]}),
        ("post", "/v1/rewards", {"input": RERANK["documents"], "labels": [" yes", " no"]}),
        ("post", "/tokenize", {"prompt": ["a", "b"], "return_token_strs": True}),
        ("post", "/v1/contexts", {"query": "the sea"}),
        *[("get", path, None) for path in ("/", "/health", "/live", "/v1/models", "/info")],
    ],
)
def test_answers_are_as_described(
    client: TestClient, document: dict[str, Any], method: str, path: str, body: Any
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 200
    described = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    assert conforms(document, answer.json(), described), answer.text
    assert not conforms(document, {"something": "else"}, described), "the check can fail"


def test_errors_are_as_described(client: TestClient, document: dict[str, Any]) -> None:
    answer = client.post("/v1/score", json={**SCORE, "query": ""})
    described = document["paths"]["/v1/score"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert conforms(document, answer.json(), described)
