"""Rules for bad JSON, bad values, bad headers and bad paths: each makes one request that is whole HTTP."""

import json
from random import Random

from server.fuzz.bodies import IDS, NUMBERS, ODD, encoded, sound, spoilt, with_literal
from server.fuzz.exchange import Shot
from server.fuzz.requests import ANY, BAD_INPUT, DEADLINE, JSON, Rule, http, post


def sound_request(random: Random) -> Shot:
    return post("sound", "/v1/score", encoded(IDS), statuses=frozenset({200}))


def wrong_value(random: Random) -> Shot:
    path, body = sound(random)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        body = spoilt(random, body, random.choice(ODD)) if body else body
    return post("wrong value", path, encoded(body))


def wrong_number(random: Random) -> Shot:
    path, body = sound(random)
    return post("wrong number", path, with_literal(random, body, random.choice(NUMBERS)))


def truncated(random: Random) -> Shot:
    path, body = sound(random)
    data = encoded(body)
    return post("truncated", path, data[: random.randrange(len(data))], statuses=BAD_INPUT)


def flipped(random: Random) -> Shot:
    path, body = sound(random)
    data = bytearray(encoded(body))
    for _ in range(random.choice((1, 2, 8))):
        data[random.randrange(len(data))] = random.randrange(256)
    return post("flipped bytes", path, bytes(data))


def nested(random: Random) -> Shot:
    depth = random.choice((50, 500, 1200, 20_000, 200_000))
    opening, closing = random.choice([("[", "]"), ('{"a":', "}"), ('[{"query":', "}]")])
    inner = opening * depth + "1" + (closing * depth if random.random() < 0.7 else "")
    path, body = sound(random)
    text = with_literal(random, body, inner) if random.random() < 0.7 else inner.encode()
    return post("nested", path, text, statuses=BAD_INPUT | {200})


def duplicated(random: Random) -> Shot:
    path, body = sound(random)
    name = random.choice(list(body))
    again = b", " + encoded({name: random.choice([body[name], random.choice(ODD)])})[1:]
    return post("duplicate name", path, encoded(body)[:-1] + again, statuses=BAD_INPUT)


def surrogate(random: Random) -> Shot:
    path, body = sound(random)
    text = random.choice([r'"\ud800"', r'"a\udc00b"', r'"\ud83d\u0041"', r'["\udfff"]', '{"\\ud800": 1}', '"\ud800"'])
    return post("lone surrogate", path, with_literal(random, body, text), statuses=BAD_INPUT)


def not_utf8(random: Random) -> Shot:
    path, body = sound(random)
    bad = random.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xfe\xff"])
    data = with_literal(random, body, '"before@@after"').replace(b"@@", bad)
    return post("not UTF-8", path, data, statuses=BAD_INPUT)


def other_text(random: Random) -> Shot:
    """Not an object, or not JSON, or JSON in another encoding."""
    path, body = sound(random)
    texts = [b"", b" ", b"null", b"[]", b'""', b"1", b"true", b"{}", b"{", b"nul", b"{'query': 1}", b"query=1&items=2"]
    texts += [b"\xef\xbb\xbf" + encoded(body), json.dumps(body).encode("utf-16"), json.dumps(body).encode("utf-32")]
    texts += [encoded(body) + b"x", encoded(body) * 2, b"//\n" + encoded(body), encoded([body]), b"\x00" * 100]
    texts += [b"<xml/>", random.randbytes(200), b'{"a"' * 1000, b'{"query": "' + b"\x01" * 9 + b'"}']
    return post("other text", path, random.choice(texts), statuses=BAD_INPUT)


def many_names(random: Random) -> Shot:
    path, body = sound(random)
    names = {f"name{number}": number for number in range(random.choice((1, 65, 3000)))}
    long = {"n" * 50_000: 1} if random.random() < 0.3 else {}
    return post("many names", path, encoded(body | names | long), statuses=BAD_INPUT)


def large(random: Random) -> Shot:
    """Much of something. What is too long for the model is refused; the rest is work."""
    value = random.choice(
        ["a " * 200_000, ["x"] * 100, [[7]] * 100, [7] * 100_000, [[7] * 5000], "\U0001f600" * 50_000]
    )
    path, body = sound(random)
    body[random.choice(list(body))] = value
    return post("large", path, encoded(body))


def odd_header(random: Random) -> Shot:
    """Headers that the server reads, with values that it should not believe."""
    path, body = sound(random)
    name, values = random.choice(
        [
            (
                "X-Request-Timeout-Ms",
                ["", "0", "-1", "nan", "inf", "1e999", "1e-9", "5", "86400001", "0x10", "１", "9" * 400],
            ),
            ("X-Priority", ["", "1.5", "-101", "101", "99", "nan", "9" * 5000, "+1", "１", "1 1"]),
            ("X-Request-Id", ["", "a" * 129, "é", "a b", "\t", "<script>", "a" * 128]),
            ("X-Compat", ["", "sglang", "SGLANG", "infinity", "nonsense", "é"]),
            ("Accept", ["application/x-ndjson", "application/x-ndjson;q=0", "*/*", "", ",,,;;;", "a" * 9000]),
            ("Authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "é", "a" * 9000]),
            ("traceparent", ["00-" + "0" * 32 + "-" + "0" * 16 + "-00", "nonsense", "ff-é"]),
            ("Content-Encoding", ["", "identity", "GZIP"]),
        ]
    )
    return post("odd header", path, encoded(body), f"{name}: {random.choice(values)}".encode().decode("latin-1"),
                statuses=ANY | DEADLINE)  # fmt: skip


def other_path(random: Random) -> Shot:
    path, body = sound(random)
    paths = [
        "/",
        "/nothing",
        "/v1",
        "/v1/score/x",
        "/v1//score",
        "/V1/SCORE",
        "/v1/score%00",
        "/%2e%2e/etc",
        "/v1/score?",
    ]
    paths += ["/v1/contexts/" + one for one in ("x", "%00", "%ff", "a" * 3000, "..%2f..", "%F0%9F%98%80", "ctx-1")]
    paths += ["/v1/models/" + one for one in ("x", "default", "a/b/c", "%ff", "")]
    paths += [
        "/health",
        "/live",
        "/metrics",
        "/info",
        "/docs",
        "/openapi.json",
        "//",
        "/" + "a" * 20_000,
        path,
        path + "/",
    ]
    method = random.choice(
        ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "FOO", "GET", "PROPFIND", "POST"]
    )
    data = encoded(body) if random.random() < 0.5 or method == "POST" else b""
    shot = http(method, random.choice(paths), data, JSON)
    return Shot("other path", (shot,), ANY | {204})


def only_head(random: Random) -> Shot:
    path = random.choice(["/", "/health", "/metrics", "/v1/score", "/nothing", "/docs"])
    return Shot("HEAD", (http("HEAD", path),), ANY, bodiless=True)


JSON_RULES: dict[Rule, int] = {
    sound_request: 6, wrong_value: 30, wrong_number: 8, truncated: 6, flipped: 8, nested: 4, duplicated: 4,
    surrogate: 4, not_utf8: 4, other_text: 6, many_names: 2, large: 1, odd_header: 6, other_path: 8, only_head: 1,
}  # fmt: skip
