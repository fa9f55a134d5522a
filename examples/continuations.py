"""Continuations: log-probabilities of texts of several tokens after each item, N items × M texts in one pass."""

from onepass import Scorer

QUERY = "Complete the proverb.\n"
BEGINNINGS = ["The early bird", "Too many cooks", "A picture is"]
ENDINGS = [" catches the worm", " spoil the broth", " worth a thousand words"]

with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    result = scorer.score(QUERY, BEGINNINGS, continuations=ENDINGS)

assert result.continuations is not None
for beginning, row in zip(BEGINNINGS, result.continuations, strict=True):
    best = max(range(len(ENDINGS)), key=lambda i: row[i].mean_logprob)
    print(f"{beginning}{ENDINGS[best]}")
    for ending, found in zip(ENDINGS, row, strict=True):
        tokens = len(found.token_logprobs)
        print(f"  {ending:<24} log P {found.logprob:8.3f}   {found.mean_logprob:7.3f} a token, {tokens} tokens")
