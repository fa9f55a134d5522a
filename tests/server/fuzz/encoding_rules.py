"""Rules for bodies in the wrong type or encoding: damaged, mislabelled, or a few kilobytes that become megabytes."""

import gzip
import zlib
from functools import cache
from random import Random

from backports import zstd

from server.fuzz.bodies import SOUND, encoded, sound
from server.fuzz.exchange import Shot
from server.fuzz.requests import BAD_INPUT, Rule, http, post

MEGABYTE = 1 << 20
PACKERS = ("gzip", "zstd")
BOMB_MEGABYTES = (40, 160)  # 128 are taken


def media_type(random: Random) -> Shot:
    path, body = sound(random)
    kinds = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml"]
    kinds += ["application/json; charset=utf-16", "application/json; charset=latin-1", "json", "*/*", "a" * 5000, "é"]
    head = http("POST", path, encoded(body), f"Content-Type: {random.choice(kinds)}")
    return Shot("media type", (head,), frozenset({415}))


def damaged_encoding(random: Random) -> Shot:
    path, body = sound(random)
    data = encoded(body)
    name = random.choice(PACKERS)
    packed = bytearray(gzip.compress(data) if name == "gzip" else zstd.compress(data))
    for _ in range(random.choice((1, 3))):
        packed[random.randrange(len(packed))] ^= 1 << random.randrange(8)
    cut = packed[: random.randrange(1, len(packed))] if random.random() < 0.4 else packed
    return post("damaged encoding", path, bytes(cut), f"Content-Encoding: {name}")


def other_encoding(random: Random) -> Shot:
    path, body = sound(random)
    data, packed = encoded(body), gzip.compress(encoded(body))
    said, sent = random.choice(
        [
            *(
                ("br", data),
                ("deflate", zlib.compress(data)),
                ("gzip, gzip", gzip.compress(packed)),
                ("compress", data),
            ),
            *(
                ("gzip", data),
                ("zstd", data),
                ("gzip", zstd.compress(data)),
                ("zstd", packed),
                ("gzip", b""),
                ("é", data),
            ),
            *(
                ("gzip", packed + b"junk"),
                ("gzip", packed + packed),
                ("zstd", b"\x28\xb5\x2f\xfd"),
                ("gzip", b"\x1f\x8b"),
            ),
        ]
    )
    return post("other encoding", path, sent, f"Content-Encoding: {said}", statuses=BAD_INPUT)


@cache
def packed_spaces(name: str, megabytes: int) -> bytes:
    """JSON that is nearly all space, as a few kilobytes."""
    packer = zlib.compressobj(wbits=31) if name == "gzip" else zstd.ZstdCompressor()
    return b"".join(
        [*(packer.compress(b" " * MEGABYTE) for _ in range(megabytes)), packer.compress(b"{}"), packer.flush()]
    )


def make_bombs() -> None:
    for name in PACKERS:
        for megabytes in BOMB_MEGABYTES:
            packed_spaces(name, megabytes)


def bomb(random: Random) -> Shot:
    name, megabytes = random.choice(PACKERS), random.choice(BOMB_MEGABYTES)
    statuses = frozenset({413 if megabytes > 128 else 400})
    data = packed_spaces(name, megabytes)
    return post("bomb", random.choice(list(SOUND)), data, f"Content-Encoding: {name}", statuses=statuses)


ENCODING_RULES: dict[Rule, int] = {media_type: 3, damaged_encoding: 6, other_encoding: 4, bomb: 1}
