"""Labels: the probability of " positive" and of " negative" after each review, all reviews in one pass."""

from onepass import Scorer

QUERY = (
    "Review: The food was delicious. Sentiment: positive. "
    "Review: The room was dirty and cold. Sentiment: negative. "
    "Review:"
)
REVIEWS = [
    "The best movie I have seen this year!",
    "It was a complete waste of time.",
    "I loved every minute of it.",
    "I walked out after twenty minutes.",
]

with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    # Query and items are joined as they are: every space between them is written here.
    items = [f" {review} Sentiment:" for review in REVIEWS]
    result = scorer.score(query=QUERY, items=items, labels=[" positive", " negative"])

print(result)
print(f"\n{result.usage.prompt_tokens} tokens, the query counted once; mode {result.mode}: {result.reason}")
