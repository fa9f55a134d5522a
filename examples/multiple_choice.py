"""Multiple choice: each question has its own options, all of them scored in one pass."""

from onepass import Scorer

QUERY = "Answer the question.\n\n"
QUESTIONS = {
    "What do bees make?": ["bricks and mortar", "honey", "paper"],
    "Which planet is called the Red Planet?": ["Jupiter", "Mars", "the Moon"],
    "What falls from clouds?": ["rain", "old furniture"],
}

items = [f"Question: {question}\nAnswer:" for question in QUESTIONS]
options = [[f" {option}" for option in each] for each in QUESTIONS.values()]
with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    result = scorer.score(QUERY, items, continuations=options)

assert result.continuations is not None
for (question, texts), row in zip(QUESTIONS.items(), result.continuations, strict=True):
    best = max(range(len(row)), key=lambda i: row[i].logprob)
    print(f"{question} {texts[best]} (log P {row[best].logprob:.3f}, {row[best].mean_logprob:.3f} a token)")
