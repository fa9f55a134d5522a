"""Ranking: documents by log P(query | document), which is how a small chat model ranks best."""

from onepass import Scorer

DOCUMENTS = [
    "The Moon pulls the oceans towards it, and the water rises and falls twice a day.",
    "Yeast eats sugar and gives off carbon dioxide, so that the dough rises.",
    "Leaves lose their green chlorophyll in autumn and turn yellow and red.",
    "Iron combines with oxygen and water and turns into rust.",
    "A rainbow appears when sunlight is bent inside drops of rain.",
]
QUERIES = ["what causes the tides", "why does bread dough get bigger", "what makes metal rust"]

with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    for query in QUERIES:
        best = scorer.rank(query, DOCUMENTS, top=2)
        print(f"{query}?")
        for place in best:
            print(f"  {place.score:8.3f}  [{place.index}] {place.item}")
