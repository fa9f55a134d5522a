"""Rules for requests whose framing is wrong, odd, or made to be read in two ways.

A request that two parsers end at different bytes is how requests are smuggled past a proxy. So whatever has two lengths
must be refused or be the last on its connection, and a body must never be answered as a request.
"""

import json
from itertools import pairwise
from random import Random

from server.fuzz.bodies import IDS, encoded, sound
from server.fuzz.exchange import Shot
from server.fuzz.requests import ANY, BAD_HEAD, BAD_INPUT, JSON, Rule, http

REFUSED = frozenset({400})
BODY = encoded(IDS)
INNER = b"GET /smuggled HTTP/1.1\r\nHost: fuzz\r\n\r\n"


def raw(first: str, *headers: str, body: bytes = b"") -> bytes:
    """As given, with no length added."""
    return "\r\n".join([first, "Host: fuzz", *headers, "", ""]).encode("latin-1") + body


def score(*headers: str, body: bytes = BODY, version: str = "1.1") -> bytes:
    return raw(f"POST /v1/score HTTP/{version}", JSON, *headers, body=body)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def wrong_length(random: Random) -> Shot:
    """A length that cannot be read as a number, or two of them: refused, and nothing more is read."""
    lengths = ["-1", "+5", "0x5", "5 5", "abc", "", "5.0", "1e2", "٥", "5,6", "\t"]
    headers = [f"Content-Length: {random.choice(lengths)}".encode().decode("latin-1")]
    if random.random() < 0.4:
        headers = [f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY) + random.choice((1, -1, 40))}"]
    return Shot("wrong length", (score(*headers) + INNER,), REFUSED, ends=True)


def short_length(random: Random) -> Shot:
    """The rest of the body is read as the next request, and is none."""
    length = random.randrange(len(BODY))
    return Shot("short length", (score(f"Content-Length: {length}"),), BAD_INPUT, answers=None)


def long_length(random: Random) -> Shot:
    """The body never ends; the client does."""
    length = len(BODY) + random.choice((1, 100, 10**6))
    return Shot("long length", (score(f"Content-Length: {length}"),), ANY, answers=None)


def huge_length(random: Random) -> Shot:
    length = random.choice((10**9, 10**12, 2**64, 10**18))
    return Shot("huge length", (score(f"Content-Length: {length}"),), frozenset({413, 400}), ends=True)


def good_chunks(random: Random) -> Shot:
    """Chunks of any size are one body."""
    cuts = sorted(random.randrange(1, len(BODY)) for _ in range(random.choice((0, 1, 3, 20))))
    edges = [0, *dict.fromkeys(cuts), len(BODY)]
    body = chunked(*(BODY[a:b] for a, b in pairwise(edges)))
    return Shot("chunks", (score("Transfer-Encoding: chunked", body=body),), frozenset({200}))


def bad_chunks(random: Random) -> Shot:
    good = chunked(BODY)
    bodies = [
        b"zz\r\n" + BODY,
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"f" * 40 + b"\r\n",
        good[:-5],
    ]
    bodies += [
        b"5\r\nabcdefgh\r\n0\r\n\r\n",
        b"5\nabcde\n0\n\n",
        b"5 ;x=1\r\nabcde\r\n0\r\n\r\n",
        b"\r\n\r\n",
        b"5\r\nabc",
    ]
    bodies += [b"5;" + b"x" * 100_000 + b"\r\nabcde\r\n0\r\n\r\n", good[:-2] + b"X-Late: 1\r\n\r\n", b"", b"0\r\n\r\n"]
    bodies += [good[:-2] + b"bad trailer\r\n\r\n", b"1\r\n{\r\n" * 2000]
    shot = score("Transfer-Encoding: chunked", body=random.choice(bodies))
    return Shot("bad chunks", (shot,), ANY, answers=None)


def two_framings(random: Random) -> Shot:
    """Content-Length and Transfer-Encoding: refused, and then the connection ends."""
    body = random.choice([chunked(BODY), b"0\r\n\r\n"]) + INNER
    lengths = random.choice((4, len(body), len(BODY), len(body) - len(INNER)))
    both = [f"Content-Length: {lengths}", "Transfer-Encoding: chunked"]
    random.shuffle(both)
    return Shot("two framings", (score(*both, body=body),), REFUSED, ends=True)


def odd_framing(random: Random) -> Shot:
    """Encodings that some parser takes for chunked and another does not."""
    names = [
        "xchunked",
        "chunked, identity",
        "identity",
        "gzip, chunked",
        "chunked\x0b",
        "\tchunked,",
        "chunked;q=1",
        "cow",
    ]
    names += ["chunked, chunked", '"chunked"', "", "chunked\x00", "identity, chunked"]
    headers = random.choice(
        [
            [f"Transfer-Encoding: {random.choice(names)}"],
            ["Transfer-Encoding : chunked"],
            [" Transfer-Encoding: chunked"],
            ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
            ["Transfer-Encoding: identity", "Transfer-Encoding: chunked"],
            ["X: y\r\n Transfer-Encoding: chunked"],
            ["Transfer_Encoding: chunked", f"Transfer-Encoding: {random.choice(names)}"],
            ["Transfer-Encoding:\r\n chunked, cow"],
        ]
    )
    return Shot("odd framing", (score(*headers, body=chunked(BODY) + INNER),), BAD_INPUT | BAD_HEAD, answers=None)


def old_framing(random: Random) -> Shot:
    """Chunks in HTTP/1.0, where there are none."""
    shot = score("Transfer-Encoding: chunked", body=chunked(BODY) + INNER, version="1.0")
    return Shot("HTTP/1.0", (shot,), REFUSED, ends=True)


def pipelined(random: Random) -> Shot:
    """Several requests at once: as many answers, none of them for a body."""
    count = random.randint(2, 8)
    one = [http("POST", "/v1/score", BODY, JSON), http("GET", "/live"), http("GET", "/v1/models")]
    return Shot("pipelined", (b"".join(random.choice(one) for _ in range(count)),), frozenset({200}), answers=count)


def in_the_body(random: Random) -> Shot:
    """A request as the body of another is a body."""
    body = random.choice([INNER, INNER * 3, json.dumps({"query": INNER.decode()}).encode()])
    pair = http("POST", "/v1/score", body, JSON) + http("GET", "/live")
    return Shot("request in a body", (pair,), frozenset({200, 400}), answers=2)


def bad_head(random: Random) -> Shot:
    """Not a request, or hardly one."""
    heads = [
        b"GET",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n" * 50,
        b"\x00" * 99,
    ]
    heads += [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 80,
        b"GET  / HTTP/1.1\r\n\r\n",
        b"\n\n",
        b"hello\r\n\r\n",
    ]
    heads += [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    heads += [raw("GET / HTTP/1.1", "Bad Name: 1"), raw("GET / HTTP/1.1", ": 1"), raw("GET / HTTP/1.1", "no colon")]
    heads += [
        raw("GET / HTTP/1.1", "X: a\x00b"),
        raw("GET / HTTP/1.1", "X: a\rb"),
        raw("GET / HTTP/1.1", "X: 1\r\n folded"),
    ]
    heads += [
        raw("GET http://other/live HTTP/1.1"),
        raw("CONNECT a:1 HTTP/1.1"),
        raw("OPTIONS * HTTP/1.1"),
        raw("GET * HTTP/1.1"),
    ]
    heads += [
        raw("GET /live HTTP/1.1", "Connection: " + value) for value in ("close, keep-alive", "X-Request-Id", "\xe9")
    ]
    heads += [raw("GET /live HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
                  "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")]  # fmt: skip
    heads += [raw("GET /live HTTP/1.1", "Upgrade: h2c", "HTTP2-Settings: AA", "Connection: Upgrade, HTTP2-Settings")]
    heads += [random.randbytes(random.randrange(1, 400)), raw("GET /live HTTP/1.1", "Expect: nonsense")]
    return Shot("bad head", (random.choice(heads),), ANY | BAD_HEAD | {204}, answers=None)


def large_head(random: Random) -> Shot:
    """Refused, or cut off before the refusal could be read."""
    headers = random.choice(
        [["X: " + "a" * 100_000], [f"X-{i}: {i}" for i in range(8000)], ["Cookie: " + "b" * 2_000_000]]
    )
    return Shot("large head", (raw("GET /live HTTP/1.1", *headers),), REFUSED | BAD_HEAD | {200}, answers=None)


def slow(random: Random) -> Shot:
    """A body in drops, with pauses; sometimes the client goes away in the middle."""
    request = http("POST", "/v1/score", BODY, JSON)
    cuts = sorted(random.randrange(1, len(request)) for _ in range(3))
    pieces = (request[: cuts[0]], 0.05, request[cuts[0] : cuts[1]], 0.1, request[cuts[1] : cuts[2]], 0.05)
    if random.random() < 0.5:
        return Shot("cut off", pieces, ANY, answers=None, leaves=True)
    return Shot("slow", (*pieces, request[cuts[2] :]), frozenset({200}))


def impatient(random: Random) -> Shot:
    """Leaves while the server works."""
    path, body = sound(random)
    return Shot("impatient", (http("POST", path, encoded(body), JSON), 0.002), ANY, leaves=True)


FRAMING_RULES: dict[Rule, int] = {
    wrong_length: 3, short_length: 2, long_length: 1, huge_length: 2, good_chunks: 3, bad_chunks: 4, two_framings: 4,
    odd_framing: 4, old_framing: 1, pipelined: 4, in_the_body: 2, bad_head: 8, large_head: 1, slow: 2, impatient: 3,
}  # fmt: skip
