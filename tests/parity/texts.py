"""Queries and items that parity with PyTorch is checked on: plain prose, and all that tends to break a scorer.

`CASES` is for the real model, `TINY_CASES` for the tiny random ones. Scoring and comparing is `test_torch_parity`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One sequence: `query + item`, each tokenised by itself."""

    name: str
    query: str
    item: str


LONG_PROSE = (
    "The harbour master kept a book in which every ship, its cargo and the weather of the day were written down. "
    "In spring the fishing boats left before dawn and came back at noon, and the market smelled of salt until night. "
    "When the railway reached the town, the coal barges stopped coming, and the old warehouses became workshops, "
    "then studios, then flats with large windows. Few people remember the cranes, but their rails are still there. "
)
LONG_LIST = "\n".join(
    f"{n}. product {n * 37 % 101}: price {n * 13 % 97}.{n % 10}0, rating {n % 5 + 1}/5" for n in range(18)
)
CODE = (
    "def ranked(items, scores):\n"
    '    """Items, best first."""\n'
    "    order = sorted(range(len(items)), key=lambda i: -scores[i])\n"
    "\treturn [items[i] for i in order]  # tabs and spaces, mixed\n"
)

FRANCE = "The capital of France is"
QUESTION = "Question: which animal barks?\nAnswer:"
SHOPPER = (
    "A customer bought a tent, a sleeping bag and a camping stove. Would the customer buy the next product?\nProduct:"
)
REVIEW = "Review: the battery died after two days and nobody answered my emails.\nThe review is"
LANGUAGES = "Übersetzung / 翻訳 / перевод: good morning →"
CHAT = "<|im_start|>user\nIs the sky blue? Answer yes or no.<|im_end|>\n<|im_start|>assistant\n"

ITEMS: dict[str, dict[str, str]] = {
    FRANCE: {
        "empty": "",
        "one-word": " Paris",
        "without-space": "Paris",
        "leading-spaces": "    Paris",
        "trailing-space": " Paris ",
        "comma": " Paris, and the capital of Italy is",
        "question": "? I think it is",
        "wrong": " Berlin",
        "space": " ",
        "spaces": "          ",
        "newline": "\n",
        "blank-lines": "\n\n\n",
        "windows-newline": "\r\n",
        "tabs": "\t\t",
        "odd-whitespace": "\u00a0\u2003\u3000\u200b\ufeff",
    },
    QUESTION: {
        "dog": " dog",
        "cat": " cat",
        "capitals": " DOG",
        "long": " " + LONG_PROSE * 2,
        "repeated": " dog" * 60,
        "punctuation": "?!...;;--((()))[]{}<>\"'`~^*_=+|\\/@#$%&",
        "ellipsis": " …",
        "quotes": " “dog” and ‘dog’ and «dog»",
    },
    SHOPPER: {
        "lantern": " a lantern\nAnswer:",
        "lipstick": " a lipstick\nAnswer:",
        "long-list": "\n" + LONG_LIST + "\nAnswer:",
        "digits": " 0123456789 3.14159265358979 1e-10 0x7fff 42 007",
        "price": " $1,234,567.89 (-15%) = €1.050.000",
        "date": " 2024-02-29T23:59:60Z",
        "identifier": " SKU_0042-ab/7::XL",
        "json": ' {"name": "tent", "sizes": [2, 4], "price": null}',
        "html": " <p class='x'>tent &amp; bag</p><br/>",
        "address": " see example.test/a?b=c&d=%20 or mail me@example.test",
    },
    REVIEW: {
        "positive": " positive",
        "negative": " negative",
        "sentence": " not a happy one; the customer feels",
        "code": "\n" + CODE,
        "latex": r" $\sum_{i=1}^{n} x_i^2 \leq \frac{1}{2}$",
        "camel-case": " someVeryLongIdentifierInCamelCase_and_snake_case",
        "long-word": " " + "antidisestablishmentarianism" * 4,
        "upper": " THIS IS ALL IN CAPITAL LETTERS, IS IT NOT",
    },
    LANGUAGES: {
        "german": " Guten Morgen, schöne Grüße aus Köln",
        "french": " ça va déjà très bien, où êtes-vous",
        "chinese": "早上好，今天天气很好。",
        "japanese": "おはようございます。東京タワー",
        "korean": "좋은 아침입니다",
        "russian": " доброе утро",
        "arabic": " صباح الخير",
        "hebrew": " בוקר טוב",
        "hindi": " सुप्रभात",
        "thai": " สวัสดีตอนเช้า",
        "emoji": "😀🎉🚀",
        "joined-emoji": " 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
        "combining": " e\u0301 a\u0308 n\u0303 versus é ä ñ",
        "mathematical": " ∀x∈ℝ: x²≥0 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
        "control": " bell\x07 escape\x1b null\x00 end",
    },
    CHAT: {
        "chat-empty": "",
        "chat-yes": "Yes",
        "chat-special": "No<|im_end|>\n",
    },
    " leading space and trailing space ": {
        "spaces-around": " word ",
        "spaces-empty": "",
    },
    "x": {
        "one-character": "y",
        "one-character-query": "",
    },
}

CASES = [Case(name, query, item) for query, items in ITEMS.items() for name, item in items.items()]
# Of few lengths (about 10, 100 and 500 tokens), since every length on the ladder is one more program to compile.
TINY_NAMES = "empty one-word spaces newline long digits json german chinese joined-emoji one-character-query"
TINY_CASES = [case for case in CASES if case.name in TINY_NAMES.split()]
