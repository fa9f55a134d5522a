"""The openai client, which has no method for scores: `client.post` with the body of a dialect."""

from typing import Any

from asking import Rank, Task, try_clients
from openai import OpenAI

REVIEWS = [
    " It was a complete waste of time. Sentiment:",
    " The best movie I have seen this year! Sentiment:",
    " Boring, badly written and far too long. Sentiment:",
    " I loved every minute of it. Sentiment:",
]
SHOTS = (
    "Review: The food was delicious. Sentiment: positive. "
    "Review: The room was dirty and cold. Sentiment: negative. Review:"
)


def main() -> None:
    try_clients(
        {
            "labels on /v1/score": lambda: labels("/v1"),
            "labels on /score": lambda: labels(""),
            "pairs on /v1/score": lambda: pairs("/v1"),
            "pairs on /score": lambda: pairs(""),
        },
        models,
    )


def models(task: Task) -> dict[str, Any]:
    with OpenAI(base_url=f"{task.url}/v1", api_key=task.key) as client:
        return {"models": [model.id for model in client.models.list()]}


def labels(base: str) -> Rank:
    """Ranks reviews by P(positive); the task's query only says whether there is one."""

    def rank(task: Task) -> dict[str, Any]:
        body = {
            "model": task.model,
            "query": SHOTS if task.query else "",
            "items": REVIEWS,
            "labels": [" positive", " negative"],
            "apply_softmax": True,
        }
        answer = post(task, base, body)
        positive = [[index, row[0]] for index, row in enumerate(answer["scores"])]
        return {"ranked": sorted(positive, key=lambda one: -one[1]), "raw": answer}

    return rank


def pairs(base: str) -> Rank:
    def rank(task: Task) -> dict[str, Any]:
        answer = post(task, base, {"model": task.model, "text_1": task.query, "text_2": task.documents})
        scored = [[one["index"], one["score"]] for one in answer["data"]]
        return {"ranked": sorted(scored, key=lambda one: -one[1]), "raw": answer}

    return rank


def post(task: Task, base: str, body: dict[str, Any]) -> Any:
    with OpenAI(base_url=task.url + base, api_key=task.key) as client:
        return client.post("/score", body=body, cast_to=object)


if __name__ == "__main__":
    main()
