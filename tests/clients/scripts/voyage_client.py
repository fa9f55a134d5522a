"""Voyage's client; it always sends `truncation`, and `top_k` also where it is None."""

from typing import Any

import voyageai
from asking import Task, try_clients


def rank(task: Task) -> dict[str, Any]:
    client = voyageai.Client(api_key=task.key, base_url=f"{task.url}/v1")
    answer = client.rerank(task.query, task.documents, model=task.model)
    return {
        "ranked": [[one.index, one.relevance_score] for one in answer.results],
        "documents": [one.document for one in answer.results],
        "total_tokens": answer.total_tokens,
    }


def rank_some(task: Task) -> dict[str, Any]:
    client = voyageai.Client(api_key=task.key, base_url=f"{task.url}/v1")
    answer = client.rerank(task.query, task.documents, model=task.model, top_k=2)
    return {"ranked": [[one.index, one.relevance_score] for one in answer.results]}


if __name__ == "__main__":
    try_clients({"rerank": lambda: rank, "rerank with top_k": lambda: rank_some})
