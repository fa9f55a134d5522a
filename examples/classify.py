"""Classification: the examples are the shared query, each text is an item, the classes are the labels."""

from onepass import Scorer

EXAMPLES = """\
Good morning -> English
Bonjour madame -> French
Guten Morgen -> German
Buenos días -> Spanish
"""
LANGUAGES = [" English", " French", " German", " Spanish"]
TEXTS = [
    "Where is the station?",
    "Où est la gare ?",
    "Wo ist der Bahnhof?",
    "¿Dónde está la estación?",
    "Die Katze schläft.",
    "El gato duerme.",
]

with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    items = [f"{text} ->" for text in TEXTS]
    # Softmax over the labels alone; label_mass says how much of the whole vocabulary they hold.
    result = scorer.score(EXAMPLES, items, labels=LANGUAGES, apply_softmax=True)

assert result.label_mass is not None
for text, scores, mass in zip(TEXTS, result.scores, result.label_mass, strict=True):
    score, language = max(zip(scores, LANGUAGES, strict=True))
    print(f"{text:<26}{language:<9} {score:.2f}   label mass {mass:.2f}")
