"""English text of a wanted length in tokens: sentences of seeded words, whose costs the server's own tokenizer told.

Words and points are tokens of their own in the vocabularies we know, so that costs add up; how long a text really
became is in the answer's usage. Who asks for the costs is `target`; what is made of the text is `requests`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

WORDS_OF = {
    "adjective": """
        old young small large quiet loud bright dark warm cold early late simple strange famous local modern ancient
        honest careful lucky tired happy angry gentle heavy light narrow wide deep shallow rich poor fresh dry wet green
        red blue white black golden silver wooden broken open hidden public private serious funny clever foolish brave
        patient busy empty full sharp soft strong weak common rare useful distant familiar foreign northern southern
        """,
    "noun": """
        river mountain village city teacher student doctor farmer engine letter garden window kitchen table bridge
        station market library museum hospital school office factory ship train car road forest island beach storm
        summer winter morning evening story song picture film book newspaper radio camera computer machine battery
        question answer problem reason plan idea price budget company customer manager worker neighbour friend brother
        sister mother father child family dog horse bird fish tree flower stone metal paper water coffee bread apple
        dinner holiday journey ticket passport hotel room door wall roof street corner field valley lake coast desert
        army court judge lawyer police minister council election law tax bank loan market report letter science
        theory experiment energy planet star moon light colour shape number language sentence word
        """,
    "verb": """
        found lost bought sold made built broke fixed opened closed crossed reached left painted carried moved changed
        helped taught asked answered followed watched heard remembered forgot liked loved feared trusted needed wanted
        used cleaned washed cooked shared kept gave sent received wrote read described explained compared measured
        tested improved planned refused accepted visited discovered protected repaired
        """,
    "adverb": "slowly quickly often rarely never always again today yesterday later soon almost clearly together",
    "place": "near behind above below beside across beyond inside outside around along past through without before",
    "joint": "and but because while although when after until since unless so",
}
WORDS = {kind: tuple(words.split()) for kind, words in WORDS_OF.items()}
FRAMES = (
    "the adjective noun verb the noun place a adjective noun",
    "a adjective noun adverb verb every noun place the adjective noun",
    "every noun place the noun verb a adjective noun joint the noun verb that noun adverb",
    "that noun verb the adjective noun joint this noun adverb verb a noun",
    "this adjective noun verb some adjective noun place the noun adverb",
)
FIXED = ("the", "a", "every", "that", "this", "some")


def pieces() -> list[str]:
    """Everything texts are made of; each is to be tokenised on its own."""
    plain = [*FIXED, *(word for words in WORDS.values() for word in words)]
    return list(dict.fromkeys([*(f" {word}" for word in plain), *(f" {word.capitalize()}" for word in FIXED), "."]))


@dataclass(frozen=True)
class English:
    """`costs` are the tokens of each of `pieces`."""

    costs: Mapping[str, int]

    def text(self, random: Random, tokens: int) -> str:
        """Sentences of so many tokens in all, as near as the words allow. Begins with a space, as an item should."""
        out: list[str] = []
        left = tokens
        while left > 0:
            for piece in _sentence(random):
                piece = piece if self.costs[piece] <= left else self._short(random, left)
                if not piece:
                    return "".join(out)
                out.append(piece)
                left -= self.costs[piece]
                if left == 0:
                    break
        return "".join(out)

    def _short(self, random: Random, left: int) -> str:
        """Some piece that still fits; none when even the cheapest does not."""
        fitting = [piece for piece, cost in self.costs.items() if cost <= left]
        return random.choice(fitting) if fitting else ""


def _sentence(random: Random) -> list[str]:
    words = [random.choice(WORDS[word]) if word in WORDS else word for word in random.choice(FRAMES).split()]
    return [f" {words[0].capitalize()}", *(f" {word}" for word in words[1:]), "."]
