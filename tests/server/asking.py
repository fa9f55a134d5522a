"""Bodies that the tiny model answers, and what every error must look like. Few shapes: each new one is compiled."""

from typing import Any

SCORE: dict[str, Any] = {
    "query": "Is this document relevant?",
    "items": [" The quick fox", " a river bank", " Paris"],
    "labels": [" yes", " no"],
}
DOCUMENTS = ["The capital of France is Paris.", "Water boils at 100 degrees.", "The price of the shoes."]
RERANK: dict[str, Any] = {"query": "the capital of Italy", "documents": DOCUMENTS}
TEI: dict[str, Any] = {"query": RERANK["query"], "texts": DOCUMENTS}
NIM: dict[str, Any] = {"query": {"text": RERANK["query"]}, "passages": [{"text": text} for text in DOCUMENTS]}
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
    505: "HttpVersionNotSupportedError",
}


def ask(client: Any, body: dict[str, Any], path: str = "/rerank", **headers: str) -> Any:
    """The answer of a request that succeeds."""
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def check_tei_error(answer: Any, status: int, error_type: str, code: str) -> None:
    """The error of Text Embeddings Inference: `error` is the message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert isinstance(body["error"], str)
    assert body["error"] != ""
    assert (body["error_type"], body["code"]) == (error_type, code)
    assert answer.headers["x-request-id"]


def check_error(answer: Any, status: int, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """The one body of all errors; returns its `error`."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == body["type"] == TYPES[status]
    assert error["message"] == body["message"] == body["detail"] != ""
    assert error["param"] == body["param"]
    assert body["object"] == "error"
    assert body["code"] == status
    assert isinstance(error["code"], str)
    assert answer.headers["x-request-id"]
    if code is not None:
        assert error["code"] == code, error
    if param is not None:
        assert error["param"] == param, error
    return error
