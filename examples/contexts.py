"""Contexts: compute a query once, keep it on the device, and score against it as items arrive."""

from onepass import ContextNotFound, Scorer

QUERY = (
    "Review: The food was delicious. Sentiment: positive. "
    "Review: The room was dirty and cold. Sentiment: negative. "
    "Review:"
)
ARRIVING = [
    ["The best movie I have seen this year!", "It was a complete waste of time."],
    ["I walked out after twenty minutes."],
    ["A wonderful film with brilliant acting.", "Boring, badly written and far too long."],
]
LABELS = [" positive", " negative"]

with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    handle = scorer.prefill(QUERY, ttl_seconds=60, pin=True)
    print(f"kept {handle.tokens} tokens in {handle.bytes:,} bytes")
    for reviews in ARRIVING:
        items = [f" {review} Sentiment:" for review in reviews]
        result = scorer.score(context=handle.id, items=items, labels=LABELS)
        print(f"mode {result.mode}: {result.usage.cached_tokens} kept tokens, {result.usage.computed_tokens} computed")
        for review, scores in zip(reviews, result.scores, strict=True):
            print(f"  {max(zip(scores, LABELS, strict=True))[1]:<10} {review}")
    scorer.release(handle)
    try:
        scorer.score(context=handle.id, items=[" Sentiment:"], labels=LABELS)
    except ContextNotFound:
        print("a released context is an error, never a quiet recomputation")
