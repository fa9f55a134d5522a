"""The grammar of bad requests: all rules, and shots drawn from them without end. Same seed, same shots."""

from collections.abc import Iterator
from random import Random

from server.fuzz.encoding_rules import ENCODING_RULES, make_bombs
from server.fuzz.exchange import Shot
from server.fuzz.framing_rules import FRAMING_RULES
from server.fuzz.json_rules import JSON_RULES
from server.fuzz.requests import Rule

RULES: dict[Rule, int] = {**JSON_RULES, **ENCODING_RULES, **FRAMING_RULES}  # a rule comes as often as it weighs


def shots(seed: int) -> Iterator[Shot]:
    make_bombs()  # seconds of work, and not to be done while others wait for their answers
    return _drawn(Random(seed))


def _drawn(random: Random) -> Iterator[Shot]:
    rules, weights = list(RULES), list(RULES.values())
    while True:
        yield random.choices(rules, weights)[0](random)
